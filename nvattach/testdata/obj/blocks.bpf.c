/* Maps that each block of threads has for itself. */
#include "nvtrace_gpu.bpf.h"

#define PARTS 16

struct state {
	__u64 in, out, highest, locked;
	__u32 lowest; /* kept as ~n */
	__u16 narrow;
	__u8 bytes[2];
};

struct {
	__uint(type, NVTRACE_MAP_TYPE_BLOCK_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct state);
} of_block SEC(".maps");

struct {
	__uint(type, NVTRACE_MAP_TYPE_BLOCK_ARRAY);
	__uint(max_entries, PARTS);
	__type(key, __u32);
	__type(value, __u64);
} parts SEC(".maps");

/* What the last thread of each block has found. */
struct folded {
	__u64 in, out, highest, locked, updated, refused, accesses, part[PARTS];
	__u32 lowest, narrow, bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, struct folded);
} blocks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} all SEC(".maps");

/* Values that several threads write, the same all. */
struct {
	__uint(type, NVTRACE_MAP_TYPE_BLOCK_ARRAY);
	__uint(max_entries, 3);
	__type(key, __u32);
	__type(value, __u64[2]);
} written SEC(".maps");

SEC("cuda.entry/*")
int a_enter(struct nvtrace_entry *ctx)
{
	__u32 zero = 0, n = ctx->t.thread.x;
	struct state *s = bpf_map_lookup_elem(&of_block, &zero);

	if (!s)
		return 0;
	__sync_fetch_and_add(&s->in, 1);
	nvtrace_max(&s->highest, n);
	nvtrace_max32(&s->lowest, ~n);
	s->narrow += 3;
	s->bytes[n & 1]++;
	return 0;
}

SEC("cuda.mem/*")
int b_access(struct nvtrace_mem *ctx)
{
	__u32 part = ctx->t.thread.x % (PARTS + 1), zero = 0;
	__u64 *n = bpf_map_lookup_elem(&parts, &part);

	if (!n) /* no part of the block's */
		n = bpf_map_lookup_elem(&all, &zero);
	if (n)
		__sync_fetch_and_add(n, 1);
	return 0;
}

SEC("cuda.exit/*")
int c_leave(struct nvtrace_exit *ctx)
{
	__u32 zero = 0, block = ctx->t.block.x, threads = ctx->t.block_dim.x, key = block % 5;
	struct state *s = bpf_map_lookup_elem(&of_block, &zero);
	__u64 value[2] = {block, 7}, refused = 0;

	if (!s)
		return 0;
	/* A lock that one thread gets. */
	if (__sync_val_compare_and_swap(&s->locked, 0, 100 + block) != 0)
		refused = 1;
	if (bpf_map_update_elem(&written, &key, value, BPF_ANY) != 0)
		refused += 2;
	if (bpf_map_update_elem(&written, &zero, value, BPF_NOEXIST) == 0 || bpf_map_delete_elem(&written, &zero) == 0)
		refused += 1000;
	if (__sync_fetch_and_add(&s->out, 1) + 1 != threads)
		return 0;
	struct folded *f = bpf_map_lookup_elem(&blocks, &block);
	if (!f)
		return 0;
	f->in = s->in;
	f->out = s->out;
	f->highest = s->highest;
	f->lowest = ~s->lowest;
	f->locked = s->locked;
	f->narrow = s->narrow;
	f->bytes = s->bytes[0] | s->bytes[1] << 8;
	f->refused = refused;
	for (__u32 i = 0; i < PARTS; i++) {
		__u64 *n = bpf_map_lookup_elem(&parts, &i);
		if (n) {
			f->part[i] = *n;
			f->accesses += *n;
		}
	}
	__u64 *w = bpf_map_lookup_elem(&written, &key);
	f->updated = w ? w[0] * 10 + w[1] : 1;
	return 0;
}
