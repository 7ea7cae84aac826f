/* A map of as many bytes as each block can have. */
#include "nvtrace_gpu.bpf.h"

struct {
	__uint(type, NVTRACE_MAP_TYPE_BLOCK_ARRAY);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u64);
} wide SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

/* Each thread finds zeros where blocks before have left what is none. */
SEC("cuda.entry/*")
int begin(struct nvtrace_entry *ctx)
{
	__u32 zero = 0, one = 1;
	__u64 *other = bpf_map_lookup_elem(&seen, &one), *n = bpf_map_lookup_elem(&seen, &zero);

	if (n)
		__sync_fetch_and_add(n, 1);
	for (__u32 i = ctx->t.thread.x & 7; i < 1024; i += 8) {
		__u64 *v = bpf_map_lookup_elem(&wide, &i);
		if (v && *v && other)
			__sync_fetch_and_add(other, 1);
	}
	return 0;
}

SEC("cuda.exit/*")
int end(struct nvtrace_exit *ctx)
{
	for (__u32 i = ctx->t.thread.x & 7; i < 1024; i += 8) {
		__u64 *v = bpf_map_lookup_elem(&wide, &i);
		if (v)
			*v = ~0ULL;
	}
	return 0;
}
