// The program's side of the simulated GPU: every exported entry hands its
// arguments to nvtrace over a socket and does what the reply asks for. Nothing
// is decided here.
//
// Built without libc, so that one file serves every glibc: system calls are
// made directly, and the few functions of the program's libc that the job needs
// (a thread for callbacks, its stdout) are weak references without versions.
// The wire format is described in wire.go.
//
// The way of a call: a stub loads the number of its entry and jumps to nvsim_common (common.S), which
// saves the registers that arguments are passed in and calls nvsim_call; that takes a connection,
// sends them, and does what replies ask for, until one has the result. Signals are not blocked: a
// handler that makes a call of its own takes another connection.

typedef unsigned int u32;
typedef unsigned long u64;

#define HIDDEN __attribute__((visibility("hidden")))

enum {
	SYS_read = 0, SYS_close = 3, SYS_mmap = 9, SYS_mprotect = 10, SYS_munmap = 11,
	SYS_sigprocmask = 14, SYS_pread64 = 17, SYS_yield = 24, SYS_madvise = 28,
	SYS_socket = 41, SYS_connect = 42, SYS_sendmsg = 46, SYS_recvmsg = 47,
	SYS_exit_group = 231, SYS_write = 1, SYS_getpid = 39, SYS_fcntl = 72,
	SYS_prctl = 157, SYS_gettid = 186, SYS_openat = 257, SYS_getsockopt = 55,
};
enum { EINTR = 4, EINVAL = 22 };

// A system call. errno is not touched; what is negative is an error.
static inline long sys6(long n, long a, long b, long c, long d, long e, long f)
{
	long r;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	__asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return r;
}
#define sys3(n, a, b, c) sys6(n, (long)(a), (long)(b), (long)(c), 0, 0, 0)

// The compiler may turn loops into calls of these.
HIDDEN void *memcpy(void *d, const void *s, u64 n)
{
	char *p = d;
	__asm__ volatile("rep movsb" : "+D"(p), "+S"(s), "+c"(n) : : "memory");
	return d;
}

HIDDEN void *memset(void *d, int v, u64 n)
{
	char *p = d;
	__asm__ volatile("rep stosb" : "+D"(p), "+c"(n) : "a"(v) : "memory");
	return d;
}

static int equal(const char *a, const char *b, u64 n)
{
	for (u64 i = 0; i < n; i++)
		if (a[i] != b[i])
			return 0;
	return 1;
}

// ---- the wire; wire.go has the same -------------------------------------

enum { MAGIC = 0x4d49534e };
enum { KIND_HELLO = 1, KIND_CALL, KIND_DONE, KIND_HELPER, KIND_EXE };
enum {
	ACT_RETURN = 0, ACT_CALL, ACT_MAP, ACT_UNMAP, ACT_MOVE, ACT_HELPER, ACT_PRINT, ACT_EXIT, ACT_DRIVER,
};
enum { DATA_MAX = 2048, SLOTS = 512 };

struct request {
	u32 magic, kind, lib, index;
	u64 args[6];
	u64 x[4];     // xmm0 to xmm3, low halves
	u64 stack;    // where the arguments that are not in registers begin
	u64 caller;   // return address
	u64 tid;
	u64 result;   // of ACT_CALL and the like
};

struct reply {
	u32 action, len;
	u64 result;
	u64 a[5];
	char data[DATA_MAX];
};

// What the stub saves; stubs.S fills it.
struct frame {
	u64 args[6];
	u64 x[4];
	u64 index, stack, caller;
};

struct iovec { void *base; u64 len; };
struct msghdr { void *name; u32 namelen; struct iovec *iov; u64 iovlen; void *control; u64 controllen; int flags; };

// The stubs, 16 bytes each, in the order of the list of names.
extern char nvsim_stubs[] HIDDEN;
extern const u32 nvsim_lib HIDDEN;
// Exported by libcuda.so.1 for the other two.
extern char nvtrace_sim_stubs[] __attribute__((weak));
extern u32 nvtrace_sim_used __attribute__((weak)); // CUDA has been initialised; a child of a fork finds it as it was then

extern int pthread_create(u64 *, const void *, void *(*)(void *), void *) __attribute__((weak));
extern u64 fwrite(const void *, u64, u64, void *) __attribute__((weak));
extern void *stdout __attribute__((weak));
extern int __cxa_atexit(void (*)(void *), void *, void *) __attribute__((weak));

