/* How long threads take, in cycles, as a histogram of powers of two. */
#include "nvtrace_gpu.bpf.h"

__per_thread __u64 started;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
} cycles_hist SEC(".maps");

SEC("cuda.entry/*")
int on_entry(struct nvtrace_entry *ctx)
{
	started = ctx->t.clock;
	return 0;
}

SEC("cuda.exit/*")
int on_exit(struct nvtrace_exit *ctx)
{
	__u32 slot = nvtrace_log2(ctx->t.clock - started);
	__u64 *n = bpf_map_lookup_elem(&cycles_hist, &slot);

	if (n)
		__sync_fetch_and_add(n, 1);
	return 0;
}
