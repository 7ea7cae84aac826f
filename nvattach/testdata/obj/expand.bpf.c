// Programs with tail calls, loops with callbacks and cookies, at step() of
// nvattach/host/testdata/queues.c, and in kernels.
#include "nvtrace_gpu.bpf.h"

static long (*tail_call)(void *, void *, __u32) = (void *)12;
static __u64 (*attach_cookie)(void *) = (void *)174;
static long (*loop)(__u32, void *, void *, __u64) = (void *)181;

struct regs {
	__u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4000);
	__type(key, __u32);
	__type(value, __u64);
} results SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} steps SEC(".maps");

int adds(struct regs *ctx);
int counts(struct regs *ctx);
int chains(struct regs *ctx);
int picks(struct regs *ctx);
int turns(struct regs *ctx);
int kernel_counts(struct nvtrace_entry *ctx);

struct {
	__uint(type, 3); // prog_array
	__uint(max_entries, 8);
	__uint(key_size, 4);
	int (*values[8])(void);
} programs SEC(".maps") = {
	.values = {[0] = (void *)&adds, [1] = (void *)&counts, [2] = (void *)&chains, [3] = (void *)&picks, [4] = (void *)&adds, [5] = (void *)&turns},
}, others SEC(".maps") = {
	.values = {[0] = (void *)&counts, [1] = (void *)&adds},
}, kernels SEC(".maps") = {
	.values = {[1] = (void *)&kernel_counts},
};

static __always_inline void result(__u64 v)
{
	__u32 zero = 0, *n = bpf_map_lookup_elem(&steps, &zero), i;
	if (!n)
		return;
	i = __sync_fetch_and_add(n, 1);
	bpf_map_update_elem(&results, &i, &v, BPF_ANY);
}

struct sum {
	__u64 of, until;
};

static long add(__u32 i, struct sum *s)
{
	s->of += i * i + 1;
	return i == s->until;
}

SEC("uprobe")
int adds(struct regs *ctx) { result(ctx->si + ctx->dx); return 0; }

SEC("uprobe")
int counts(struct regs *ctx)
{
	struct sum s = {.until = ctx->si};
	long n = loop(ctx->dx, add, &s, ctx->di == 9);
	result(s.of * 1000 + n);
	return 0;
}

SEC("uprobe")
int chains(struct regs *ctx)
{
	tail_call(ctx, &programs, ctx->dx & 1);
	result(99);
	return 0;
}

static long doubles(__u32 i, struct sum *s)
{
	s->of += 2 * i;
	return 0;
}

// The callback is one of two; compilers load both addresses, and jump over one.
SEC("uprobe")
int picks(struct regs *ctx)
{
	struct sum s = {.until = ctx->si};
	long n = loop(ctx->dx, ctx->si & 1 ? add : doubles, &s, 0);
	result(s.of * 1000 + n);
	return 0;
}

// The map is one of two.
SEC("uprobe")
int turns(struct regs *ctx)
{
	void *map = &programs;
	if (ctx->si & 1)
		map = &others;
	tail_call(ctx, map, ctx->dx & 1);
	result(98);
	return 0;
}

SEC("uprobe/queues:step")
int on_step(struct regs *ctx)
{
	__u64 more = attach_cookie(ctx);
	if (ctx->di == 8) {
		result(attach_cookie(ctx));
		return 0;
	}
	tail_call(ctx, &programs, ctx->di & 7);
	result(more + ctx->di);
	return 0;
}

SEC("ureplace/victim:never")
int stands_in(struct regs *ctx) { return 78; }

static long lanes(__u32 i, struct sum *s)
{
	s->of += i;
	return 0;
}

SEC("cuda.entry/*")
int kernel_counts(struct nvtrace_entry *ctx)
{
	struct sum s = {};
	__u32 key = ctx->t.lane;
	loop(ctx->t.lane, lanes, &s, 0);
	bpf_map_update_elem(&results, &key, &s.of, BPF_ANY);
	return 0;
}

SEC("cuda.exit/*")
int in_kernel(struct nvtrace_exit *ctx)
{
	tail_call(ctx, &kernels, ctx->t.thread.x == 0);
	return 0;
}
