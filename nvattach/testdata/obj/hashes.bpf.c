/* Hash tables under load: every thread at once, with one key, with many, and with keys
 * that come and go. */
#include "nvtrace_gpu.bpf.h"

#define HASH(map, n, keytype, val)              \
	struct {                                \
		__uint(type, BPF_MAP_TYPE_HASH); \
		__uint(max_entries, n);         \
		__type(key, keytype);           \
		__type(value, val);             \
	} map SEC(".maps")

struct stats {
	__u64 n;
	__u64 sum;
	__u32 first; /* what the key was inserted with; nobody adds to it */
	__u32 small;
};

struct pair {
	__u64 block;
	__u32 lane;
};

HASH(one, 16, __u32, __u64);
HASH(many, 4096, __u32, struct stats);
HASH(anyway, 16, __u32, __u64);
HASH(firsts, 16, __u32, __u64);
HASH(replaced, 64, __u32, __u64);
HASH(longer, 64, struct pair, struct stats);
HASH(live, 1 << 19, __u64, __u64);
HASH(tiny, 8, __u64, __u64);

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
} hist SEC(".maps"), sums SEC(".maps"), results SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} counted SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1000);
	__type(key, __u32);
	__type(value, struct stats);
} stats SEC(".maps");

static __always_inline void add(void *map, __u32 slot, __u64 n)
{
	__u64 *v = bpf_map_lookup_elem(map, &slot);

	if (v)
		__sync_fetch_and_add(v, n);
}

/* A counter in a hash. */
SEC("cuda.entry/*")
int count_one(struct nvtrace_entry *ctx)
{
	__u32 key = 7;
	__u64 zero = 0, *n = bpf_map_lookup_elem(&one, &key);

	if (!n) {
		bpf_map_update_elem(&one, &key, &zero, BPF_NOEXIST);
		n = bpf_map_lookup_elem(&one, &key);
	}
	if (n)
		__sync_fetch_and_add(n, 1);
	return 0;
}

/* Counters by block, of several parts. */
SEC("cuda.entry/*")
int count_many(struct nvtrace_entry *ctx)
{
	__u32 key = ctx->t.block.x % 1000;
	struct stats init = {.first = 5}, *s = bpf_map_lookup_elem(&many, &key);

	if (!s) {
		bpf_map_update_elem(&many, &key, &init, BPF_NOEXIST);
		s = bpf_map_lookup_elem(&many, &key);
	}
	if (s) {
		__sync_fetch_and_add(&s->n, 1);
		__sync_fetch_and_add(&s->sum, ctx->t.thread.x);
		__sync_fetch_and_add(&s->small, 3);
	}
	return 0;
}

/* The first count with BPF_ANY, as many write it. */
SEC("cuda.entry/*")
int count_anyway(struct nvtrace_entry *ctx)
{
	__u32 key = 7;
	__u64 first = 1, *n = bpf_map_lookup_elem(&anyway, &key);

	if (n)
		__sync_fetch_and_add(n, 1);
	else
		bpf_map_update_elem(&anyway, &key, &first, BPF_ANY);
	return 0;
}

/* The first count with BPF_NOEXIST, as bpftime's examples have it. */
SEC("cuda.entry/*")
int count_first(struct nvtrace_entry *ctx)
{
	__u32 key = 7;
	__u64 first = 1, *n = bpf_map_lookup_elem(&firsts, &key);

	if (n)
		__sync_fetch_and_add(n, 1);
	else
		bpf_map_update_elem(&firsts, &key, &first, BPF_NOEXIST);
	return 0;
}

/* The same behind calls that were given one pointer to the stack, as cuda-counter is. */
SEC("cuda.entry/*")
int count_after(struct nvtrace_entry *ctx)
{
	__u32 key = 7, thread = ctx->t.thread.x % 64;
	__u64 first = 1, *n;

	bpf_map_update_elem(&replaced, &thread, &first, BPF_ANY);
	bpf_map_delete_elem(&replaced, &thread);
	n = bpf_map_lookup_elem(&firsts, &key);
	if (n)
		__sync_fetch_and_add(n, 1);
	else
		bpf_map_update_elem(&firsts, &key, &first, BPF_NOEXIST);
	return 0;
}

/* Another program that reads the same. */
SEC("cuda.exit/*")
int look_first(struct nvtrace_exit *ctx)
{
	__u32 key = 7, at = 0;
	__u64 *n = bpf_map_lookup_elem(&firsts, &key);

	if (n && *n > 1 << 30)
		bpf_map_update_elem(&results, &at, n, BPF_ANY);
	return 0;
}

/* Values that are replaced. */
SEC("cuda.entry/*")
int replace(struct nvtrace_entry *ctx)
{
	__u32 key = ctx->t.thread.x % 64;
	__u64 value = key;

	bpf_map_update_elem(&replaced, &key, &value, BPF_ANY);
	return 0;
}

/* The same by all threads. */
SEC("cuda.entry/*")
int replace_same(struct nvtrace_entry *ctx)
{
	__u32 key = 3;
	__u64 value = ctx->t.grid.x;

	bpf_map_update_elem(&replaced, &key, &value, BPF_ANY);
	return 0;
}

