/*
 * Launches as the host makes them: how often, by kernel, grid, block and bytes of shared memory.
 *
 *	nvtrace --attach launches.bpf.o -- ./app
 */
#define NVTRACE_KERNELS
#include "nvtrace_gpu.bpf.h"

struct kind {
	struct nvtrace_name kernel;
	__u32 grid[3], block[3], shared;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct kind);
	__type(value, __u64);
} launches SEC(".maps");

static __always_inline int count(void *f, const struct nvtrace_launch *l)
{
	struct kind k = {.shared = l->shared};
	struct nvtrace_name *name = nvtrace_kernel(f);
	__u64 none = 0, *n;
	if (name)
		k.kernel = *name;
	__builtin_memcpy(k.grid, l->grid, sizeof k.grid);
	__builtin_memcpy(k.block, l->block, sizeof k.block);
	n = bpf_map_lookup_elem(&launches, &k);
	if (!n) { /* or another thread puts it there meanwhile */
		bpf_map_update_elem(&launches, &k, &none, BPF_NOEXIST);
		n = bpf_map_lookup_elem(&launches, &k);
	}
	if (n)
		__sync_fetch_and_add(n, 1);
	return 0;
}

SEC("cuda.api/cuLaunchKernel")
int NVTRACE_CALL(on_launch, void *f)
{
	struct nvtrace_launch l = {};
	nvtrace_launch_of(ctx, &l);
	return count(f, &l);
}

SEC("cuda.api/cuLaunchKernelEx")
int NVTRACE_CALL(on_launch_ex, const void *config, void *f)
{
	struct nvtrace_launch l = {};
	nvtrace_launch_ex(ctx, &l);
	return count(f, &l);
}

char _license[] SEC("license") = "GPL";
