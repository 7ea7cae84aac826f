/* What instructions are given: both halves of wide accesses, and operands. */
#include "nvtrace_gpu.bpf.h"

struct wide {
	__u64 value, value2, size;
};

struct given {
	__u64 insn, guarded, operand[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} accesses SEC(".maps"), instructions SEC(".maps");

SEC("cuda.mem/*")
int on_wide(struct nvtrace_mem *ctx)
{
	struct wide w = {ctx->value, ctx->value2, ctx->size};

	bpf_ringbuf_output(&accesses, &w, sizeof(w), 0);
	return 0;
}

SEC("cuda.insn/*:*")
int on_given(struct nvtrace_insn *ctx)
{
	struct given g = {ctx->insn, ctx->guarded, {ctx->operand0, ctx->operand1, ctx->operand2, ctx->operand3}};

	bpf_ringbuf_output(&instructions, &g, sizeof(g), 0);
	return 0;
}

char _license[] SEC("license") = "GPL";
