/* A map of a million entries. */
#include "nvtrace_gpu.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1000000);
	__type(key, __u64);
	__type(value, __u64);
} million SEC(".maps");

SEC("cuda.entry/*")
int insert(struct nvtrace_entry *ctx)
{
	__u64 key = ctx->t.thread.x, value = 1;

	bpf_map_update_elem(&million, &key, &value, BPF_ANY);
	return 0;
}
