/* Ends the threads of odd number: refused unless it is allowed. */
#include "nvtrace_gpu.bpf.h"

static void (*cuda_exit)(void) = (void *)507;

SEC("cuda.entry/*")
int leave(struct nvtrace_entry *ctx)
{
	if (ctx->t.thread.x & 1)
		cuda_exit();
	return 0;
}
