/* What the threads of a warp do together. */
#include "nvtrace_gpu.bpf.h"

struct got {
	__u64 together, ballot, any, all, leader, shuffled, none, behind;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct got);
} out SEC(".maps");

SEC("cuda.entry/*")
int all_helpers(struct nvtrace_entry *ctx)
{
	__u32 i = ctx->t.block.x * ctx->t.block_dim.x + ctx->t.thread.x;
	__u64 n = 1ULL << 40 | i;
	struct got g = {
		.together = nvtrace_together(),
		.ballot = nvtrace_ballot(i % 3 == 0),
		.any = nvtrace_any(i == 7),
		.all = nvtrace_all(i < 64),
		.leader = nvtrace_leader(),
		.shuffled = nvtrace_shuffle(n, ctx->t.lane ^ 1),
		.none = nvtrace_shuffle(n, 40),
	};

	if (g.any) /* in all of the warp or none of it */
		g.behind = nvtrace_ballot(ctx->t.lane & 1);
	bpf_map_update_elem(&out, &i, &g, BPF_ANY);
	return 0;
}
