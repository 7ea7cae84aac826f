/*
 * When launches began and ended on the GPU: a record for each, written by the last of its
 * threads. stamps.go reads them, and the Makefile compiles this file.
 *
 * All threads of a launch have its number, which no other has at that time, and by which they find a
 * place. (The next launch of a graph may have the same numbers; it begins when this one has ended.) The
 * last thread is found by counting. All warps that add to one word would wait for each other, so they
 * add to PARTS words in turn, and who completes one counts that. This is all that a warp does at its
 * end: one atomic operation, at an address that takes no access to memory to find.
 *
 * The first thread of the first block is taken for the first one, as a GPU begins with that block; and for
 * the last one of those that add to a word who completes it. Others may have looked at the clock later,
 * by what the way from there to the word takes longer for one than for the other.
 *
 * Launches whose numbers lead to one place at the same time, as one lasts for as long as it takes to launch
 * PLACES others, or as they run on different GPUs, are counted, and nothing else is known of them, nor
 * of those that come there later.
 */
#include "nvtrace_gpu.bpf.h"

#define PLACES 16384 /* a power of two; GPUs run 128 launches at once */
#define PARTS 32
#define MIXED ~0ull /* a start: of several launches */

struct launch {
	__u64 start;       /* when the first thread was there; 0: it was not yet */
	__u64 end;         /* when the last one left */
	__u64 parts;       /* words that are complete */
	__u64 left[PARTS]; /* threads that have left */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PLACES);
	__type(key, __u32);
	__type(value, struct launch);
} nvtrace_running SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} nvtrace_mixed SEC(".maps");

struct stamp {
	__u64 launch, start, end;
	__u64 site; /* of the thread that wrote it, which says what kernel it is */
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 << 10);
	__type(value, struct stamp);
} nvtrace_stamps SEC(".maps");

static __always_inline struct launch *launch_of(__u64 id)
{
	__u32 place = id % PLACES;
	return bpf_map_lookup_elem(&nvtrace_running, &place);
}

/* An exchange is ordered with what comes before and behind it. */
static __always_inline __u64 exchange(__u64 *p, __u64 n)
{
	return __sync_lock_test_and_set(p, n);
}

SEC("cuda.entry/*")
int nvtrace_begin(struct nvtrace_entry *ctx)
{
	struct nvtrace_thread *t = &ctx->t;
	__u32 zero = 0;
	__u64 now, was, *mixed;
	struct launch *l;
	if (t->block.x | t->block.y | t->block.z | t->thread.x | t->thread.y | t->thread.z)
		return 0;
	now = t->time;
	l = launch_of(nvtrace_launch_id());
	if (!l)
		return 0;
	was = exchange(&l->start, now);
	if (!was)
		return 0;
	exchange(&l->start, MIXED);
	mixed = bpf_map_lookup_elem(&nvtrace_mixed, &zero);
	if (mixed)
		__sync_fetch_and_add(mixed, was == MIXED ? 1 : 2);
	return 0;
}

SEC("cuda.exit/*")
int nvtrace_end(struct nvtrace_exit *ctx)
{
	struct nvtrace_thread *t = &ctx->t;
	__u64 n = nvtrace_popc(nvtrace_together());
	__u64 now, id, block, blocks, size, units, unit, each, threads;
	struct stamp s = {};
	struct launch *l;
	if (!nvtrace_leader())
		return 0;
	now = t->time;
	s.launch = id = nvtrace_launch_id();
	blocks = (__u64)t->grid.x * t->grid.y * t->grid.z;
	block = t->block.x + t->grid.x * (t->block.y + (__u64)t->grid.y * t->block.z);
	size = t->block_dim.x * t->block_dim.y * t->block_dim.z;
	/* Warps take turns; blocks, where not all of their warps are full. */
	units = blocks;
	unit = block;
	each = size;
	if (size % 32 == 0) {
		units = blocks * (size / 32);
		unit = block * (size / 32) + (t->thread.x + t->block_dim.x * (t->thread.y + t->block_dim.y * t->thread.z)) / 32;
		each = 32;
	}
	unit %= PARTS;
	threads = (units / PARTS + (unit < units % PARTS)) * each;
	l = launch_of(id);
	if (!l || __sync_fetch_and_add(&l->left[unit], n) + n != threads)
		return 0;
	nvtrace_max(&l->end, now);
	if (__sync_fetch_and_add(&l->parts, 1) + 1 != (units < PARTS ? units : PARTS))
		return 0;
	s.end = exchange(&l->end, 0);
	s.start = *(volatile __u64 *)&l->start;
	if (s.start == MIXED)
		return 0;
	l->parts = 0;
	__builtin_memset(l->left, 0, sizeof l->left);
	if (exchange(&l->start, 0) != s.start) {
		exchange(&l->start, MIXED);
		return 0;
	}
	s.site = t->site;
	bpf_ringbuf_output(&nvtrace_stamps, &s, sizeof s, 0);
	return 0;
}

char _license[] SEC("license") = "GPL";
