/* Values that all threads change at once. */
#include "nvtrace_gpu.bpf.h"

struct value {
	__u64 sum;   /* += 3, += thread */
	__u64 less;  /* -= 2 */
	__u32 ors;   /* |= 1 << lane */
	__u32 xors;  /* ^= 1 << lane: each twice */
	__u64 ands;  /* &= ~(1 << lane) */
	__u16 half;  /* += 1 */
	__u8 byte;   /* += 1 */
	__u8 bits;   /* |= 1 << (thread % 8) */
	__u32 small; /* -= thread */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct value);
} values SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} product SEC(".maps"), half SEC(".maps");

/* All of these can be made atomic. */
SEC("cuda.entry/*")
int change(struct nvtrace_entry *ctx)
{
	__u32 key = 0, thread = ctx->t.thread.x;
	struct value *v = bpf_map_lookup_elem(&values, &key);

	if (!v)
		return 0;
	v->sum += 3;
	asm volatile("" ::: "memory");
	v->sum += thread;
	v->less -= 2;
	v->ors |= 1u << (thread % 32);
	v->xors ^= 1u << (thread % 32);
	asm volatile("" ::: "memory");
	v->xors ^= 1u << (thread % 32);
	v->ands &= ~(1ull << (thread % 32));
	v->half += 1;
	v->byte += 1;
	v->bits |= 1 << (thread % 8);
	v->small -= thread;
	return 0;
}

/* This can't. */
SEC("cuda.entry/*")
int multiply(struct nvtrace_entry *ctx)
{
	__u32 key = 0;
	__u64 *p = bpf_map_lookup_elem(&product, &key);

	if (p)
		*p *= 3; /* the product */
	return 0;
}

/* Nor this, of which the sum is used. */
SEC("cuda.entry/*")
int used(struct nvtrace_entry *ctx)
{
	__u32 key = 0;
	__u64 *p = bpf_map_lookup_elem(&half, &key);

	if (p && ++*p == 7) /* the sum */
		bpf_printk("seven");
	return 0;
}

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
} places SEC(".maps");

/* Counts by place. */
SEC("cuda.mem/*")
int place(struct nvtrace_mem *ctx)
{
	__u32 key = ctx->t.site;
	__u64 first = 1, *n = bpf_map_lookup_elem(&places, &key);

	if (n)
		*n += 1;
	else
		bpf_map_update_elem(&places, &key, &first, BPF_NOEXIST);
	return 0;
}

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} totals SEC(".maps");

/* A value that is written over itself, by the call that also inserts the first. */
SEC("cuda.entry/*")
int total(struct nvtrace_entry *ctx)
{
	__u32 key = 0;
	__u64 n = ctx->t.thread.x, *p = bpf_map_lookup_elem(&totals, &key);

	if (p) {
		*p += n;
		bpf_map_update_elem(&totals, &key, p, BPF_EXIST);
	} else {
		bpf_map_update_elem(&totals, &key, &n, BPF_NOEXIST);
	}
	return 0;
}

/* The same, where the result is looked at. */
SEC("cuda.entry/*")
int again(struct nvtrace_entry *ctx)
{
	__u32 key = 0;
	__u64 *p = bpf_map_lookup_elem(&totals, &key);

	if (p) {
		*p += 1;
		if (bpf_map_update_elem(&totals, &key, p, BPF_EXIST)) /* over itself */
			bpf_printk("gone");
	}
	return 0;
}
