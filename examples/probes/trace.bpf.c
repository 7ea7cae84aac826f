/* One record for each warp that starts, in a ring buffer, and a line for each block. */
#include "nvtrace_gpu.bpf.h"

struct event {
	__u64 time;
	__u64 param0;
	struct nvtrace_dim block;
	__u32 warp;
	__u32 sm;
	char what[12];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} events SEC(".maps");

const volatile __u32 print = 1; /* --set print=0 */

SEC("cuda.entry/*")
int on_entry(struct nvtrace_entry *ctx)
{
	struct event *e;
	__u64 first = 0;

	if (ctx->t.lane != 0)
		return 0;
	bpf_get_func_arg(ctx, 0, &first);
	e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e)
		return 0;
	e->time = ctx->t.time;
	e->param0 = first;
	e->block = ctx->t.block;
	e->warp = ctx->t.thread.x / 32;
	e->sm = ctx->t.sm;
	__builtin_memcpy(e->what, "warp starts", 12);
	bpf_ringbuf_submit(e, 0);
	if (print && ctx->t.thread.x == 0 && ctx->t.thread.y == 0 && ctx->t.thread.z == 0)
		bpf_printk("block %u of %u starts on SM %u\n", ctx->t.block.x, ctx->t.grid.x, ctx->t.sm);
	return 0;
}
