/* Counts the threads that enter and leave each kernel. */
#include "nvtrace_gpu.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} threads SEC(".maps");

static __always_inline void count(__u32 which)
{
	__u64 *n = bpf_map_lookup_elem(&threads, &which);

	if (n)
		__sync_fetch_and_add(n, 1);
}

SEC("cuda.entry/*")
int on_entry(struct nvtrace_entry *ctx)
{
	count(0);
	return 0;
}

SEC("cuda.exit/*")
int on_exit(struct nvtrace_exit *ctx)
{
	count(1);
	return 0;
}
