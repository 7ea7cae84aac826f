// Programs that tell who has called: at the entry and the return of a function of
// nvattach/host/testdata/callers.c, and at a system call.
typedef unsigned long long u64;
typedef unsigned int u32;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int (*name)[val]

static long (*get_stack)(void *, void *, u32, u64) = (void *)67;
static long (*ring_output)(void *, void *, u64, u64) = (void *)130;

struct {
	__uint(type, 27); // ringbuf
	__uint(max_entries, 1 << 22);
} lists SEC(".maps");

struct list {
	u64 where, size;
	u64 at[30];
};

static inline int tell(void *ctx, u64 where)
{
	struct list l = {};
	l.where = where;
	l.size = get_stack(ctx, l.at, sizeof l.at, 0);
	ring_output(&lists, &l, sizeof l, 0);
	return 0;
}

SEC("uprobe/callers:here")
int on_entry(void *ctx) { return tell(ctx, 1); }

SEC("uretprobe/callers:here")
int on_return(void *ctx) { return tell(ctx, 2); }

SEC("uretprobe/callers:between") // whose return address is another while it runs
int on_between(void *ctx) { return 0; }

SEC("tracepoint/syscalls/sys_enter_getpgid")
int on_call(void *ctx) { return tell(ctx, 3); }

char _license[] SEC("license") = "GPL";
