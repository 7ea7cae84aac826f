// Programs on the host and in kernels that count together, for tests: none of them reads what is
// in counts, calls, wide and marks.
#include "nvtrace_gpu.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

struct both {
	__u64 sum;
	__u32 host, kernel;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct both);
} wide SEC(".maps");

struct mark {
	__u64 highest, bits;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct mark);
} marks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} watched SEC(".maps");

__u64 calls SEC(".data.counted") = 5; // counted by both, and not from 0
__u64 limit = 1000000;                // read, in another section

static __always_inline void add(__u32 i, __u64 n)
{
	__u64 *v = bpf_map_lookup_elem(&counts, &i);
	if (v)
		__sync_fetch_and_add(v, n);
}

static __always_inline void mark(__u32 i, __u64 n, __u64 bit)
{
	struct mark *v = bpf_map_lookup_elem(&marks, &i);
	if (v) {
		nvtrace_max(&v->highest, n);
		v->bits |= 1ull << bit;
	}
}

static __always_inline void watch(void)
{
	__u32 zero = 0;
	__u64 *v = bpf_map_lookup_elem(&watched, &zero);
	if (v)
		__sync_fetch_and_add(v, 1);
}

SEC("cuda.api/cuLaunchKernel")
int before_launch(void *ctx)
{
	__u32 zero = 0;
	struct both *v = bpf_map_lookup_elem(&wide, &zero);

	add(0, 1000000);
	add(1, 1);
	if (v) {
		v->sum += 7;
		v->host++;
	}
	mark(0, 100, 40);
	mark(1, 200, 63);
	calls++;
	watch();
	return 0;
}

SEC("uprobe")
int on_host(void *ctx)
{
	add(3, 1);
	return 0;
}

SEC("cuda.entry/*")
int in_kernel(struct nvtrace_entry *ctx)
{
	__u32 zero = 0, one = 1;
	struct both *v = bpf_map_lookup_elem(&wide, &zero);
	__u64 *w = bpf_map_lookup_elem(&watched, &zero);

	add(0, 1);
	add(2, ctx->t.thread.x);
	add(3, 1000000);
	if (v) {
		v->sum += 1;
		v->kernel++;
	}
	v = bpf_map_lookup_elem(&wide, &one);
	if (v)
		v->sum -= 1; // below 0
	mark(0, ctx->t.block.x, ctx->t.thread.x & 31); // more than the host has
	mark(1, ctx->t.thread.x & 127, 0);             // less
	calls++;
	if (w && *w > limit) // which is why watched stays one
		watch();
	return 0;
}
