// Programs on the host, for tests: at functions of nvattach/host/testdata/victim.c, and at
// system calls.
typedef unsigned long long u64;
typedef unsigned int u32;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int (*name)[val]
#define __type(name, val) typeof(val) *name

struct pt_regs {
	u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};

struct sys_enter {
	unsigned short type;
	unsigned char flags, preempt;
	int pid;
	long id;
	u64 args[6];
};

struct sys_exit {
	u64 head;
	long id;
	long ret;
};

static void *(*map_lookup)(void *, const void *) = (void *)1;
static long (*map_update)(void *, const void *, const void *, u64) = (void *)2;
static long (*map_delete)(void *, const void *) = (void *)3;
static u64 (*ktime_get_ns)(void) = (void *)5;
static long (*trace_printk)(const char *, u32, ...) = (void *)6;
static u32 (*smp_processor_id)(void) = (void *)8;
static u64 (*pid_tgid)(void) = (void *)14;
static long (*get_comm)(void *, u32) = (void *)16;
static long (*override_return)(void *, u64) = (void *)58;
static long (*probe_read_user)(void *, u32, const void *) = (void *)112;
static long (*probe_read_user_str)(void *, u32, const void *) = (void *)114;
static void *(*ringbuf_reserve)(void *, u64, u64) = (void *)131;
static void (*ringbuf_submit)(void *, u64) = (void *)132;
static void (*ringbuf_discard)(void *, u64) = (void *)133;
static u64 (*func_ip)(void *) = (void *)173;

struct {
	__uint(type, 1); // hash
	__uint(max_entries, 64);
	__type(key, u32);
	__type(value, u64);
} calls SEC(".maps");

struct {
	__uint(type, 6); // percpu_array
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, u64);
} by_cpu SEC(".maps");

struct {
	__uint(type, 1);
	__uint(max_entries, 256);
	__type(key, u64);
	__type(value, u64);
} begin SEC(".maps");

struct event {
	u64 length;
	char text[16];
	char comm[16];
	u64 first;
	long missing;
};

struct {
	__uint(type, 27); // ringbuf
	__uint(max_entries, 4096);
} events SEC(".maps");

u64 arguments, results, highest, took, open, written;

static void count(u32 what)
{
	u64 one = 1, *v = map_lookup(&calls, &what);
	if (v)
		__sync_fetch_and_add(v, 1);
	else
		map_update(&calls, &what, &one, 1);
	u32 zero = 0;
	v = map_lookup(&by_cpu, &zero);
	if (v)
		*v += 1;
}

SEC("uprobe/./victim:add")
int add_enter(struct pt_regs *r)
{
	u64 id = pid_tgid(), now = ktime_get_ns();
	count(1);
	__sync_fetch_and_add(&arguments, (int)r->di); // threads run this at once
	map_update(&begin, &id, &now, 0);
	return 0;
}

SEC("uretprobe/./victim:add")
int add_return(struct pt_regs *r)
{
	u64 id = pid_tgid(), *t = map_lookup(&begin, &id);
	count(2);
	__sync_fetch_and_add(&results, (int)r->ax);
	if (t && ktime_get_ns() >= *t)
		__sync_fetch_and_add(&took, 1);
	map_delete(&begin, &id);
	return 0;
}

SEC("uprobe/victim:fact")
int fact_enter(struct pt_regs *r)
{
	count(3);
	return 0;
}

SEC("uretprobe/victim:fact")
int fact_return(struct pt_regs *r)
{
	count(4);
	if (r->ax > highest)
		highest = r->ax;
	return 0;
}

SEC("uprobe/victim:tiny")
int tiny_enter(struct pt_regs *r)
{
	count(5);
	return 0;
}

SEC("uretprobe/victim:tiny")
int tiny_return(struct pt_regs *r)
{
	count(6);
	return 0;
}

SEC("uprobe/victim:leaves")
int leaves_enter(struct pt_regs *r)
{
	count(7);
	return 0;
}

SEC("uretprobe/victim:leaves")
int leaves_return(struct pt_regs *r)
{
	count(8);
	return 0;
}

SEC("uprobe/victim:say")
int say_enter(struct pt_regs *r)
{
	struct event *e = ringbuf_reserve(&events, sizeof *e, 0);
	if (!e)
		return 0;
	e->length = probe_read_user_str(e->text, sizeof e->text, (void *)r->di);
	get_comm(e->comm, sizeof e->comm);
	probe_read_user(&e->first, 8, (void *)r->di);
	u64 nothing = 1;
	e->missing = probe_read_user(&nothing, 8, (void *)16);
	if (nothing)
		e->missing = 0;
	ringbuf_submit(e, 0);
	void *other = ringbuf_reserve(&events, 8, 0);
	if (other)
		ringbuf_discard(other, 0);
	static const char format[] = "say %s %d\n";
	trace_printk(format, sizeof format, r->di, func_ip(r) == r->ip);
	return 0;
}

SEC("uprobe/victim:never")
int never_enter(struct pt_regs *r)
{
	count(9);
	override_return(r, 77);
	return 0;
}

SEC("uretprobe/victim:never")
int never_return(struct pt_regs *r)
{
	if (r->ax == 77)
		count(10);
	return 0;
}

SEC("uprobe/libvictim.so:in_library")
int library_enter(struct pt_regs *r)
{
	count(11);
	return 0;
}

SEC("uprobe/victim:many_*")
int many_enter(struct pt_regs *r)
{
	count(12);
	return 0;
}

SEC("uprobe/victim:space::method")
int method_enter(struct pt_regs *r)
{
	count(13);
	return 0;
}

SEC("uprobe/victim:not_there")
int missing_enter(struct pt_regs *r)
{
	count(99);
	return 0;
}

SEC("tp/syscalls/sys_enter_write")
int write_enter(struct sys_enter *c)
{
	count(20);
	if (c->id == 1 && c->args[0] == 1)
		written += c->args[2];
	return 0;
}

SEC("tracepoint/syscalls/sys_exit_write")
int write_exit(struct sys_exit *c)
{
	if (c->ret > 0)
		count(21);
	return 0;
}

SEC("tracepoint/syscalls/sys_enter_getppid")
int getppid_enter(struct sys_enter *c)
{
	count(22);
	override_return(c, 4242);
	return 0;
}

SEC("tracepoint/syscalls/sys_exit_getppid")
int getppid_exit(struct sys_exit *c)
{
	if (c->ret == 4242)
		count(23);
	return 0;
}

SEC("tracepoint/raw_syscalls/sys_enter")
int any_enter(struct sys_enter *c)
{
	count(24);
	if (c->id == 39) // getpid
		count(25);
	return 0;
}

SEC("tracepoint/raw_syscalls/sys_exit")
int any_exit(struct sys_exit *c)
{
	if (c->id == 39)
		count(26);
	return 0;
}

SEC("usdt/victim:provider:name")
int usdt_point(void *c)
{
	return 0;
}

SEC("uprobe")
int no_target(struct pt_regs *r)
{
	return 0;
}

char _license[] SEC("license") = "GPL";
