/*
 * How long a launch takes, from the call on the host to the kernel's first thread, and from there to
 * that thread's end: the map launches has the three times of each, by one clock.
 *
 *	nvtrace --attach latency.bpf.o --at on_launch=./app:cudaLaunchKernel --at on_done=./app:FUNCTION -- ./app
 *
 * on_launch is put at the function that launches, on_done, if wanted, at one that the program
 * calls when a kernel is over: it prints the times of the latest launch. Launches must not
 * overlap: a kernel takes the latest for its own.
 */
#include "nvtrace_gpu.bpf.h"

#define MOST 4096

struct launch {
	__u64 called, began, ended; /* ns of CLOCK_MONOTONIC */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MOST);
	__type(key, __u32);
	__type(value, struct launch);
} launches SEC(".maps");

__u32 launched; /* written on the host, read in kernels */

static __always_inline struct launch *latest(void)
{
	__u32 i = launched % MOST;
	return bpf_map_lookup_elem(&launches, &i);
}

SEC("uprobe")
int on_launch(void *ctx)
{
	__u32 i = ++launched % MOST;
	struct launch *l = bpf_map_lookup_elem(&launches, &i);
	if (l)
		l->called = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int first(const struct nvtrace_thread *t)
{
	return !(t->block.x | t->block.y | t->block.z | t->thread.x | t->thread.y | t->thread.z);
}

SEC("cuda.entry/*")
int on_begin(struct nvtrace_entry *ctx)
{
	struct launch *l;
	if (first(&ctx->t) && (l = latest()))
		l->began = bpf_ktime_get_ns();
	return 0;
}

SEC("cuda.exit/*")
int on_end(struct nvtrace_exit *ctx)
{
	struct launch *l;
	if (first(&ctx->t) && (l = latest()))
		l->ended = bpf_ktime_get_ns();
	return 0;
}

SEC("uprobe")
int on_done(void *ctx)
{
	struct launch *l = latest();
	if (l)
		bpf_printk("launch %llu %llu %llu", l->called, l->began, l->ended);
	return 0;
}

char _license[] SEC("license") = "GPL";
