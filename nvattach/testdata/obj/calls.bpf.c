// Programs with the parameters of calls of CUDA's driver; see cmd/nvtrace/testdata/script/host.txtar.
#include "nvtrace_gpu.bpf.h"

__u64 blocks, threads, shared, bytes, same, frees, failed;

SEC("cuda.api/cuLaunchKernel")
int NVTRACE_CALL(on_launch, void *f, __u32 gx, __u32 gy, __u32 gz, __u32 bx, __u32 by, __u32 bz, __u32 mem, void *stream, void **params, void **extra)
{
	void *first = 0;
	blocks = gx * gy * gz;
	threads = bx * by * bz;
	shared = mem;
	/* All is there that there is: a first parameter, and nothing behind the last. */
	same = f && !stream && !extra && !bpf_probe_read_user(&first, sizeof first, params) && first;
	return 0;
}

SEC("cuda.api/cuMemAlloc")
int NVTRACE_CALL(on_alloc, void *to, __u64 n)
{
	__sync_fetch_and_add(&bytes, n);
	return 0;
}

SEC("cuda.apiret/cuMem*")
int NVTRACE_CALL(on_return)
{
	if ((__u32)ctx->ret)
		failed++;
	else
		frees++;
	return 0;
}

char _license[] SEC("license") = "GPL";
