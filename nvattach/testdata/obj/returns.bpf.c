/* What device functions return. */
#include "nvtrace_gpu.bpf.h"

__u64 calls, sum, refused;

SEC("cuda.exit/func:*")
int on_return(struct nvtrace_exit *ctx)
{
	__u64 v = 0;

	if (bpf_get_func_ret(ctx, &v))
		__sync_fetch_and_add(&refused, 1);
	__sync_fetch_and_add(&calls, 1);
	__sync_fetch_and_add(&sum, v);
	return 0;
}

SEC("cuda.exit/*")
int on_exit(struct nvtrace_exit *ctx)
{
	__u64 v = 0;

	if (bpf_get_func_ret(ctx, &v)) /* a kernel returns nothing */
		__sync_fetch_and_add(&refused, 1000);
	return 0;
}
