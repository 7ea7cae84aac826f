/* Hashes that drop keys that were not used of late: with room enough, with one thread, and
 * with all threads at once. */
#include "nvtrace_gpu.bpf.h"

#define LRU(map, kind, n)           \
	struct {                    \
		__uint(type, kind); \
		__uint(max_entries, n); \
		__type(key, __u32); \
		__type(value, __u64); \
	} map SEC(".maps")

LRU(roomy, BPF_MAP_TYPE_LRU_HASH, 64);
LRU(recent, BPF_MAP_TYPE_LRU_HASH, 64);
LRU(crowded, BPF_MAP_TYPE_LRU_HASH, 256);
LRU(apart, BPF_MAP_TYPE_LRU_PERCPU_HASH, 64);

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 8);
	__type(key, __u32);
	__type(value, __u64);
} results SEC(".maps");

static __always_inline void add(__u32 slot)
{
	__u64 *v = bpf_map_lookup_elem(&results, &slot);

	if (v)
		__sync_fetch_and_add(v, 1);
}

static __always_inline void count_in(void *map, __u32 key)
{
	__u64 *v = bpf_map_lookup_elem(map, &key), zero = 0;

	if (!v) {
		bpf_map_update_elem(map, &key, &zero, BPF_NOEXIST);
		v = bpf_map_lookup_elem(map, &key);
	}
	if (v)
		__sync_fetch_and_add(v, 1);
}

/* As many keys as there is room for: nothing goes. */
SEC("cuda.entry/*")
int count_keys(struct nvtrace_entry *ctx)
{
	count_in(&roomy, ctx->t.thread.x % 64);
	count_in(&apart, ctx->t.thread.x % 64);
	return 0;
}

/* One thread inserts a thousand keys, and uses one of them all the while. */
SEC("cuda.entry/*")
int keep_used(struct nvtrace_entry *ctx)
{
	__u32 hot = 5000;
	__u64 value = 1;

	if (ctx->t.thread.x || ctx->t.block.x)
		return 0;
	bpf_map_update_elem(&recent, &hot, &value, BPF_ANY);
	for (__u32 i = 0; i < 1000; i++) {
		value = 3 * i;
		add(bpf_map_update_elem(&recent, &i, &value, BPF_ANY) ? 1 : 0);
		add(bpf_map_lookup_elem(&recent, &hot) ? 2 : 3);
	}
	return 0;
}

/* Each thread inserts a key of its own, and deletes some. */
SEC("cuda.entry/*")
int crowd(struct nvtrace_entry *ctx)
{
	__u32 key = ctx->t.block.x * ctx->t.block_dim.x + ctx->t.thread.x;
	__u64 value = key * 7ull + 1;

	add(bpf_map_update_elem(&crowded, &key, &value, BPF_ANY) ? 5 : 4);
	if (key % 16 == 3)
		bpf_map_delete_elem(&crowded, &key);
	return 0;
}

char _license[] SEC("license") = "GPL";
