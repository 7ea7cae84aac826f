/* A loop that nothing proves to end, and that does not. */
#include "nvtrace_gpu.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} rounds SEC(".maps");

SEC("cuda.entry/*")
int endless(struct nvtrace_entry *ctx)
{
	__u32 zero = 0;
	__u64 *n = bpf_map_lookup_elem(&rounds, &zero);

	if (!n)
		return 0;
	while (*(volatile __u64 *)n < ~0ull)
		__sync_fetch_and_add(n, 1);
	return 0;
}
