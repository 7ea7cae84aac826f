/* The highest and the lowest of numbers, one for each thread. */
#include "nvtrace_gpu.bpf.h"

struct extremes {
	__u64 max, min;
	__s64 smax, smin;
	__u32 max32, min32;
	__s32 smax32, smin32;
	__u64 bits;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct extremes);
} kept SEC(".maps");

SEC("cuda.entry/*")
int keep(struct nvtrace_entry *ctx)
{
	__u64 i = ctx->t.block.x * ctx->t.block_dim.x + ctx->t.thread.x, n = (i + 1) * 0x9e3779b97f4a7c15ULL;
	__u32 k = i & 3;
	struct extremes *e = bpf_map_lookup_elem(&kept, &k);

	if (!e)
		return 0;
	nvtrace_max(&e->max, n);
	nvtrace_min(&e->min, n);
	nvtrace_smax(&e->smax, n);
	nvtrace_smin(&e->smin, n);
	nvtrace_max32(&e->max32, n >> 7);
	nvtrace_min32(&e->min32, n >> 7);
	nvtrace_smax32(&e->smax32, n >> 7);
	nvtrace_smin32(&e->smin32, n >> 7);
	__sync_fetch_and_or(&e->bits, 1ULL << (n >> 58));
	return 0;
}
