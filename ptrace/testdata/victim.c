// victim NAME [ARG]: one behaviour that a tracer must see and must not change.
// Each prints a line or two that are the same in every run, traced or not. The
// call to be traced is F(), an ioctl that /dev/null refuses with ENOTTY.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

struct params {
	uint32_t a, b, c, d;
	uint64_t nested;
	uint32_t size, status;
};

#define REQUEST _IOWR('F', 0x2a, struct params)

static int dev;
static const char *arg;

static void out(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void out(const char *fmt, ...)
{
	char b[512];
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(b, sizeof b, fmt, ap);
	va_end(ap);
	write(1, b, n);
}

static int ioctl_errno(unsigned long request, void *p)
{
	int r = ioctl(dev, request, p);
	return r < 0 ? -errno : r;
}

static int F(void)
{
	struct params p = {1, 2, 3, 4, 0, 0, 0};
	return ioctl_errno(REQUEST, &p);
}

static int status_of(pid_t p)
{
	int s = -1;
	waitpid(p, &s, 0);
	return s;
}

static void exec_hello(void)
{
	char *av[] = {"victim", "hello", 0};
	execve("/proc/thread-self/exe", av, environ);
	out("exec failed\n");
}

static volatile sig_atomic_t got, value;
static void on_signal(int s) { got++; }
static void on_siginfo(int s, siginfo_t *si, void *u) { got++; value = si->si_value.sival_int; }
static sigjmp_buf escape;
static void on_fault(int s) { siglongjmp(escape, 1); }

static void handle(int sig, void (*f)(int), int flags)
{
	struct sigaction sa = {.sa_handler = f, .sa_flags = flags};
	sigaction(sig, &sa, 0);
}

static void timer(int usec, int repeat)
{
	struct itimerval it = {{0, repeat ? usec : 0}, {0, usec}};
	setitimer(ITIMER_REAL, &it, 0);
}

static int hello(void) { out("hello F=%d\n", F()); return 3; }
static int status(void) { return atoi(arg); }

static int death(void)
{
	int sig = atoi(arg);
	struct rlimit no_core = {0, 0};
	setrlimit(RLIMIT_CORE, &no_core);
	signal(sig, SIG_DFL);
	raise(sig);
	out("survived %d\n", sig);
	return 0;
}

static int segv(void) { struct rlimit z = {0, 0}; setrlimit(RLIMIT_CORE, &z); *(volatile int *)8 = 1; return 0; }

static int segv_handler(void)
{
	signal(SIGSEGV, on_fault);
	if (!sigsetjmp(escape, 1))
		*(volatile int *)8 = 1;
	out("caught F=%d\n", F());
	return 0;
}

static int forks(void)
{
	pid_t p = fork();
	if (!p)
		_exit(F() == -ENOTTY ? 7 : 8);
	out("status=%x\n", status_of(p));
	return 0;
}

static int vforks(void)
{
	pid_t p = vfork();
	if (!p) {
		char *av[] = {"victim", "hello", 0};
		execve("/proc/self/exe", av, environ);
		_exit(1);
	}
	out("status=%x\n", status_of(p));
	return 0;
}

static int spawns(void)
{
	pid_t p;
	char *av[] = {"victim", "hello", 0};
	posix_spawn(&p, "/proc/self/exe", 0, 0, av, environ);
	out("status=%x\n", status_of(p));
	return 0;
}

static int raw_fork(void)
{
	pid_t p = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (!p) {
		long r = syscall(SYS_ioctl, dev, REQUEST, 0);
		_exit(r == -1 && errno == ENOTTY ? 7 : 8);
	}
	out("status=%x\n", status_of(p));
	return 0;
}

static void *loop_F(void *n) { for (long i = 0; i < (long)n; i++) F(); return 0; }
static void *do_pause(void *a) { for (;;) pause(); return 0; }

static int threads(void)
{
	pthread_t t[64];
	for (int k = 0; k < 4; k++) {
		for (int i = 0; i < 64; i++)
			pthread_create(&t[i], 0, loop_F, (void *)10);
		for (int i = 0; i < 64; i++)
			pthread_join(t[i], 0);
	}
	out("ok\n");
	return 0;
}

// hammer: 8 threads make 1000 calls each, and say what they were.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *hammer_thread(void *id)
{
	uint64_t sum = 0, bad = 0;
	for (uint64_t i = 0; i < 1000; i++) {
		uint64_t a = (uint64_t)id << 32 | i * 7;
		if (ioctl_errno(REQUEST, (void *)a) != -ENOTTY)
			bad++;
		sum += a;
	}
	pthread_mutex_lock(&lock);
	out("tid %ld calls 1000 sum %llu bad %llu\n", syscall(SYS_gettid), (unsigned long long)sum, (unsigned long long)bad);
	pthread_mutex_unlock(&lock);
	return 0;
}

static int hammer(void)
{
	pthread_t t[8];
	for (long i = 0; i < 8; i++)
		pthread_create(&t[i], 0, hammer_thread, (void *)(i + 1));
	for (int i = 0; i < 8; i++)
		pthread_join(t[i], 0);
	return 0;
}

static void *exec_thread(void *a) { usleep(20000); exec_hello(); return 0; }

static int thread_exec(void)
{
	pthread_t t;
	for (int i = 0; i < 4; i++)
		pthread_create(&t, 0, do_pause, 0);
	pthread_create(&t, 0, exec_thread, 0);
	for (;;)
		pause();
	return 0;
}

// exec_forever: a thread among many calls execve for the same again. With an
// argument, it prints its pid first.
static void *exec_again(void *a)
{
	char *av[] = {"victim", "exec_forever", 0};
	usleep(1000);
	execv("/proc/self/exe", av);
	_exit(1);
}

static int exec_forever(void)
{
	pthread_t t;
	if (arg)
		out("%d\n", getpid());
	for (int i = 0; i < 40; i++)
		pthread_create(&t, 0, do_pause, 0);
	pthread_create(&t, 0, exec_again, 0);
	for (;;)
		pause();
	return 0;
}

static int leader_exec(void)
{
	pthread_t t;
	pthread_create(&t, 0, do_pause, 0);
	usleep(20000);
	exec_hello();
	return 1;
}

static pthread_t main_thread;
static void *after_main(void *a)
{
	pthread_join(main_thread, 0);
	usleep(10000);
	out("after main F=%d\n", F());
	_exit(5);
}

static int leader_exit(void)
{
	pthread_t t;
	main_thread = pthread_self();
	pthread_create(&t, 0, after_main, 0);
	pthread_exit(0);
}

// dead_leader_exec: a thread execs after the main thread has ended.
static void *exec_after_main(void *a) { pthread_join(main_thread, 0); usleep(10000); exec_hello(); return 0; }
static int dead_leader_exec(void)
{
	pthread_t t;
	main_thread = pthread_self();
	pthread_create(&t, 0, exec_after_main, 0);
	pthread_exit(0);
}

static int exit_group_threads(void)
{
	pthread_t t;
	for (int i = 0; i < 30; i++)
		pthread_create(&t, 0, i & 1 ? do_pause : loop_F, (void *)1000000);
	usleep(5000);
	_exit(9);
}

static void *fork_thread(void *a)
{
	pid_t p = fork();
	if (!p)
		_exit(F() == -ENOTTY ? 7 : 8);
	return (void *)(long)status_of(p);
}

static int fork_in_thread(void)
{
	pthread_t t[4];
	for (int i = 0; i < 4; i++)
		pthread_create(&t[i], 0, fork_thread, 0);
	for (int i = 0; i < 4; i++) {
		void *s;
		pthread_join(t[i], &s);
		out("status=%lx\n", (long)s);
	}
	return 0;
}

static int stop_cont(void)
{
	int s, go[2];
	char b;
	pipe(go);
	pid_t p = fork();
	if (!p) {
		raise(SIGSTOP);
		read(go[0], &b, 1); // its end must not come before its going on was seen
		_exit(F() == -ENOTTY ? 11 : 12);
	}
	waitpid(p, &s, WUNTRACED);
	out("stopped=%d sig=%d\n", WIFSTOPPED(s), WIFSTOPPED(s) ? WSTOPSIG(s) : 0);
	kill(p, SIGCONT);
	waitpid(p, &s, WCONTINUED);
	out("continued=%d\n", WIFCONTINUED(s));
	write(go[1], "x", 1);
	out("status=%x\n", status_of(p));
	return 0;
}

static int tstp(void)
{
	int s;
	pid_t p = fork();
	if (!p) {
		setpgid(0, 0);
		signal(SIGTSTP, SIG_DFL);
		raise(SIGTSTP);
		_exit(F() == -ENOTTY ? 11 : 12);
	}
	setpgid(p, p);
	waitpid(p, &s, WUNTRACED);
	out("stopped=%d sig=%d\n", WIFSTOPPED(s), WIFSTOPPED(s) ? WSTOPSIG(s) : 0);
	usleep(20000);
	kill(p, SIGCONT);
	out("status=%x\n", status_of(p));
	return 0;
}

// stop_threads: 8 threads in calls are stopped and continued from outside.
static int stop_threads(void)
{
	int s, stops = 0;
	pid_t p = fork();
	if (!p) {
		pthread_t t;
		for (int i = 0; i < 8; i++)
			pthread_create(&t, 0, loop_F, (void *)100000000);
		for (;;)
			pause();
	}
	usleep(10000);
	for (int k = 0; k < 5; k++) {
		kill(p, SIGSTOP);
		if (waitpid(p, &s, WUNTRACED) == p && WIFSTOPPED(s))
			stops++;
		usleep(3000);
		kill(p, SIGCONT);
		waitpid(p, &s, WCONTINUED);
		usleep(3000);
	}
	kill(p, SIGKILL);
	s = status_of(p);
	out("stops=%d status=%x\n", stops, s);
	return 0;
}

// crowd: threads that stop all the time, and an older one that wants its turn.
static int crowd(void)
{
	pthread_t t;
	int bad = 0;
	for (int i = 0; i < 6; i++)
		pthread_create(&t, 0, loop_F, (void *)1000000000);
	usleep(20000);
	for (int i = 0; i < 300; i++)
		bad += F() != -ENOTTY;
	out("bad=%d\n", bad);
	_exit(3);
}

static int sig_queue(void)
{
	struct sigaction sa = {.sa_sigaction = on_siginfo, .sa_flags = SA_SIGINFO};
	int sum = 0;
	sigaction(SIGRTMIN + 1, &sa, 0);
	sigaction(SIGUSR1, &sa, 0);
	for (int i = 0; i < 20; i++) {
		union sigval v = {.sival_int = 1000 + i};
		sigqueue(getpid(), i & 1 ? SIGUSR1 : SIGRTMIN + 1, v);
		sum += value;
		F();
	}
	out("got=%d sum=%d\n", got, sum);
	return 0;
}

static int sig_trap(void)
{
	signal(SIGTRAP, on_signal);
	raise(SIGTRAP);
#if defined __x86_64__
	__asm__ volatile("int3");
#else
	raise(SIGTRAP);
#endif
	out("got=%d F=%d\n", got, F());
	return 0;
}

// The next signal comes some time after a handler has ended: where handling one took longer
// than the time to the next, as it may on a busy machine, nothing else would be done.
static volatile int ticking;
static void on_tick(int s)
{
	got++;
	if (ticking)
		timer(300, 0);
}

static int itimer(void)
{
	int bad = 0;
	handle(SIGALRM, on_tick, SA_RESTART);
	ticking = 1;
	timer(300, 0);
	for (int i = 0; i < 5000 || !got; i++)
		if (F() != -ENOTTY)
			bad++;
	ticking = 0;
	timer(0, 0);
	out("bad=%d signals=%d\n", bad, got > 0);
	return 0;
}

static int eintr(void)
{
	int p[2];
	char b;
	pipe(p);
	handle(SIGALRM, on_signal, 0);
	timer(50000, 1); // again and again: the first could come before the read
	int r = read(p[0], &b, 1);
	timer(0, 0);
	out("r=%d errno=%d\n", r, r < 0 ? errno : 0);
	return 0;
}

// asleep waits until a process sleeps in a call.
static void asleep(pid_t p)
{
	char name[64], line[512], *state;
	sprintf(name, "/proc/%d/stat", p);
	for (;; usleep(1000)) {
		int fd = open(name, O_RDONLY), n = pread(fd, line, sizeof line - 1, 0);
		close(fd);
		line[n < 0 ? 0 : n] = 0;
		if ((state = strrchr(line, ')')) && state[2] == 'S')
			return;
	}
}

static volatile int *seen;
static void on_seen(int s) { got++; *seen = 1; }

static int restart(void)
{
	int p[2];
	char b;
	pipe(p);
	seen = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	handle(SIGALRM, on_seen, SA_RESTART);
	pid_t me = getpid(), c = fork();
	if (!c) {
		asleep(me);
		kill(me, SIGALRM);
		while (!*seen)
			usleep(1000);
		asleep(me);
		write(p[1], "x", 1);
		_exit(0);
	}
	int r = read(p[0], &b, 1);
	out("r=%d got=%d\n", r, got);
	status_of(c);
	return 0;
}

static int nanosleep_stop(void)
{
	struct timespec a, b, d = {0, 200000000};
	pid_t me = getpid(), p = fork();
	if (!p) {
		usleep(30000);
		kill(me, SIGSTOP);
		usleep(30000);
		kill(me, SIGCONT);
		_exit(0);
	}
	clock_gettime(CLOCK_MONOTONIC, &a);
	int r = nanosleep(&d, 0);
	clock_gettime(CLOCK_MONOTONIC, &b);
	long ms = (b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000;
	out("r=%d slept=%s\n", r, ms >= 199 ? "ok" : "short");
	status_of(p);
	return 0;
}

static char stack[65536] __attribute__((aligned(16)));
static int untraced_child(void *a) { int r = F(); out("child F=%d\n", r); return r == -ENOTTY ? 7 : 8; }
static int untraced(void)
{
	pid_t p = clone(untraced_child, stack + sizeof stack, CLONE_UNTRACED | SIGCHLD, 0);
	out("status=%x\n", status_of(p));
	return 0;
}

static int untraced3(void)
{
#ifdef SYS_clone3
	struct { unsigned long long flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls; } args = {CLONE_UNTRACED, .exit_signal = SIGCHLD};
	pid_t p = syscall(SYS_clone3, &args, sizeof args);
	if (!p) {
		int r = untraced_child(0);
		_exit(args.flags == CLONE_UNTRACED ? r : 9);
	}
	if (p > 0) {
		out("status=%x", status_of(p));
		out(" flags=%x\n", (int)args.flags);
		// One that fails leaves nothing behind either, and a copy of the memory is the same.
		args.flags = CLONE_UNTRACED;
		args.exit_signal = 9999;
		p = syscall(SYS_clone3, &args, sizeof args);
		out("%d errno=%d flags=%x\n", p, errno, (int)args.flags);
		memset(&args, 0, sizeof args);
		p = fork();
		if (!p)
			_exit(args.flags != 0);
		out("status=%x", status_of(p));
		out(" flags=%x\n", (int)args.flags);
		return 0;
	}
	if (errno != ENOSYS)
		return 1;
#endif
	int r = F();
	out("none %d\n", r);
	return 0;
}

// maps a file where it wants to: at addresses that are held, beside these, and far from them
static int fixed(void)
{
	unsigned long at[] = {0x70400000, 0x70500000, 0x60000000};
	int fd = open("/proc/self/exe", O_RDONLY);
	F();
	for (int i = 0; i < 3; i++) {
		errno = 0;
		syscall(SYS_mmap, at[i], 4096, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0);
		out("map %d", errno);
		errno = 0;
		syscall(SYS_munmap, at[i], 4096);
		out(" unmap %d\n", errno);
	}
	return 0;
}

static int int80(void)
{
#if defined __x86_64__
	long r;
	mmap((void *)0x10000000, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	if (arg) { // is it there at all? A kernel without it raises SIGSEGV.
		signal(SIGSEGV, on_fault);
		if (sigsetjmp(escape, 1)) {
			out("int80=none\n");
			return 0;
		}
	}
	__asm__ volatile("int $0x80" : "=a"(r) : "a"(54), "b"(dev), "c"(REQUEST), "d"(0x10000000) : "memory", "r8", "r9", "r10", "r11");
	out("int80=%d\n", (int)r);
#else
	out("int80=none\n");
#endif
	return 0;
}

static int bad_pointer(void)
{
	out("low %d\n", ioctl_errno(REQUEST, (void *)8));
	char *p = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(p + 4096, 4096);
	memset(p, 0x5a, 4096);
	out("across %d\n", ioctl_errno(REQUEST, p + 4096 - 8));
	out("to the end %d\n", ioctl_errno(REQUEST, p + 4096 - 32));
	out("high %d\n", ioctl_errno(REQUEST, (void *)-16L));
	struct params q = {1, 2, 3, 4, 0xdeadbeef000, 0xffffffff, 0};
	out("nested %d\n", ioctl_errno(REQUEST, &q));
	return 0;
}

static int trace_me(void)
{
	long r = ptrace(PTRACE_TRACEME, 0, 0, 0);
	out("traceme=%ld errno=%d\n", r, r < 0 ? errno : 0);
	return 0;
}

static int undumpable(void)
{
	static char text[32] = "read me";
	prctl(PR_SET_DUMPABLE, 0);
	out("F=%d\n", ioctl_errno(REQUEST, text));
	if (arg) // its children can't be read without root
		return 0;
	pid_t p = fork();
	if (!p)
		_exit(ioctl_errno(REQUEST, text) == -ENOTTY ? 7 : 8);
	out("status=%x\n", status_of(p));
	return 0;
}

static int set_uid(void) { int r = setuid(getuid() ? getuid() : 1000); out("setuid=%d F=%d\n", r, F()); return 0; }

// orphan_forever leaves a process behind that nothing but a signal ends. With an
// argument, that prints its pid when this one is gone and reaped.
static int orphan_forever(void)
{
	pid_t parent = getpid(), p = fork();
	if (p)
		return 4;
	setsid();
	if (arg) {
		while (kill(parent, 0) == 0)
			usleep(1000);
		out("%d\n", getpid());
	}
	for (;;)
		pause();
}

static int orphan(void)
{
	int p[2];
	char b;
	pipe(p);
	if (!fork()) {
		if (fork())
			_exit(0);
		setsid();
		close(p[0]);
		usleep(100000);
		out("orphan F=%d\n", F());
		_exit(0);
	}
	close(p[1]);
	if (arg) // wait for it
		read(p[0], &b, 1);
	return 4;
}

static int kill_self(void)
{
	pthread_t t;
	for (int i = 0; i < 4; i++)
		pthread_create(&t, 0, loop_F, (void *)1000000);
	usleep(3000);
	kill(getpid(), SIGKILL);
	for (;;)
		pause();
	return 0;
}

static int sig_mask(void)
{
	sigset_t m, pend;
	struct timespec z = {0, 0};
	sigemptyset(&m);
	sigaddset(&m, SIGUSR1);
	sigprocmask(SIG_BLOCK, &m, 0);
	raise(SIGUSR1);
	F();
	sigpending(&pend);
	out("pending=%d ", sigismember(&pend, SIGUSR1));
	out("taken=%d\n", sigtimedwait(&m, 0, &z));
	return 0;
}

static int many_forks(void)
{
	for (int i = 0; i < 100; i++) {
		pid_t p = fork();
		if (!p) {
			F();
			_exit(i);
		}
		int s = status_of(p);
		if (WEXITSTATUS(s) != i) {
			out("bad status %x of %d\n", s, i);
			return 1;
		}
	}
	out("ok\n");
	return 0;
}

static int fork_tree(void)
{
	for (int i = 0; i < 6; i++)
		fork();
	F();
	while (wait(0) > 0)
		;
	return 0;
}

static int install_trap(void);


static void *fault(void *how)
{
	if (!strcmp(how, "segv")) *(volatile int *)8 = 1;
	if (!strcmp(how, "abort")) abort();
#ifdef __x86_64__
	if (!strcmp(how, "trap")) asm volatile("int3");
#endif
	if (!strcmp(how, "ill")) __builtin_trap();
	if (!strcmp(how, "blocked")) {
		sigset_t all;
		sigfillset(&all);
		sigprocmask(SIG_BLOCK, &all, 0);
		*(volatile int *)8 = 1;
	}
	if (!strcmp(how, "sys")) {
		install_trap();
		getppid();
	}
	if (!strcmp(how, "sent")) { // by itself: it gets no signal that it does not handle
		kill(getpid(), SIGSEGV);
		raise(SIGTERM);
	}
	if (!strcmp(how, "handled")) {
		signal(SIGSEGV, on_fault);
		if (!sigsetjmp(escape, 1)) *(volatile int *)8 = 1;
	}
	return 0;
}

static int new_pid_ns(void)
{
	if (unshare(CLONE_NEWPID)) {
		out("no namespace\n");
		return 0;
	}
	pid_t p = fork();
	if (!p) {
		out("pid=%d F=%d\n", getpid(), F());
		if (arg && !strcmp(arg, "thread")) {
			pthread_t t;
			pthread_create(&t, 0, fault, "segv");
			pthread_join(t, 0);
		} else if (arg) {
			fault((void *)arg);
		}
		_exit(0);
	}
	out("status=%x\n", status_of(p));
	return 0;
}

// install_filter makes getppid and seccomp fail with EDOM, as a sandbox of the program's own.
static int install_filter(void)
{
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_seccomp, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EDOM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog p = {5, f};
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p);
}

// install_trap makes getppid raise SIGSYS.
static int install_trap(void)
{
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog p = {4, f};
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p);
}

static int own_filter(void)
{
	int r = install_filter();
	long ppid = syscall(SYS_getppid);
	int e = ppid < 0 ? errno : 0;
	out("filter=%d getppid=%ld errno=%d F=%d\n", r, ppid, e, F());
	return 0;
}

// blocked: executes ARG... with some signals blocked.
static char **rest;
static int blocked(void)
{
	sigset_t m;
	sigfillset(&m);
	sigdelset(&m, SIGUSR2);
	sigdelset(&m, SIGRTMIN + 3);
	sigprocmask(SIG_BLOCK, &m, 0);
	close(dev);
	execv(rest[0], rest);
	return 98;
}

// tally counts a signal that comes from others, and says so each time, until it comes from
// its parent.
static volatile int tally_parent, tally_others, tally_said;
static void on_tally(int sig, siginfo_t *si, void *context)
{
	if (si->si_pid == getppid())
		tally_parent++;
	else
		tally_others++;
}

static int tally(void)
{
	struct sigaction sa = {.sa_sigaction = on_tally, .sa_flags = SA_SIGINFO};
	int sig = atoi(arg);
	sigset_t block, open;
	sigemptyset(&block);
	sigaddset(&block, sig);
	sigprocmask(SIG_BLOCK, &block, &open);
	sigaction(sig, &sa, 0);
	out("ready\n");
	while (!tally_parent) {
		sigsuspend(&open);
		while (tally_said < tally_others)
			out("got %d\n", ++tally_said);
	}
	out("others %d parent %d\n", tally_others, tally_parent);
	return 0;
}

// tell_group sends a signal to its group, and says how often it came.
static int tell_group(void)
{
	struct sigaction sa = {.sa_sigaction = on_tally, .sa_flags = SA_SIGINFO};
	int sig = atoi(arg);
	sigaction(sig, &sa, 0);
	kill(0, sig);
	out("traps %d\n", tally_others + tally_parent);
	return 0;
}

// environment: what a program inherits.
static int environment(void)
{
	struct rlimit r;
	sigset_t m;
	getrlimit(RLIMIT_NOFILE, &r);
	sigprocmask(SIG_BLOCK, 0, &m);
	out("nofile=%ld ", (long)r.rlim_cur);
	for (int s = 1; s < 65; s++) {
		struct sigaction sa;
		if (sigaction(s, 0, &sa))
			continue;
		if (sa.sa_handler == SIG_IGN)
			out("ignored=%d ", s);
		if (sigismember(&m, s))
			out("blocked=%d ", s);
	}
	out("group=%d tty=%d\nfds:", getpgrp() == tcgetpgrp(0), isatty(0));
	for (int i = 0; i < 200; i++)
		if (i != dev && fcntl(i, F_GETFD) >= 0)
			out(" %d", i);
	out("\n");
	return 0;
}

// count_keys says how often the signal came, until a line is typed. Signals are
// let in only while it waits, so that none can come between looking and waiting.
static int count_keys(void)
{
	sigset_t block, open;
	int sig = atoi(arg), said = 0;
	char b;
	sigemptyset(&block);
	sigaddset(&block, sig);
	sigprocmask(SIG_BLOCK, &block, &open);
	sigdelset(&open, sig);
	handle(sig, on_signal, 0);
	out("ready\n");
	for (;;) {
		fd_set in;
		FD_ZERO(&in);
		FD_SET(0, &in);
		int n = pselect(1, &in, 0, 0, 0, &open);
		while (said < got)
			out("trap %d\n", ++said);
		if (n > 0 && read(0, &b, 1) == 1)
			break;
	}
	out("got %d\n", said);
	return 0;
}

// wait_for: makes calls until it is killed. Prints its pid first.
static int forever(void)
{
	out("%d\n", getpid());
	for (;;) {
		F();
		usleep(2000);
	}
	return 0;
}

static int sleeper(void)
{
	out("%d\n", getpid());
	for (;;)
		pause();
	return 0;
}

// usr1_blocked: becomes ARG, with its arguments, while SIGUSR1 is blocked.
static int usr1_blocked(void)
{
	sigset_t m;
	sigemptyset(&m);
	sigaddset(&m, SIGUSR1);
	sigprocmask(SIG_BLOCK, &m, 0);
	execv(arg, rest);
	return 127;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

// calls: ARG calls with a nested buffer; prints what one took, in ns.
static int calls(void)
{
	char nested[100] = "nested";
	int bad = 0, n = atoi(arg);
	double t = now();
	for (int i = 0; i < n; i++) {
		struct params p = {1, 2, 3, 4, (uintptr_t)nested, sizeof nested, 0};
		if (ioctl_errno(REQUEST, &p) != -ENOTTY)
			bad++;
	}
	out("%.1f ns, %d bad\n", (now() - t) / n, bad);
	return bad != 0;
}

// others: ARG calls that nobody wants, in a thread that makes no other.
static void *getpids(void *n)
{
	double t = now();
	long bad = 0, pid = getpid();
	for (long i = 0; i < (long)n; i++)
		if (syscall(SYS_getpid) != pid)
			bad++;
	out("%.1f ns, %ld bad\n", (now() - t) / (long)n, bad);
	return 0;
}

static int others(void)
{
	pthread_t t;
	F();
	pthread_create(&t, 0, getpids, (void *)(long)atoi(arg));
	pthread_join(t, 0);
	return 0;
}

// attachee: threads that sleep in every way, some that call, and a counter that
// shows they were not disturbed. Ends when standard input does.
static int pipes[2];
static volatile long progress;
static void *in_read(void *a) { char b; int r = read(pipes[0], &b, 1); out("read %d\n", r); return 0; }
static void *in_futex(void *a) { pthread_mutex_lock(&lock); out("locked\n"); pthread_mutex_unlock(&lock); return 0; }
static void *in_calls(void *a)
{
	int bad = 0;
	while (!__atomic_load_n(&progress, __ATOMIC_SEQ_CST)) {
		if (F() != -ENOTTY)
			bad++;
		usleep(500);
	}
	out("calls bad=%d\n", bad);
	return 0;
}
static int attachee(void)
{
	pthread_t t[4];
	char b;
	pipe(pipes);
	pthread_mutex_lock(&lock);
	pthread_create(&t[0], 0, in_read, 0);
	pthread_create(&t[1], 0, in_futex, 0);
	pthread_create(&t[2], 0, in_calls, 0);
	pthread_create(&t[3], 0, in_calls, 0);
	usleep(20000);
	out("%d\n", getpid());
	int r = read(0, &b, 1);
	out("stdin %d\n", r);
	write(pipes[1], "x", 1);
	pthread_join(t[0], 0);
	pthread_mutex_unlock(&lock);
	pthread_join(t[1], 0);
	__atomic_store_n(&progress, 1, __ATOMIC_SEQ_CST);
	pthread_join(t[2], 0);
	pthread_join(t[3], 0);
	out("traced=%d\n", ptrace(PTRACE_TRACEME, 0, 0, 0) < 0);
	return 6;
}

// inject: ARG processes of two threads each make the calls that a second filter is
// about: dup and close, before and after the call that makes it be installed.
static void *dups(void *n)
{
	int bad = 0;
	for (long i = 0; i < (long)n; i++) {
		int d = dup(dev);
		if (d < 0 || close(d))
			bad++;
	}
	return (void *)(long)bad;
}

static int inject(void)
{
	pthread_t t;
	void *bad = 0;
	char before[256], after[256];
	FILE *f;
	handle(SIGALRM, on_tick, SA_RESTART);
	ticking = 1;
	timer(200, 0);
	pthread_create(&t, 0, dups, (void *)2000);
	for (int i = 0; i < 256; i++)
		before[i] = i;
	memcpy(after, before, sizeof before);
	int r = F();
	dups((void *)50);
	int same = !memcmp(before, after, sizeof before);
	pthread_join(t, &bad);
	pid_t p = fork();
	if (!p)
		_exit((long)dups((void *)50));
	int s = status_of(p);
	ticking = 0;
	timer(0, 0);
	int filters = -1;
	char line[256];
	if ((f = fopen("/proc/self/status", "r")))
		while (fgets(line, sizeof line, f))
			sscanf(line, "Seccomp_filters: %d", &filters);
	out("F=%d same=%d bad=%ld status=%x\n", r, same, (long)bad, s);
	if (arg)
		out("filters=%d\n", filters);
	return 0;
}

static const struct {
	const char *name;
	int (*run)(void);
} table[] = {
	{"hello", hello}, {"status", status}, {"death", death}, {"segv", segv}, {"segv_handler", segv_handler},
	{"fork", forks}, {"vfork", vforks}, {"spawn", spawns}, {"raw_fork", raw_fork}, {"threads", threads},
	{"hammer", hammer}, {"thread_exec", thread_exec}, {"leader_exec", leader_exec}, {"exec_forever", exec_forever}, {"leader_exit", leader_exit},
	{"dead_leader_exec", dead_leader_exec}, {"exit_group", exit_group_threads}, {"fork_in_thread", fork_in_thread},
	{"crowd", crowd}, {"stop_cont", stop_cont}, {"tstp", tstp}, {"stop_threads", stop_threads}, {"sig_queue", sig_queue},
	{"sig_trap", sig_trap}, {"itimer", itimer}, {"eintr", eintr}, {"restart", restart},
	{"nanosleep_stop", nanosleep_stop}, {"untraced", untraced}, {"untraced3", untraced3}, {"fixed", fixed}, {"int80", int80}, {"bad_pointer", bad_pointer},
	{"trace_me", trace_me}, {"undumpable", undumpable}, {"set_uid", set_uid}, {"orphan", orphan}, {"orphan_forever", orphan_forever},
	{"kill_self", kill_self}, {"sig_mask", sig_mask}, {"many_forks", many_forks}, {"fork_tree", fork_tree},
	{"new_pid_ns", new_pid_ns}, {"own_filter", own_filter}, {"environment", environment}, {"blocked", blocked}, {"tally", tally}, {"tell_group", tell_group}, {"forever", forever}, {"count_keys", count_keys},
	{"sleeper", sleeper}, {"usr1_blocked", usr1_blocked}, {"calls", calls}, {"others", others}, {"attachee", attachee}, {"inject", inject},
};

int main(int argc, char **argv)
{
	if (argc < 2)
		return 99;
	arg = argc > 2 ? argv[2] : 0;
	rest = argv + 2;
	dev = open("/dev/null", O_RDWR);
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (!strcmp(argv[1], table[i].name))
			return table[i].run();
	return 99;
}