// ---- connections ---------------------------------------------------------

// A child after fork finds this page zeroed (MADV_WIPEONFORK) and so has no
// connections: it says hello for itself. The descriptors are still open in it, but they are its
// parent's, whose calls they would mix with.
static struct state {
	int fd[SLOTS];   // 0: none
	int busy[SLOTS];
} *state;
static int stateLock;
static u64 lastSession; // survives a fork: then it is the parent's
static u64 imageRandom; // AT_RANDOM
static struct { unsigned short family; char path[108]; } server;

// A lock of which nothing is known but that it is held for a few system calls at most, once in a
// process.
static void lock(int *l)
{
	while (__atomic_exchange_n(l, 1, __ATOMIC_ACQUIRE))
		sys3(SYS_yield, 0, 0, 0);
}

static void unlock(int *l) { __atomic_store_n(l, 0, __ATOMIC_RELEASE); }

// Maps the page for connections, once. 0: there is no simulation for this program.
static int ready(void)
{
	if (__atomic_load_n(&state, __ATOMIC_ACQUIRE))
		return 1;
	if (!server.path[0])
		return 0;
	lock(&stateLock);
	if (!state) {
		u64 size = (sizeof *state + 4095) & ~4095ul;
		long p = sys6(SYS_mmap, 0, size, 3, 0x22, -1, 0);
		if (p > 0) {
			sys3(SYS_madvise, p, size, 18 /* MADV_WIPEONFORK */);
			__atomic_store_n(&state, (struct state *)p, __ATOMIC_RELEASE);
		}
	}
	unlock(&stateLock);
	return state != 0;
}

// A request is one packet: it is sent as a whole or not at all.
static int sendAll(int fd, struct request *q)
{
	struct iovec v = { q, sizeof *q };
	struct msghdr m = { 0, 0, &v, 1, 0, 0, 0 };
	long r;
	do
		r = sys3(SYS_sendmsg, fd, &m, 0x4000 /* MSG_NOSIGNAL */);
	while (r == -EINTR);
	return r == sizeof *q ? 0 : -1;
}

// recvReply receives a reply and, into *got, a file descriptor if one came along.
static int recvReply(int fd, struct reply *p, int *got)
{
	union { char b[32]; u64 align; } c;
	struct iovec v = { p, sizeof *p };
	struct msghdr m = { 0, 0, &v, 1, c.b, sizeof c.b, 0 };
	long r;
	do {
		m.controllen = sizeof c.b;
		r = sys3(SYS_recvmsg, fd, &m, 0x40000000 /* MSG_CMSG_CLOEXEC */);
	} while (r == -EINTR);
	*got = -1;
	if (r < 56)
		return -1;
	if (m.controllen >= 20 && ((u32 *)c.b)[2] == 1 && ((u32 *)c.b)[3] == 1)
		*got = ((int *)c.b)[4];
	return p->len <= DATA_MAX ? 0 : -1;
}

static u64 exchange(int fd, struct request *q, int *ok);

// connectServer opens a connection and says hello on it. Returns its descriptor, 0 if there is none
// to be had. nvtrace is allowed to read this process's memory first, where Yama keeps processes of a user
// from one another (PR_SET_PTRACER): hello is answered only when it can be served.
static int connectServer(void)
{
	long fd = sys3(SYS_socket, 1, 5 | 02000000 /* SEQPACKET, CLOEXEC */, 0);
	if (fd < 0)
		return 0;
	// Out of the way of programs that count on low numbers.
	long high = sys3(SYS_fcntl, fd, 1030 /* F_DUPFD_CLOEXEC */, 700);
	if (high > 0) {
		sys3(SYS_close, fd, 0, 0);
		fd = high;
	}
	long r;
	do
		r = sys3(SYS_connect, fd, &server, sizeof server);
	while (r == -EINTR);
	struct { int pid, uid, gid; } peer = { 0, 0, 0 };
	u32 len = sizeof peer;
	if (r == 0 && sys6(SYS_getsockopt, fd, 1, 17 /* SO_PEERCRED */, (long)&peer, (long)&len, 0) == 0 && peer.pid > 0)
		sys3(SYS_prctl, 0x59616d61 /* PR_SET_PTRACER */, peer.pid, 0);
	struct request q = { MAGIC, KIND_HELLO, nvsim_lib, 0 };
	q.args[0] = (u64)nvsim_stubs;
	q.args[1] = (u64)nvtrace_sim_stubs;
	q.args[2] = &nvtrace_sim_used && nvtrace_sim_used;
	q.args[3] = lastSession;
	q.args[4] = pthread_create != 0;
	q.args[5] = imageRandom;
	q.tid = sys3(SYS_gettid, 0, 0, 0);
	int ok = r == 0;
	u64 session = ok ? exchange(fd, &q, &ok) : 0;
	if (!ok) {
		sys3(SYS_close, fd, 0, 0);
		return 0;
	}
	lastSession = session;
	return fd;
}

