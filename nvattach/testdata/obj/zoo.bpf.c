// Programs at the functions of nvattach/host/testdata/zoo.cc that begin with p_: they count
// entries and returns by function.
typedef unsigned long long u64;
typedef unsigned int u32;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int (*name)[val]
#define __type(name, val) typeof(val) *name

struct pt_regs {
	u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};

static void *(*map_lookup)(void *, const void *) = (void *)1;
static long (*map_update)(void *, const void *, const void *, u64) = (void *)2;
static long (*map_delete)(void *, const void *) = (void *)3;
static u64 (*pid_tgid)(void) = (void *)14;
static u64 (*func_ip)(void *) = (void *)173;

struct {
	__uint(type, 1); // hash
	__uint(max_entries, 256);
	__type(key, u64);
	__type(value, u64);
} entries SEC(".maps"), returns SEC(".maps"), last SEC(".maps");

u64 all_entries, all_returns, wrong;

static void count(void *map, u64 *n, u64 ip)
{
	u64 zero = 0, *v = map_lookup(map, &ip);
	if (!v) {
		map_update(map, &ip, &zero, 1);
		v = map_lookup(map, &ip);
	}
	if (v)
		__sync_fetch_and_add(v, 1);
	*n += 1;
}

SEC("uprobe/zoo:p_*")
int zoo_enter(struct pt_regs *r)
{
	u64 id = pid_tgid(), ip = func_ip(r);
	count(&entries, &all_entries, ip);
	map_update(&last, &id, &ip, 0);
	if (ip != r->ip)
		wrong++;
	return 0;
}

SEC("uretprobe/zoo:p_*")
int zoo_return(struct pt_regs *r)
{
	u64 id = pid_tgid();
	count(&returns, &all_returns, func_ip(r));
	map_delete(&last, &id);
	return 0;
}

char _license[] SEC("license") = "GPL";
