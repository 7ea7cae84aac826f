/* What %s of bpf_printk points at; more texts than there is room for at once. */
#include "nvtrace_gpu.bpf.h"

struct named {
	__u64 n;
	char name[8];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct named);
} names SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct named);
} table SEC(".maps");

char variable[16] = "variable";
const char fixed[16] = "constant";

SEC("cuda.entry/*")
int on_entry(struct nvtrace_entry *ctx)
{
	struct named s = {1, "hashed"}, *v;
	char own[8] = "own";
	__u32 one = 1;

	if (ctx->t.thread.x || ctx->t.block.x)
		return 0;
	bpf_printk("%s, %s, %s\n", "literal", fixed, variable);
	bpf_printk("%s\n", ctx->t.grid.x > 1 ? "many" : "one");
	v = bpf_map_lookup_elem(&table, &one);
	bpf_printk("no entry: %p\n", v);
	bpf_map_update_elem(&table, &one, &s, BPF_ANY);
	v = bpf_map_lookup_elem(&table, &one);
	if (v)
		bpf_printk("%s\n", v->name);
	v = bpf_map_lookup_elem(&names, &one);
	if (v) {
		v->n++;
		bpf_printk("%s\n", v->name);
	}
	bpf_printk("%s\n", own);
	return 0;
}

__u32 runs;

SEC("kprobe/__directly_run")
int cuda__print(void *ctx)
{
	bpf_printk("run %u\n", __sync_fetch_and_add(&runs, 1));
	return 0;
}