// Takes a connection that nobody uses, and makes it if it is new. A thread begins its search at a place of
// its own, so that it mostly gets the same one, which no other waits for.
static int acquire(void)
{
	u64 self;
	__asm__("mov %%fs:0,%0" : "=r"(self));
	u32 start = (self >> 12) * 2654435761u >> 8;
	for (;;) {
		for (u32 i = 0; i < SLOTS; i++) {
			int k = (start + i) % SLOTS;
			if (!__atomic_exchange_n(&state->busy[k], 1, __ATOMIC_ACQUIRE)) {
				if (state->fd[k] <= 0)
					state->fd[k] = connectServer();
				return k;
			}
		}
		sys3(SYS_yield, 0, 0, 0);
	}
}

static void release(int k) { __atomic_store_n(&state->busy[k], 0, __ATOMIC_RELEASE); }

// ---- what replies ask for -------------------------------------------------

static void *helper(void *arg);

// Starts the thread for callbacks, with all signals blocked: it is none of the program's, and handlers of
// the program's must run in its own threads.
static void startHelper(void)
{
	u64 all = ~0ul, old, thread;
	if (!pthread_create)
		return;
	sys6(SYS_sigprocmask, 2, (long)&all, (long)&old, 8, 0, 0);
	pthread_create(&thread, 0, helper, 0);
	sys6(SYS_sigprocmask, 2, (long)&old, 0, 8, 0, 0);
}

// moveToFile replaces the pages [addr, addr+size) by the same pages of a file,
// with their content kept, so that nvtrace reaches them too. What another thread writes between the copy
// and the mapping is lost.
static long moveToFile(u64 addr, u64 size, int fd, u64 off)
{
	long t = sys6(SYS_mmap, 0, size, 3, 1, fd, off);
	if (t < 0 && t > -4096)
		return t;
	memcpy((void *)t, (void *)addr, size);
	long r = sys6(SYS_mmap, addr, size, 3, 0x11 /* SHARED|FIXED */, fd, off);
	sys3(SYS_munmap, t, size, 0);
	return r;
}

// moveBack makes the pages private again.
static long moveBack(u64 addr, u64 size)
{
	long t = sys6(SYS_mmap, 0, size, 3, 0x22, -1, 0);
	if (t < 0 && t > -4096)
		return t;
	memcpy((void *)t, (void *)addr, size);
	return sys6(25 /* mremap */, t, size, size, 3 /* MAYMOVE|FIXED */, addr, 0);
}

// Does what a reply asks for in the middle of a call. fd is a descriptor that came along, or -1.
static u64 act(struct reply *p, int fd)
{
	switch (p->action) {
	case ACT_CALL:
		return ((u64(*)(u64, u64, u64, u64))p->result)(p->a[0], p->a[1], p->a[2], p->a[3]);
	case ACT_DRIVER: {
		enum { WORDS = 12 };
		u64 *w = (u64 *)p->data;
		if (p->len < WORDS * sizeof *w)
			return -EINVAL;
		for (u32 i = 0; i < WORDS; i++)
			if (p->a[0] >> i & 1)
				w[i] += (u64)p->data;
		return ((u32(*)(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64))p->result)(
			w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11]);
	}
	case ACT_MAP:
		return sys6(SYS_mmap, p->a[0], p->a[1], p->a[3], fd >= 0 ? 0x100001 : 0x100022 /* (SHARED or PRIVATE|ANONYMOUS)|FIXED_NOREPLACE */, fd, p->a[2]);
	case ACT_UNMAP:
		return sys3(SYS_munmap, p->a[0], p->a[1], 0);
	case ACT_MOVE:
		return fd >= 0 ? moveToFile(p->a[0], p->a[1], fd, p->a[2]) : moveBack(p->a[0], p->a[1]);
	case ACT_HELPER:
		startHelper();
		return pthread_create != 0;
	case ACT_PRINT:
		if (p->a[0] == 1 && fwrite && &stdout && stdout)
			return fwrite(p->data, 1, p->len, stdout);
		return sys3(SYS_write, p->a[0], p->data, p->len);
	case ACT_EXIT:
		sys3(SYS_write, 2, p->data, p->len);
		sys3(SYS_exit_group, p->a[0], 0, 0);
	}
	return -EINVAL;
}

