/* Accesses to memory by kind and space, bytes in all, and a histogram of sizes. */
#include "nvtrace_gpu.bpf.h"

struct key {
	enum nvtrace_access_kind kind;
	enum nvtrace_space space;
};

struct stats {
	__u64 accesses;
	__u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct key);
	__type(value, struct stats);
} accesses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, __u64);
} size_hist SEC(".maps");

SEC("cuda.mem/*")
int on_access(struct nvtrace_mem *ctx)
{
	struct key k = {ctx->kind, ctx->space};
	struct stats zero = {}, *s;
	__u32 slot = nvtrace_log2(ctx->size);
	__u64 *n;

	s = bpf_map_lookup_elem(&accesses, &k);
	if (!s) {
		bpf_map_update_elem(&accesses, &k, &zero, BPF_NOEXIST);
		s = bpf_map_lookup_elem(&accesses, &k);
	}
	if (s) {
		__sync_fetch_and_add(&s->accesses, 1);
		__sync_fetch_and_add(&s->bytes, ctx->size);
	}
	n = bpf_map_lookup_elem(&size_hist, &slot);
	if (n)
		__sync_fetch_and_add(n, 1);
	return 0;
}
