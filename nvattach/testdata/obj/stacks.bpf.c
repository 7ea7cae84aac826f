// Programs at functions of nvattach/host/testdata/stacks.c: who has called them, and a map
// that keeps what was used of late.
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
static long (*stack_id)(void *, void *, u64) = (void *)27;
static long (*get_stack)(void *, void *, u32, u64) = (void *)67;
static u32 (*log2_of)(u64) = (void *)600;
static void (*raise_to)(u64 *, u64) = (void *)601;
static u32 (*bits)(u64) = (void *)605;

struct {
	__uint(type, 7); // stack_trace
	__uint(max_entries, 1000);
	__uint(key_size, 4);
	__uint(value_size, 16 * 8);
} stacks SEC(".maps");

struct {
	__uint(type, 1);
	__uint(max_entries, 100);
	__type(key, u32);
	__type(value, u64);
} by_stack SEC(".maps");

struct {
	__uint(type, 9); // lru_hash
	__uint(max_entries, 100);
	__type(key, u32);
	__type(value, u64);
} recent SEC(".maps");

u64 size, first, second, third, returned_first, skipped, highest, numbers, refused, found;

SEC("uprobe/stacks:inner")
int on_inner(struct pt_regs *r)
{
	u64 list[8] = {}, one = 1, *v;
	size = get_stack(r, list, sizeof list, 0);
	first = list[0];
	second = list[1];
	third = list[2];
	get_stack(r, list, 8, 2);
	skipped = list[0];
	u32 id = stack_id(r, &stacks, 1 << 8);
	if ((int)id < 0)
		return 0;
	v = map_lookup(&by_stack, &id);
	if (v)
		*v += 1;
	else
		map_update(&by_stack, &id, &one, 1);
	return 0;
}

SEC("uretprobe/stacks:inner")
int on_inner_return(struct pt_regs *r)
{
	u64 list[2] = {};
	get_stack(r, list, sizeof list, 0);
	returned_first = list[0];
	return 0;
}

SEC("uretprobe/stacks:outer")
int on_outer_return(struct pt_regs *r)
{
	return 0;
}

SEC("uprobe/stacks:number")
int on_number(struct pt_regs *r)
{
	u32 key = r->di, hot = 7;
	u64 v = key, *p;
	numbers++;
	raise_to(&highest, log2_of(r->di) + bits(r->di));
	if (map_update(&recent, &key, &v, 0))
		refused++;
	p = map_lookup(&recent, &hot);
	if (p && *p == 7)
		found++;
	return 0;
}

char _license[] SEC("license") = "GPL";
