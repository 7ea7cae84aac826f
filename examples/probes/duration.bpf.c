/* How long threads take, in cycles, as a histogram of powers of two. */
#include "nvtrace_gpu.bpf.h"

struct {
	__uint(type, NVTRACE_MAP_TYPE_THREAD_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} started SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
} cycles_hist SEC(".maps");

SEC("cuda.entry/*")
int on_entry(struct nvtrace_entry *ctx)
{
	__u32 zero = 0;
	__u64 *s = bpf_map_lookup_elem(&started, &zero);

	if (s)
		*s = ctx->t.clock;
	return 0;
}

SEC("cuda.exit/*")
int on_exit(struct nvtrace_exit *ctx)
{
	__u32 zero = 0, slot;
	__u64 *s = bpf_map_lookup_elem(&started, &zero), *n;

	if (!s)
		return 0;
	slot = nvtrace_log2(ctx->t.clock - *s);
	n = bpf_map_lookup_elem(&cycles_hist, &slot);
	if (n)
		__sync_fetch_and_add(n, 1);
	return 0;
}
