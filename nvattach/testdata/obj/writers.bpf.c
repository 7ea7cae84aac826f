// Programs that change a hash at functions of nvattach/host/testdata/writers.c.
typedef unsigned long long u64;
typedef unsigned int u32;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int (*name)[val]
#define __type(name, val) typeof(val) *name

static long (*update)(void *, const void *, const void *, u64) = (void *)2;
static long (*del)(void *, const void *) = (void *)3;

struct regs {
	u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};

struct {
	__uint(type, 1); // hash
	__uint(max_entries, 64);
	__type(key, u32);
	__type(value, u64[16]);
} keys SEC(".maps");

u64 failed;

SEC("uprobe/writers:put")
int on_put(struct regs *c)
{
	u32 key = c->di;
	u64 value[16] = {key};
	if (update(&keys, &key, value, 0))
		__sync_fetch_and_add(&failed, 1);
	return 0;
}

SEC("uprobe/writers:drop")
int on_drop(struct regs *c)
{
	u32 key = c->di;
	del(&keys, &key);
	return 0;
}

char _license[] SEC("license") = "GPL";
