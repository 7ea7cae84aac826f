/* Reads of the GPU's memory, at addresses that a map has, by thread. */
#include "nvtrace_gpu.bpf.h"

#define THREADS 4096

struct got {
	__u64 ret[6];
	__u64 b1, b2, b4, b8, b12[2];
	char text[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, THREADS);
	__type(key, __u32);
	__type(value, __u64);
} addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, THREADS);
	__type(key, __u32);
	__type(value, struct got);
} out SEC(".maps");

SEC("cuda.entry/*")
int read_all(struct nvtrace_entry *ctx)
{
	__u32 i = ctx->t.block.x * ctx->t.block_dim.x + ctx->t.thread.x;
	__u64 *addr = bpf_map_lookup_elem(&addresses, &i);
	struct got g = {.b1 = ~0ULL, .b4 = ~0ULL};

	if (!addr)
		return 0;
	g.ret[0] = bpf_probe_read(&g.b1, 1, (void *)*addr);
	g.ret[1] = bpf_probe_read_user(&g.b2, 2, (void *)*addr);
	g.ret[2] = bpf_probe_read_kernel(&g.b4, 4, (void *)*addr);
	g.ret[3] = bpf_probe_read(&g.b8, 8, (void *)*addr);
	g.ret[4] = bpf_probe_read(g.b12, 12, (void *)*addr);
	g.ret[5] = bpf_probe_read_user_str(g.text, sizeof(g.text), (void *)*addr);
	bpf_map_update_elem(&out, &i, &g, BPF_ANY);
	return 0;
}

/* The most that one call reads, and none. */
SEC("cuda.entry/*")
int read_most(struct nvtrace_entry *ctx)
{
	char b[128];
	__u32 i = 0;
	__u64 *addr = bpf_map_lookup_elem(&addresses, &i);
	struct got g = {};

	if (!addr)
		return 0;
	g.ret[0] = bpf_probe_read(b, sizeof(b), (void *)*addr);
	g.b1 = b[127];
	g.ret[1] = bpf_probe_read(b, 0, (void *)*addr);
	bpf_map_update_elem(&out, &i, &g, BPF_ANY);
	return 0;
}
