/* The values that all multiprocessors have of per-CPU maps, read by one thread. */
#include "nvtrace_gpu.bpf.h"

#define MOST 64

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} array SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, __u64);
} hash SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} sums SEC(".maps");

SEC("cuda.exit/*")
int add_up(struct nvtrace_exit *ctx)
{
	__u64 a = 0, h = 0, n = 0, none = 0;
	__u32 two = 2, seven = 7, eight = 8;

	if (ctx->t.thread.x | ctx->t.block.x)
		return 0;
	for (__u32 sm = 0; sm < MOST; sm++) {
		__u64 *v = bpf_map_lookup_percpu_elem(&array, &two, sm);

		if (v) {
			a += *v;
			n++;
		}
		v = bpf_map_lookup_percpu_elem(&hash, &seven, sm);
		if (v)
			h += *v;
		v = bpf_map_lookup_percpu_elem(&hash, &eight, sm);
		if (v)
			none++;
	}
	two = 0;
	bpf_map_update_elem(&sums, &two, &a, BPF_ANY);
	two = 1;
	bpf_map_update_elem(&sums, &two, &h, BPF_ANY);
	two = 2;
	bpf_map_update_elem(&sums, &two, &n, BPF_ANY);
	two = 3;
	bpf_map_update_elem(&sums, &two, &none, BPF_ANY);
	return 0;
}
