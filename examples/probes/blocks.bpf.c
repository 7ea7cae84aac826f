/* Instructions that threads execute, counted by basic block, and loads from global
 * memory, counted by their instructions. */
#include "nvtrace_gpu.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u64);
} block_runs SEC(".maps");

__u64 instructions;
__u64 global_loads;

SEC("cuda.block/*")
int on_block(struct nvtrace_block *ctx)
{
	__u32 id = ctx->block_id;
	__u64 *n = bpf_map_lookup_elem(&block_runs, &id);

	if (n)
		__sync_fetch_and_add(n, 1);
	__sync_fetch_and_add(&instructions, ctx->insns);
	return 0;
}

SEC("cuda.insn/*:ld.global*")
int on_load(struct nvtrace_insn *ctx)
{
	__sync_fetch_and_add(&global_loads, 1);
	return 0;
}
