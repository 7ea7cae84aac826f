// speed.h as eBPF, at the functions of nvattach/host/testdata/speed.c, and changes of maps.
#include "nvtrace_gpu.bpf.h"
#include "speed.h"

struct regs {
	__u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};

static long (*override_return)(void *, __u64) = (void *)58;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct words);
} table SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

SEC("uprobe/speed:probed_mix")
int on_mix(struct regs *ctx) { override_return(ctx, mix(ctx->di)); return 0; }

SEC("uprobe/speed:probed_branches")
int on_branches(struct regs *ctx) { override_return(ctx, branches(ctx->di)); return 0; }

SEC("uprobe/speed:probed_memory")
int on_memory(struct regs *ctx)
{
	__u32 zero = 0;
	struct words *t = bpf_map_lookup_elem(&table, &zero);
	if (t)
		override_return(ctx, memory(t, ctx->di));
	return 0;
}

SEC("uprobe/speed:probed_counts")
int on_counts(struct regs *ctx)
{
	__u64 x = ctx->di, sum = 0;
	for (int i = 0; i < ROUNDS; i++) {
		__u32 key = (x >> 8) & 255;
		__u64 *v = bpf_map_lookup_elem(&counts, &key);
		if (v)
			sum += __sync_fetch_and_add(v, x & 15);
		x = x * 6364136223846793005ull + 1;
	}
	override_return(ctx, sum);
	return 0;
}
