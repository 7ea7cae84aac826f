/* What kernels are given: for each kernel parameter 0 to 3 that is an address of the GPU's memory,
 * how many threads found zeros, and how many other numbers, in the 4 bytes at their place of it. */
#include "nvtrace_gpu.bpf.h"

struct found {
	__u64 zeros;
	__u64 others;
	__u64 nothing; /* no memory, or none that the program has allocated */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct found);
} parameters SEC(".maps");

static __always_inline void look(struct nvtrace_entry *ctx, __u32 n)
{
	__u64 i = (__u64)ctx->t.block.x * ctx->t.block_dim.x + ctx->t.thread.x, at = 0;
	struct found *f = bpf_map_lookup_elem(&parameters, &n);
	__u32 v;

	if (!f || bpf_get_func_arg(ctx, n, &at))
		return;
	if (bpf_probe_read(&v, sizeof(v), (void *)(at + 4 * i)))
		__sync_fetch_and_add(&f->nothing, 1);
	else if (v)
		__sync_fetch_and_add(&f->others, 1);
	else
		__sync_fetch_and_add(&f->zeros, 1);
}

SEC("cuda.entry/*")
int on_entry(struct nvtrace_entry *ctx)
{
	look(ctx, 0);
	look(ctx, 1);
	look(ctx, 2);
	look(ctx, 3);
	return 0;
}