// CUDA ends with the program: NVIDIA's libraries register a function for exit when they
// are initialised, and when that has run, all their calls fail.
static u32 watched, ended;

static void end(void *arg)
{
	(void)arg;
	ended = 1;
}

// store writes what a call returns through its pointers: address, length and bytes,
// one after the other.
static void store(struct reply *p)
{
	for (u32 i = 0; i + 16 <= p->len;) {
		u64 *w = (u64 *)(p->data + i);
		if (w[1] > p->len - i - 16)
			return;
		memcpy((void *)w[0], w + 2, w[1]);
		i += 16 + ((w[1] + 7) & ~7ul);
	}
}

// exchange sends a request and does what the replies ask for until the result comes.
static u64 exchange(int fd, struct request *q, int *ok)
{
	struct reply p;
	int got;
	*ok = 1;
	for (;;) {
		if (sendAll(fd, q) < 0 || recvReply(fd, &p, &got) < 0) {
			*ok = 0;
			return 0;
		}
		if (p.action == ACT_RETURN) {
			store(&p);
			if (p.a[0] && &nvtrace_sim_used)
				nvtrace_sim_used = 1;
			if (p.a[0] && __cxa_atexit && !__atomic_exchange_n(&watched, 1, __ATOMIC_ACQ_REL))
				__cxa_atexit(end, 0, 0);
			return p.result;
		}
		u64 r = act(&p, got);
		if (got >= 0)
			sys3(SYS_close, got, 0, 0);
		q->kind = KIND_DONE;
		q->result = r;
	}
}

// Makes a request on a connection of the pool. *ok is 0 if nobody has answered it.
static u64 request(struct request *q, int *ok)
{
	*ok = 0;
	if (!ready())
		return 0;
	int k = acquire();
	u64 r = 0;
	u32 kind = q->kind;
	// Twice: a program that closes all descriptors takes our socket with it.
	for (int try = 0; try < 2 && state->fd[k] > 0; try++) {
		r = exchange(state->fd[k], q, ok);
		if (*ok)
			break;
		sys3(SYS_close, state->fd[k], 0, 0);
		state->fd[k] = try == 0 && q->kind == kind ? connectServer() : 0;
	}
	release(k);
	return r;
}

// helper is the thread that runs the program's callbacks.
static void *helper(void *arg)
{
	struct request q = { MAGIC, KIND_HELPER, nvsim_lib, 0 };
	int ok;
	q.tid = sys3(SYS_gettid, 0, 0, 0);
	request(&q, &ok);
	return arg;
}

// nvsim_call is what every stub ends in. Without nvtrace, initialisation has
// not happened and cannot: error 3, or what says so of an entry that returns a text.
HIDDEN u64 nvsim_call(struct frame *f)
{
	enum { TEXT = 1 << 16 }; // with the index, by mklib
	if (ended)
		return f->index & TEXT ? (u64)"driver shutting down" : 4;
	struct request q = { MAGIC, KIND_CALL, nvsim_lib, f->index & (TEXT - 1) };
	int ok;
	memcpy(q.args, f->args, sizeof q.args);
	memcpy(q.x, f->x, sizeof q.x);
	q.stack = f->stack;
	q.caller = f->caller;
	q.tid = sys3(SYS_gettid, 0, 0, 0);
	u64 r = request(&q, &ok);
	if (ok)
		return r;
	return f->index & TEXT ? (u64)"initialization error" : 3;
}

// ---- the launch configuration ----------------------------------------------

