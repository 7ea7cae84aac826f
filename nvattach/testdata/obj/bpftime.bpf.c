/* Objects of the shape that bpftime's examples have, in nvtrace's own words: names
 * cuda__…, sections kprobe/ and kretprobe/ with a mangled name, map types of 1500 and
 * more, helpers 501 and up, no context. */
#include "nvtrace_gpu.bpf.h"

static __u64 (*get_globaltimer)(void) = (void *)502;
static __u64 (*get_block_idx)(__u64 *x, __u64 *y, __u64 *z) = (void *)503;
static __u64 (*get_block_dim)(__u64 *x, __u64 *y, __u64 *z) = (void *)504;
static __u64 (*get_thread_idx)(__u64 *x, __u64 *y, __u64 *z) = (void *)505;
static __u64 (*get_sm_id)(void) = (void *)509;

#define ARRAY(map, kind, n, val)        \
	struct {                            \
		__uint(type, kind);         \
		__uint(max_entries, n);     \
		__type(key, __u32);         \
		__type(value, val);         \
	} map SEC(".maps")

ARRAY(per_thread, 1502, 2, __u64);
ARRAY(host_thread, 1512, 3, __u64);
ARRAY(shared, 1503, 2, __u64);
ARRAY(host_shared, 1513, 10, __u64);
ARRAY(mapped, 1504, 2, __u64);
ARRAY(gpu_hash, 1501, 64, __u64);
ARRAY(by_pid, 1, 16, __u64);

struct event {
	__u64 block, thread, time;
};
ARRAY(events, 1527, 16, struct event);

/* Counts per thread, not atomically: the slot is the thread's own. */
SEC("kretprobe/_Z9vectorAddPKfS0_Pf")
int cuda__threads(void)
{
	__u32 key = 1;
	__u64 *n = bpf_map_lookup_elem(&per_thread, &key);

	if (n)
		*n += 1;
	return 0;
}

SEC("kprobe/cuda__Z9vectorAddPKfS0_Pf")
int cuda__counts(void)
{
	__u32 zero = 0, pid = bpf_get_current_pid_tgid() >> 32, slot;
	__u64 x, y, z, one = 1, *n;

	n = bpf_map_lookup_elem(&mapped, &zero);
	if (n)
		__sync_fetch_and_add(n, 1);
	n = bpf_map_lookup_elem(&by_pid, &pid);
	if (n)
		__sync_fetch_and_add(n, 1);
	else if (bpf_map_update_elem(&by_pid, &pid, &one, BPF_NOEXIST)) {
		n = bpf_map_lookup_elem(&by_pid, &pid);
		if (n)
			__sync_fetch_and_add(n, 1);
	}
	get_thread_idx(&x, &y, &z);
	slot = x % 10;
	n = bpf_map_lookup_elem(&host_shared, &slot);
	if (n)
		__sync_fetch_and_add(n, 1);
	bpf_map_update_elem(&host_thread, &zero, &x, BPF_ANY);
	slot = x % 64;
	bpf_map_update_elem(&gpu_hash, &slot, &x, BPF_ANY);
	return 0;
}

SEC("kprobe/_Z9vectorAddPKfS0_Pf")
int cuda__events(void)
{
	struct event e = {};
	__u64 x, y, z, bx, by, bz;

	get_thread_idx(&x, &y, &z);
	get_block_idx(&bx, &by, &bz);
	if (x != 0)
		return 0;
	e.block = bx;
	e.thread = x;
	e.time = get_globaltimer();
	bpf_perf_event_output(0, &events, 0, &e, sizeof(e));
	bpf_printk("block %lu on SM %u\n", bx, get_sm_id());
	return 0;
}

SEC("kprobe/__memcapture")
int cuda__accesses(const char *line)
{
	__u32 store = 0;
	__u64 *n;

	/* The context is the instruction's text. */
	if (line[0] == 's' && line[1] == 't')
		store = 1;
	n = bpf_map_lookup_elem(&shared, &store);
	if (n)
		__sync_fetch_and_add(n, 1);
	return 0;
}

ARRAY(vec, 1503, 256, __u32);

SEC("kprobe/__directly_run")
int cuda__square(void)
{
	__u64 x, y, z, bx, by, bz, d, dy, dz;
	__u32 i, v;

	get_thread_idx(&x, &y, &z);
	get_block_idx(&bx, &by, &bz);
	get_block_dim(&d, &dy, &dz);
	i = bx * d + x;
	__u32 *p = bpf_map_lookup_elem(&vec, &i);

	if (!p)
		return 0;
	v = *p * *p;
	bpf_map_update_elem(&vec, &i, &v, BPF_ANY);
	return 0;
}

/* For the host, and for a kernel of Linux: not run. */
SEC("uprobe/./app:cudaLaunchKernel")
int on_launch(void *ctx)
{
	return 0;
}

SEC("kprobe/do_exit")
int no_gpu_program(void *ctx)
{
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
