// Counts threads by kernel launch, and allocations of GPU memory by size.
//
//	make
//	nvtrace --attach probe.bpf.o -- ./app
#include "nvtrace_host.bpf.h" // has nvtrace_gpu.bpf.h, too

// Threads by launch.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, __u64);
} threads SEC(".maps");

// Calls by the power of two of the bytes that they ask for.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
} sizes SEC(".maps");

// Runs in every thread of every kernel, on the GPU.
SEC("cuda.entry/*")
int on_entry(struct nvtrace_entry *ctx)
{
	__u64 launch = nvtrace_launch_id(), one = 1;
	__u64 *n = bpf_map_lookup_elem(&threads, &launch);

	if (n)
		__sync_fetch_and_add(n, 1);
	else if (bpf_map_update_elem(&threads, &launch, &one, BPF_NOEXIST) && (n = bpf_map_lookup_elem(&threads, &launch)))
		__sync_fetch_and_add(n, 1); // another thread was first
	return 0;
}

// Runs on the host, before each call of cuMemAlloc.
SEC("cuda.api/cuMemAlloc")
int NVTRACE_CALL(on_alloc, void *to, __u64 bytes)
{
	__u32 key = nvtrace_log2(bytes);
	__u64 *n = bpf_map_lookup_elem(&sizes, &key);

	if (n)
		__sync_fetch_and_add(n, 1);
	return 0;
}

char _license[] SEC("license") = "GPL";