// kernel<<<grid, block, shared, stream>>>() pushes its configuration and the
// kernel's stub pops it: both stay in the thread.
enum { CONFIGS = 16 };
static __thread struct { u64 grid[2], block[2], shared, stream; } configs[CONFIGS];
static __thread int numConfigs;

// __cudaPushCallConfiguration: dim3 comes in two registers. 1: there are too many.
HIDDEN u32 nvsim_push(u64 gridXY, u64 gridZ, u64 blockXY, u64 blockZ, u64 shared, u64 stream)
{
	if (numConfigs == CONFIGS)
		return 1;
	int i = numConfigs++;
	configs[i].grid[0] = gridXY;
	configs[i].grid[1] = gridZ;
	configs[i].block[0] = blockXY;
	configs[i].block[1] = blockZ;
	configs[i].shared = shared;
	configs[i].stream = stream;
	return 0;
}

// __cudaPopCallConfiguration, which the kernel's stub calls before cudaLaunchKernel.
HIDDEN u32 nvsim_pop(void *grid, void *block, u64 *shared, u64 *stream)
{
	if (numConfigs == 0)
		return 52; // cudaErrorMissingConfiguration
	int i = --numConfigs;
	memcpy(grid, configs[i].grid, 12);
	memcpy(block, configs[i].block, 12);
	*shared = configs[i].shared;
	*stream = configs[i].stream;
	return 0;
}

// ---- start -----------------------------------------------------------------

static int pread_(int fd, void *b, u64 n, u64 off) { return sys6(SYS_pread64, fd, (long)b, n, off, 0, 0) == (long)n; }

// hasDeviceCode says whether the program's own file has a section that nvcc makes.
static int hasDeviceCode(void)
{
	static const char want[] = ".nvFatBinSegment";
	long fd = sys6(SYS_openat, -100, (long)"/proc/self/exe", 02000000, 0, 0, 0);
	if (fd < 0)
		return 0;
	int found = 0;
	u64 h[8], sec[8];
	if (pread_(fd, h, 64, 0)) {
		u64 off = h[5], n = (h[7] >> 32) & 0xffff, strs = h[7] >> 48;
		if (((h[7] >> 16) & 0xffff) == 64 && strs < n && pread_(fd, sec, 64, off + strs * 64)) {
			u64 names = sec[3], len = sec[4];
			for (u64 i = 0; i < n && !found; i++) {
				char name[sizeof want];
				if (pread_(fd, sec, 64, off + i * 64) && (u32)sec[0] < len && pread_(fd, name, sizeof name, names + (u32)sec[0]))
					found = equal(name, want, sizeof want);
			}
		}
	}
	sys3(SYS_close, fd, 0, 0);
	return found;
}

// The dynamic loader gives constructors main's arguments. Preloaded libraries'
// come before the program's own, which register its kernels. A program with device code of its own may
// have the runtime in it; nvtrace looks, and redirects its functions before they are called
// (KIND_EXE). Of others it need not be asked.
__attribute__((constructor)) static void start(int argc, char **argv, char **envp)
{
	(void)argc, (void)argv;
	static const char var[] = "NVTRACE_SIM=";
	for (; *envp; envp++) {
		if (!equal(*envp, var, sizeof var - 1))
			continue;
		const char *s = *envp + sizeof var - 1;
		u64 i = 0;
		for (; s[i] && i < sizeof server.path - 1; i++)
			server.path[i] = s[i];
		if (s[i])
			server.path[0] = 0;
		server.family = 1;
		break;
	}
	while (*envp)
		envp++;
	// Behind the environment lies the auxiliary vector.
	u64 headers = 0;
	for (u64 *aux = (u64 *)(envp + 1); aux[0]; aux += 2) {
		if (aux[0] == 3 /* AT_PHDR */)
			headers = aux[1];
		if (aux[0] == 25 /* AT_RANDOM */)
			imageRandom = *(u64 *)aux[1];
	}
	if (!server.path[0] || nvsim_lib == 0 || !hasDeviceCode())
		return;
	struct request q = { MAGIC, KIND_EXE, nvsim_lib, 0 };
	int ok;
	q.args[0] = headers;
	q.tid = sys3(SYS_gettid, 0, 0, 0);
	request(&q, &ok);
}