/* What the hashes are compared with: arrays. */
SEC("cuda.entry/*")
int array_replace(struct nvtrace_entry *ctx)
{
	__u32 key = ctx->t.thread.x % 64;
	__u64 value = key;

	bpf_map_update_elem(&results, &key, &value, BPF_ANY);
	return 0;
}

SEC("cuda.entry/*")
int array_many(struct nvtrace_entry *ctx)
{
	__u32 key = ctx->t.block.x % 1000;
	struct stats *s = bpf_map_lookup_elem(&stats, &key);

	if (s) {
		__sync_fetch_and_add(&s->n, 1);
		__sync_fetch_and_add(&s->sum, ctx->t.thread.x);
		__sync_fetch_and_add(&s->small, 3);
	}
	return 0;
}

SEC("cuda.entry/*")
int replace_longer(struct nvtrace_entry *ctx)
{
	struct pair key = {ctx->t.block.x % 2, ctx->t.lane};
	struct stats value = {ctx->t.lane, 1, 2, 3};

	bpf_map_update_elem(&longer, &key, &value, BPF_ANY);
	return 0;
}

static __always_inline __u64 thread(struct nvtrace_thread *t)
{
	return (__u64)t->block.x * t->block_dim.x + t->thread.x;
}

/* Durations the way they are taken in Linux: a start time for each thread that runs. */
SEC("cuda.entry/*")
int live_entry(struct nvtrace_entry *ctx)
{
	__u64 key = thread(&ctx->t), now = ctx->t.clock;

	bpf_map_update_elem(&live, &key, &now, BPF_ANY);
	return 0;
}

SEC("cuda.exit/*")
int live_exit(struct nvtrace_exit *ctx)
{
	__u64 key = thread(&ctx->t), *start = bpf_map_lookup_elem(&live, &key);

	if (start)
		add(&hist, nvtrace_log2(ctx->t.clock - *start), 1);
	if (bpf_map_delete_elem(&live, &key) == 0)
		add(&results, 0, 1);
	return 0;
}

/* More keys than there is room for: what is inserted is what is deleted. */
SEC("cuda.entry/*")
int full(struct nvtrace_entry *ctx)
{
	__u64 key = thread(&ctx->t) % 24, me = thread(&ctx->t);
	long r = bpf_map_update_elem(&tiny, &key, &me, BPF_NOEXIST);

	add(&results, r == 0 ? 1 : r == -17 ? 2 : r == -7 ? 3 : 4, 1);
	if (r == 0) {
		__u64 *v = bpf_map_lookup_elem(&tiny, &key);

		if (!v || *v != me)
			add(&results, 5, 1);
		if (bpf_map_delete_elem(&tiny, &key) == 0)
			add(&results, 6, 1);
	}
	return 0;
}

__per_thread __u64 started;
__per_thread __u32 steps[3] = {1, 2, 3};
__per_thread __u8 byte = 9;

/* Sums of what is different in each thread. */
SEC("cuda.entry/*")
int sum_entry(struct nvtrace_entry *ctx)
{
	started = ctx->t.clock;
	return 0;
}

SEC("cuda.exit/*")
int sum_exit(struct nvtrace_exit *ctx)
{
	add(&sums, 0, 1);
	add(&sums, 1, ctx->t.clock - started);
	return 0;
}

/* Variables of the thread, of all sizes. */
SEC("cuda.entry/*")
int own_entry(struct nvtrace_entry *ctx)
{
	steps[1] += ctx->t.thread.x;
	steps[2] = steps[0] + steps[1];
	byte += (__u8)ctx->t.thread.x;
	return 0;
}

SEC("cuda.exit/*")
int own_exit(struct nvtrace_exit *ctx)
{
	__u32 x = ctx->t.thread.x;
	__u32 key = 2;

	__sync_fetch_and_add(&steps[0], 10);
	add(&results, 10, steps[0]);
	add(&results, 11, steps[1] - x);
	add(&results, 12, steps[2] - x);
	add(&results, 13, (__u8)(byte - x));
	/* As a key: a pointer to it. */
	steps[2] = 14;
	bpf_map_update_elem(&replaced, &steps[2], &started, BPF_ANY);
	return 0;
}

/* Adds without an atomic operation, and one thread tells how far it came. */
SEC("cuda.exit/*")
int tell_count(struct nvtrace_exit *ctx)
{
	__u32 one = 1, key = 5;
	__u64 n = 1, *v = bpf_map_lookup_elem(&counted, &one);

	if (v)
		n = *v + 1;
	bpf_map_update_elem(&counted, &one, &n, BPF_ANY);
	if (ctx->t.block.x + ctx->t.thread.x == 0)
		bpf_map_update_elem(&replaced, &key, &n, BPF_ANY);
	return 0;
}

/* The same, but what it came to is also the key: that is looked at by all. */
SEC("cuda.exit/*")
int use_count(struct nvtrace_exit *ctx)
{
	__u32 one = 1;
	__u64 n = 1, *v = bpf_map_lookup_elem(&counted, &one);

	if (v)
		n = *v + 1;
	bpf_map_update_elem(&counted, &one, &n, BPF_ANY);
	bpf_map_update_elem(&replaced, &n, &n, BPF_ANY);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
