/* Kernel parameters, per-CPU maps, the value of accesses, device functions. */
#include "nvtrace_gpu.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} per_sm SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
} per_sm_hash SEC(".maps");

struct access {
	__u64 addr, value;
	__u32 size, line;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} accesses SEC(".maps");

__u64 params[8];
__u64 nparams;
const volatile __u32 wanted = 32;
__u32 calls;

SEC("cuda.entry/*")
int on_entry(struct nvtrace_entry *ctx)
{
	__u32 zero = 0, lane = ctx->t.lane;
	__u64 *n, none = 0;

	n = bpf_map_lookup_elem(&per_sm, &zero);
	if (n && lane < wanted)
		__sync_fetch_and_add(n, 1);
	n = bpf_map_lookup_elem(&per_sm_hash, &lane);
	if (!n) {
		bpf_map_update_elem(&per_sm_hash, &lane, &none, BPF_NOEXIST);
		n = bpf_map_lookup_elem(&per_sm_hash, &lane);
	}
	if (n)
		__sync_fetch_and_add(n, 1);
	nparams = bpf_get_func_arg_cnt(ctx);
	bpf_get_func_arg(ctx, 0, &none);
	params[0] = none;
	bpf_get_func_arg(ctx, 1, &none);
	params[1] = none;
	params[7] = bpf_get_func_arg(ctx, 99, &none);
	return 0;
}

SEC("cuda.mem/*")
int on_access(struct nvtrace_mem *ctx)
{
	struct access a = {ctx->addr, ctx->value, ctx->size, ctx->line};

	if (ctx->space == NVTRACE_GLOBAL && ctx->t.thread.x == 1 && ctx->t.block.x == 0)
		bpf_ringbuf_output(&accesses, &a, sizeof(a), 0);
	return 0;
}

SEC("cuda.entry/func:*")
int on_call(struct nvtrace_entry *ctx)
{
	__sync_fetch_and_add(&calls, 1);
	return 0;
}
