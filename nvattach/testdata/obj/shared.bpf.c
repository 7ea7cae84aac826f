// Programs on the host and in kernels that share maps, for tests.
#include "nvtrace_gpu.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 8);
	__type(key, __u32);
	__type(value, __u64);
} board SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} pairs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} apart SEC(".maps");

__u64 launched; // written on the host, read in kernels

// What is in board.
enum { LAUNCHES, SINCE, THREADS, SOON, FAR, SEEN, STRANGE };

static __always_inline void add(__u32 i, __u64 n)
{
	__u64 *v = bpf_map_lookup_elem(&board, &i);
	if (v)
		__sync_fetch_and_add(v, n);
}

static __always_inline void both(void)
{
	__u32 zero = 0;
	__u64 *v = bpf_map_lookup_elem(&apart, &zero);
	if (v)
		*v += 1;
}

SEC("cuda.api/cuLaunchKernel")
int before_launch(void *ctx)
{
	__u32 since = SINCE, key, gone = 5000;
	__u64 now = bpf_ktime_get_ns();

	add(LAUNCHES, 1);
	bpf_map_update_elem(&board, &since, &now, BPF_ANY);
	key = 1000 + __sync_fetch_and_add(&launched, 1);
	bpf_map_update_elem(&pairs, &key, &now, BPF_NOEXIST);
	bpf_map_update_elem(&pairs, &gone, &now, BPF_ANY);
	both();
	return 0;
}

SEC("cuda.apiret/cuLaunchKernel")
int after_launch(void *ctx)
{
	__u32 key = THREADS;
	__u64 *v = bpf_map_lookup_elem(&board, &key);

	key = SEEN;
	if (v)
		bpf_map_update_elem(&board, &key, v, BPF_ANY);
	return 0;
}

SEC("cuda.entry/*")
int in_kernel(struct nvtrace_entry *ctx)
{
	__u64 now = bpf_ktime_get_ns(), *v, one = 1;
	__u32 key = SINCE;

	add(THREADS, 1);
	v = bpf_map_lookup_elem(&board, &key);
	if (!v)
		return 0;
	add(now - *v + 1000000000ull < 11000000000ull ? SOON : FAR, 1); // clocks are compared to a second
	key = 1000 + launched - 1;
	if (!bpf_map_lookup_elem(&pairs, &key))
		add(STRANGE, 1);
	if (ctx->t.thread.x)
		return 0;
	key = ctx->t.block.x;
	v = bpf_map_lookup_elem(&pairs, &key);
	if (v)
		__sync_fetch_and_add(v, 1);
	else if (bpf_map_update_elem(&pairs, &key, &one, BPF_NOEXIST))
		add(STRANGE, 1);
	key = 5000;
	bpf_map_delete_elem(&pairs, &key);
	both();
	return 0;
}
