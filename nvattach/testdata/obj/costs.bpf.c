// Programs at the functions of nvattach/host/testdata/costs.c, and at one of its own that
// calls helpers: what they return is in results.
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
static long (*probe_read)(void *, u32, const void *) = (void *)4;
static u64 (*ktime)(void) = (void *)5;
static long (*trace_printk)(const char *, u32, ...) = (void *)6;
static u32 (*prandom)(void) = (void *)7;
static u32 (*cpu)(void) = (void *)8;
static u64 (*pid_tgid)(void) = (void *)14;
static u64 (*uid_gid)(void) = (void *)15;
static long (*comm)(void *, u32) = (void *)16;
static long (*perf_output)(void *, void *, u64, void *, u64) = (void *)25;
static long (*probe_write)(void *, const void *, u32) = (void *)36;
static long (*override_return)(void *, u64) = (void *)58;
static long (*probe_read_str)(void *, u32, const void *) = (void *)114;
static long (*ringbuf_output)(void *, void *, u64, u64) = (void *)130;
static u64 (*func_ip)(void *) = (void *)173;
static u64 (*cookie)(void *) = (void *)174;
static long (*vprintk)(const char *, u32, const void *, u32) = (void *)177;
static long (*strncmp)(const char *, u32, const char *) = (void *)182;

struct {
	__uint(type, 1); // hash
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, u64);
} small SEC(".maps");

struct key {
	char name[11];
};

struct {
	__uint(type, 1);
	__uint(max_entries, 100);
	__type(key, struct key);
	__type(value, struct key);
} odd SEC(".maps");

struct {
	__uint(type, 5); // percpu_hash
	__uint(max_entries, 100);
	__type(key, u64);
	__type(value, u64);
} percpu SEC(".maps");

struct {
	__uint(type, 2); // array
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, u64);
} array SEC(".maps");

struct {
	__uint(type, 4); // perf_event_array
	__uint(key_size, 4);
	__uint(value_size, 4);
} perf SEC(".maps");

struct {
	__uint(type, 27); // ringbuf
	__uint(max_entries, 4096);
} ring SEC(".maps");

struct {
	__uint(type, 2);
	__uint(max_entries, 64);
	__type(key, u32);
	__type(value, long);
} results SEC(".maps");

static void result(u32 i, long v)
{
	long *p = map_lookup(&results, &i);
	if (p)
		*p = v;
}

SEC("uprobe/costs:probed")
int empty(struct pt_regs *r)
{
	return 0;
}

SEC("uprobe/costs:hashed")
int update(struct pt_regs *r)
{
	u32 key = 1;
	u64 value = r->di;
	map_update(&small, &key, &value, 0);
	return 0;
}

SEC("uretprobe/costs:returned")
int empty_return(struct pt_regs *r)
{
	return 0;
}

SEC("uprobe/costs:overridden")
int override(struct pt_regs *r)
{
	override_return(r, 5);
	return 0;
}

SEC("uprobe/calls:called")
int helpers(struct pt_regs *r)
{
	u32 i = 0, k = 1;
	u64 v = 7, *p;
	struct key name = {"0123456789"}, *q;
	char text[16] = {};
	result(i++, map_delete(&small, &k)); // 0
	result(i++, map_update(&small, &k, &v, 2));
	result(i++, map_update(&small, &k, &v, 1));
	result(i++, map_update(&small, &k, &v, 1));
	k = 2;
	result(i++, map_update(&small, &k, &v, 0));
	k = 3;
	result(i++, map_update(&small, &k, &v, 0)); // 5: full
	k = 1;
	result(i++, map_delete(&small, &k));
	result(i++, map_lookup(&small, &k) != 0);
	k = 3;
	result(i++, map_update(&small, &k, &v, 4));
	result(i++, map_update(&small, &k, &v, 0));
	p = map_lookup(&small, &k); // 10
	result(i++, p ? *p : -1);
	result(i++, map_update(&odd, &name, &name, 1));
	name.name[10] = 'x';
	result(i++, map_lookup(&odd, &name) != 0);
	name.name[10] = 0;
	q = map_lookup(&odd, &name);
	result(i++, q ? q->name[9] : -1);
	result(i++, map_update(&percpu, &v, &v, 0));
	p = map_lookup(&percpu, &v); // 15
	result(i++, p ? *p : -1);
	k = 1;
	result(i++, map_update(&array, &k, &v, 1));
	result(i++, map_update(&array, &k, &v, 0));
	result(i++, map_delete(&array, &k));
	k = 2;
	result(i++, map_update(&array, &k, &v, 0));
	result(i++, map_update(&array, &k, &v, 3)); // 20
	result(i++, probe_read(text, 5, (void *)r->di));
	result(i++, *(u64 *)text);
	result(i++, probe_read(text, 8, (void *)8));
	result(i++, *(u64 *)text);
	result(i++, probe_read_str(text, 4, (void *)r->di)); // 25
	result(i++, *(u64 *)text);
	result(i++, probe_read_str(text, 16, (void *)r->di));
	result(i++, *(u64 *)text);
	result(i++, probe_read_str(text, 16, (void *)r->si));
	result(i++, probe_read_str(text, 16, (void *)8)); // 30
	result(i++, strncmp(text, 8, "hello"));
	probe_read_str(text, 16, (void *)r->di);
	result(i++, strncmp(text, 8, "hello"));
	result(i++, strncmp(text, 8, "help"));
	result(i++, comm(text, 5));
	result(i++, *(u64 *)text); // 35
	result(i++, comm(text, 16));
	result(i++, *(u64 *)text);
	result(i++, func_ip(r) == r->ip);
	result(i++, cookie(r));
	result(i++, ktime() - ktime() <= 0); // 40
	result(i++, prandom() == prandom());
	result(i++, uid_gid());
	result(i++, (u32)pid_tgid() == r->dx);
	result(i++, pid_tgid() >> 32 == r->cx);
	result(i++, cpu() < 4096); // 45
	result(i++, ringbuf_output(&ring, text, 7, 0));
	result(i++, perf_output(r, &perf, 0xffffffff, text, 9));
	static const char format[] = "%d %s|%5x|%c%% %s\n";
	u64 args[5] = {1, r->di, 0xabc, 'y', r->si};
	result(i++, trace_printk(format, sizeof format, 1, r->di, 0xabc));
	result(i++, vprintk(format, sizeof format, args, sizeof args));
	return 0;
}

SEC("tracepoint/syscalls/sys_enter_getppid")
int call_enter(void *ctx)
{
	return 0;
}

SEC("tracepoint/syscalls/sys_exit_getppid")
int call_exit(void *ctx)
{
	return 0;
}

// writer changes the second argument's text; the first can't be written, and at 8 is nothing.
SEC("uprobe/calls:called")
int writer(struct pt_regs *r)
{
	result(0, probe_write((void *)r->si, "AT", 2));
	result(1, probe_write((void *)r->di, "jello", 5));
	result(2, probe_write((void *)8, "jello", 5));
	result(3, probe_write((void *)r->si, "", 0));
	result(4, probe_write((void *)(r->si + 4), "12345678", 8)); // to where it ends
	return 0;
}

char _license[] SEC("license") = "GPL";
