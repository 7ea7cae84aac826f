/* Paths that compilers join: one call of a helper whose argument is a map's value on
 * one of them and the stack on the other. */
#include "nvtrace_gpu.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, __u64);
} totals SEC(".maps");

SEC("cuda.exit/*")
int on_exit(struct nvtrace_exit *ctx)
{
	__u32 key = ctx->t.thread.x & 3;
	__u64 delta = ctx->t.thread.x, *total;

	total = bpf_map_lookup_elem(&totals, &key);
	if (total) {
		*total += delta;
		bpf_map_update_elem(&totals, &key, total, BPF_EXIST);
	} else {
		bpf_map_update_elem(&totals, &key, &delta, BPF_NOEXIST);
	}
	return 0;
}
