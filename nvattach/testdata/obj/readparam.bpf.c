/* A read of the memory that a kernel's parameter points to. */
#include "nvtrace_gpu.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 3);
	__type(key, __u32);
	__type(value, __u64);
} sums SEC(".maps");

static __always_inline void add(__u32 i, __u64 n)
{
	__u64 *v = bpf_map_lookup_elem(&sums, &i);

	if (v)
		__sync_fetch_and_add(v, n);
}

/* The kernel's first parameter is an array of numbers, of which each thread reads one. */
SEC("cuda.entry/vectorAdd")
int read_param(struct nvtrace_entry *ctx)
{
	__u64 i = ctx->t.block.x * ctx->t.block_dim.x + ctx->t.thread.x, at = 0;
	__u32 v;

	bpf_get_func_arg(ctx, 0, &at);
	if (bpf_probe_read(&v, sizeof(v), (void *)(at + 4 * i))) {
		add(1, 1);
	} else {
		add(0, 1);
		add(2, v);
	}
	return 0;
}
