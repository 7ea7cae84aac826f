/* What the benchmarks on a GPU measure, in the shapes in which people write it. */
#include "nvtrace_gpu.bpf.h"

static __u64 (*get_globaltimer)(void) = (void *)502;

#define ARRAY(map, kind, n, val)        \
	struct {                            \
		__uint(type, kind);         \
		__uint(max_entries, n);     \
		__type(key, __u32);         \
		__type(value, val);         \
	} map SEC(".maps")

struct access {
	__u64 addr;
	__u32 size, kind;
};

ARRAY(updated, 1503, 1, __u64);
ARRAY(flagged, 1503, 1, __u64);
ARRAY(traced, 1503, 4, __u64);
ARRAY(counted, 1502, 1, __u64);
ARRAY(times, 1502, 1, __u64);
ARRAY(records, 1502, 4, struct access);

/* A count that is written back with an update. */
SEC("kretprobe/_Z9vectorAddPKfS0_Pf")
int cuda__update(void)
{
	__u32 key = 0;
	__u64 next = 1, *n = bpf_map_lookup_elem(&updated, &key);

	if (n)
		next = *n + 1;
	bpf_map_update_elem(&updated, &key, &next, BPF_ANY);
	return 0;
}

/* The same value from every thread. */
SEC("kretprobe/_Z9vectorAddPKfS0_Pf")
int cuda__flag(void)
{
	__u32 key = 0;
	__u64 one = 1;

	bpf_map_update_elem(&flagged, &key, &one, BPF_ANY);
	return 0;
}

/* A count of accesses that is not atomic. */
SEC("kprobe/__memcapture")
int cuda__memtrace(void)
{
	__u32 key = 0;
	__u64 *n = bpf_map_lookup_elem(&traced, &key);

	if (n)
		*n = *n + 1;
	return 0;
}

SEC("kretprobe/_Z9vectorAddPKfS0_Pf")
int cuda__threadhist(void)
{
	__u32 key = 0;
	__u64 *n = bpf_map_lookup_elem(&counted, &key);

	if (n)
		*n += 1;
	return 0;
}

SEC("kretprobe/_Z9vectorAddPKfS0_Pf")
int cuda__store(void)
{
	__u32 key = 0;
	__u64 now = get_globaltimer();

	bpf_map_update_elem(&times, &key, &now, BPF_ANY);
	return 0;
}

/* 16 bytes for each access of a thread, at a place of its own. */
SEC("cuda.mem/*")
int on_access(struct nvtrace_mem *ctx)
{
	struct access a = {ctx->addr, ctx->size, ctx->kind};
	__u32 key = ctx->t.site & 3;

	bpf_map_update_elem(&records, &key, &a, BPF_ANY);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
