// A program at step() of nvattach/host/testdata/queues.c: it does what that says with maps that only the
// host has, and writes down what came of it.
typedef unsigned long long u64;
typedef unsigned int u32;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int (*name)[val]
#define __type(name, val) typeof(val) *name

struct pt_regs {
	u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};

static void *(*map_lookup)(void *, const void *) = (void *)1;
static long (*map_update)(void *, const void *, const void *, u64) = (void *)2;
static long (*map_delete)(void *, const void *) = (void *)3;
static long (*map_push)(void *, const void *, u64) = (void *)87;
static long (*map_pop)(void *, void *) = (void *)88;
static long (*map_peek)(void *, void *) = (void *)89;

struct value {
	u64 a, b;
	u32 c;
};

struct prefix {
	u32 bits;
	unsigned char data[4];
};

struct {
	__uint(type, 22); // queue
	__uint(max_entries, 5);
	__type(value, struct value);
} queue SEC(".maps"), together SEC(".maps");

struct {
	__uint(type, 23); // stack
	__uint(max_entries, 5);
	__type(value, struct value);
} stack SEC(".maps");

struct {
	__uint(type, 30); // bloom_filter
	__uint(max_entries, 100);
	__uint(value_size, 8);
	__uint(map_extra, 3);
} bloom SEC(".maps");

struct {
	__uint(type, 11); // lpm_trie
	__uint(max_entries, 40);
	__uint(map_flags, 1);
	__type(key, struct prefix);
	__type(value, u64);
} trie SEC(".maps");

struct {
	__uint(type, 2); // array
	__uint(max_entries, 4000);
	__type(key, u32);
	__type(value, u64);
} results SEC(".maps");

u32 steps;
u64 pushed, popped, sum_in, sum_out;

static long step(u64 what, u64 a, u64 b)
{
	struct value v = {a, ~a, (u32)a ^ 5};
	struct prefix p = {b, {a >> 24, a >> 16, a >> 8, a}};
	u64 *x, bits = a;
	long r;
	switch (what) {
	case 0:
		return map_push(&queue, &v, b & 3);
	case 1:
		r = map_pop(&queue, &v);
		return r ? r : v.b == ~v.a && v.c == ((u32)v.a ^ 5) ? v.a : 1 << 20;
	case 2:
		r = map_peek(&queue, &v);
		return r ? r : v.a;
	case 3:
		return map_push(&stack, &v, b & 3);
	case 4:
		r = map_pop(&stack, &v);
		return r ? r : v.b == ~v.a ? v.a : 1 << 20;
	case 5:
		r = map_peek(&stack, &v);
		return r ? r : v.a;
	case 6:
		return map_push(&bloom, &bits, 0);
	case 7:
		return map_peek(&bloom, &bits);
	case 8:
		return !map_lookup(&bloom, &bits);
	case 9:
		return map_update(&trie, &p, &bits, 0);
	case 10:
		x = map_lookup(&trie, &p);
		return x ? *x : -1;
	case 11:
		return map_delete(&trie, &p);
	}
	return -1000;
}

SEC("uprobe/queues:step")
int on_step(struct pt_regs *r)
{
	u32 n = steps++;
	u64 v = step(r->di, r->si, r->dx);
	map_update(&results, &n, &v, 0);
	return 0;
}

SEC("uprobe/queues:both")
int on_both(struct pt_regs *r)
{
	struct value v = {r->di, ~r->di, 0};
	if (!map_push(&together, &v, 0)) {
		__sync_fetch_and_add(&pushed, 1);
		__sync_fetch_and_add(&sum_in, v.a);
	}
	if (!map_pop(&together, &v)) {
		__sync_fetch_and_add(&popped, 1);
		__sync_fetch_and_add(&sum_out, v.b == ~v.a ? v.a : 1ull << 40);
	}
	return 0;
}

char _license[] SEC("license") = "GPL";
