// A program in kernels, beside one on the host with a map of a type that GPUs can't have.
#include "nvtrace_host.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 8);
	__type(value, __u64);
} queue SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 8);
	__type(key, __u32);
	__type(value, __u64);
} accesses SEC(".maps");

SEC("cuda.api/cuMemAlloc")
int NVTRACE_CALL(on_alloc, void *to, __u64 bytes)
{
	bpf_map_push_elem(&queue, &bytes, BPF_EXIST);
	return 0;
}

SEC("cuda.mem/*")
int on_access(struct nvtrace_mem *ctx)
{
	__u32 kind = ctx->kind;
	__u64 *n = bpf_map_lookup_elem(&accesses, &kind);

	if (n)
		__sync_fetch_and_add(n, 1);
	return 0;
}
