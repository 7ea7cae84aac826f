// Programs at system calls, for nvattach/host/testdata/syscalls.cc: they count calls and what
// those return by number, and what does not go together.
typedef unsigned long long u64;
typedef unsigned int u32;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int (*name)[val]
#define __type(name, val) typeof(val) *name

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
static u64 (*pid_tgid)(void) = (void *)14;
static long (*get_stack)(void *, void *, u32, u64) = (void *)67;
static long (*override_return)(void *, u64) = (void *)58;

struct {
	__uint(type, 2); // array
	__uint(max_entries, 512);
	__type(key, u32);
	__type(value, u64);
} enters SEC(".maps"), exits SEC(".maps");

u64 wrong, bytes, stack[4], stack_bytes;

static void count(void *map, u32 nr)
{
	u64 *n = map_lookup(map, &nr);
	if (n)
		__sync_fetch_and_add(n, 1);
}

static void enter(struct sys_enter *c)
{
	count(&enters, c->id);
	if (c->pid != (u32)pid_tgid())
		wrong++;
}

static void leave(struct sys_exit *c)
{
	count(&exits, c->id);
}

SEC("tracepoint/raw_syscalls/sys_enter")
int all_enter(struct sys_enter *c)
{
	enter(c);
	return 0;
}

SEC("tracepoint/raw_syscalls/sys_exit")
int all_exit(struct sys_exit *c)
{
	leave(c);
	return 0;
}

SEC("tracepoint/syscalls/sys_enter_read")
int read_enter(struct sys_enter *c)
{
	enter(c);
	return 0;
}

SEC("tracepoint/syscalls/sys_exit_read")
int read_exit(struct sys_exit *c)
{
	leave(c);
	if (c->ret > 0)
		__sync_fetch_and_add(&bytes, c->ret);
	return 0;
}

SEC("tracepoint/syscalls/sys_enter_getuid")
int uid_enter(struct sys_enter *c)
{
	enter(c);
	override_return(c, 4321);
	return 0;
}

SEC("tracepoint/syscalls/sys_exit_getgid")
int gid_exit(struct sys_exit *c)
{
	u64 list[4] = {};
	stack_bytes = get_stack(c, list, sizeof list, 0);
	for (int i = 0; i < 4; i++)
		stack[i] = list[i];
	return 0;
}

SEC("tracepoint/syscalls/sys_enter_getppid")
int ppid_enter(struct sys_enter *c)
{
	enter(c);
	return 0;
}

SEC("tracepoint/syscalls/sys_exit_getppid")
int ppid_exit(struct sys_exit *c)
{
	leave(c);
	return 0;
}
