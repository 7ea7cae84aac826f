/*
 * Lets allocations of GPU memory fail, to see what a program does then: the third call of cudaMalloc
 * and the calls after it; --set other numbers:
 *
 *	nvtrace --attach fail.bpf.o --set fail_first=10 --set fail_count=1 -- ./app
 */
#include "nvtrace_gpu.bpf.h"

static long (*override_return)(void *, __u64) = (void *)58;

#define cudaErrorMemoryAllocation 2

const volatile __u64 fail_first = 3, fail_count = ~0ull;

__u64 calls, failed;

SEC("cuda.api/cudaMalloc")
int on_alloc(void *ctx)
{
	__u64 n = __sync_fetch_and_add(&calls, 1) + 1;
	if (n >= fail_first && n - fail_first < fail_count) {
		__sync_fetch_and_add(&failed, 1);
		override_return(ctx, cudaErrorMemoryAllocation);
	}
	return 0;
}

char _license[] SEC("license") = "GPL";
