// A program to set breakpoints in. Every mode counts its own calls.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

long cell = 41;
long (*pointer)(long);
char room[64];

// Functions that begin in every way that matters to whoever has to execute
// their first instruction elsewhere. Each returns a function of its argument.
asm(".text\n"
    ".macro fn name\n .globl \\name\n .type \\name,@function\n .p2align 4\n\\name:\n .endm\n"
    "fn f_push\n push %rbp\n mov %rsp,%rbp\n lea 1(%rdi),%rax\n pop %rbp\n ret\n"
    "fn f_endbr\n endbr64\n lea 2(%rdi),%rax\n ret\n"
    "fn f_lea\n lea 3(%rdi),%rax\n ret\n"
    "fn f_load\n mov cell(%rip),%rax\n add %rdi,%rax\n ret\n"
    "fn f_store\n movl $5,cell(%rip)\n movslq cell(%rip),%rax\n movq $41,cell(%rip)\n add %rdi,%rax\n ret\n"
    "fn f_cmp\n cmpq $41,cell(%rip)\n jne 1f\n lea 4(%rdi),%rax\n ret\n1: xor %eax,%eax\n ret\n"
    "fn f_jmp\n jmp f_lea\n"
    "fn f_jmp8\n jmp 1f\n ud2\n1: lea 5(%rdi),%rax\n ret\n"
    "fn f_call\n call f_lea\n add $6,%rax\n ret\n"
    "fn f_jmpind\n jmp *pointer(%rip)\n"
    "fn f_callind\n call *pointer(%rip)\n add $7,%rax\n ret\n"
    "fn f_ret\n ret\n"
    "fn f_jcc\n jl 1f\n lea 8(%rdi),%rax\n ret\n1: lea 9(%rdi),%rax\n ret\n"
    "fn f_jcc32\n .byte 0x0f,0x8c\n .long 1f-.-4\n lea 10(%rdi),%rax\n ret\n .skip 200,0xcc\n1: lea 11(%rdi),%rax\n ret\n"
    "fn f_loop\n loop 1f\n lea 12(%rdi),%rax\n ret\n1: lea 13(%rdi),%rax\n ret\n"
    "fn f_rep\n rep stosb\n mov %rdi,%rax\n ret\n"
    "fn f_avx\n vzeroupper\n lea 14(%rdi),%rax\n ret\n"
    "fn f_sse\n movups room(%rip),%xmm0\n movq %xmm0,%rax\n add %rdi,%rax\n ret\n"
    "fn f_sub\n sub $0x18,%rsp\n mov %rdi,8(%rsp)\n mov 8(%rsp),%rax\n add $0x18,%rsp\n ret\n"
    "fn f_nop\n nopw 0(%rax,%rax,1)\n lea 15(%rdi),%rax\n ret\n"
    "fn f_deref\n mov (%rdi),%rax\n ret\n"
    "fn f_pushf\n pushf\n pop %rax\n and $0x100,%eax\n add %rdi,%rax\n ret\n"
    "fn f_trap\n nop\n int3\n lea 16(%rdi),%rax\n ret\n"
    "fn f_sys\n syscall\n ret\n"
    // Calls a function with flags and a counter of the caller's choice.
    "fn with_flags\n mov %rdi,%r11\n mov %rsi,%rdi\n mov %rdx,%rcx\n cmp $0,%rdx\n jmp *%r11\n");

#define EACH(X) \
	X(f_push) X(f_endbr) X(f_lea) X(f_load) X(f_store) X(f_cmp) X(f_jmp) X(f_jmp8) X(f_call) X(f_jmpind) \
	X(f_callind) X(f_jcc) X(f_jcc32) X(f_avx) X(f_sse) X(f_sub) X(f_nop) X(f_pushf)
#define DECLARE(f) extern long f(long);
EACH(DECLARE)
extern long f_rep(void *, long, long), f_deref(long *), f_loop(long), f_ret(long), f_trap(long), f_sys(long);
extern long with_flags(long (*)(long), long, long);

static const struct {
	const char *name;
	long (*fn)(long);
} fns[] = {
#define ROW(f) {#f, f},
	EACH(ROW)};
#define NFNS (sizeof fns / sizeof *fns)

static char **rest;

static int device(void) { return ioctl(2, 0xc020462a, 0); }

// insns calls all of them in many ways.
static int insns(void)
{
	pointer = f_lea;
	long sum = 0;
	for (int round = 0; round < 20; round++)
		for (size_t i = 0; i < NFNS; i++) {
			long v = fns[i].fn(round);
			if (round < 2)
				printf("%s(%d)=%ld\n", fns[i].name, round, v);
			sum += v * (i + 1);
		}
	for (long c = -2; c <= 2; c++)
		printf("jcc %ld: %ld %ld %ld\n", c, with_flags(f_jcc, 1, c), with_flags(f_jcc32, 1, c), c ? with_flags(f_loop, 1, c) : 0);
	// rep stosb: rdi, al, rcx
	for (long n = 0; n <= 40; n += 20) {
		long r;
		memset(room, 1, sizeof room);
		asm volatile("call f_rep" : "=a"(r) : "D"(room), "a"(7), "c"(n) : "memory", "rsi", "rdx", "r8", "r9", "r10", "r11");
		int k = 0;
		while (k < 64 && room[k] == 7)
			k++;
		printf("rep %ld: moved %ld, filled %d\n", n, r - (long)room, k);
		memset(room, 0, sizeof room);
	}
	printf("sum=%ld\n", sum);
	return 0;
}

// hammer N threads M calls F: results are checked.
static long (*target)(long);
static int calls;
static int bad;
static pthread_barrier_t begun; // on a busy machine a thread could have ended before the next begins
static void *hammerer(void *p)
{
	pthread_barrier_wait(&begun);
	long base = (long)p * 1000000, off = with_flags(target, 0, 1); // f_jcc depends on the flags
	for (int i = 1; i < calls; i++)
		if (with_flags(target, base + i, 1) != base + i + off)
			__atomic_fetch_add(&bad, 1, __ATOMIC_RELAXED);
	return 0;
}

static long (*lookup(const char *name))(long)
{
	for (size_t i = 0; i < NFNS; i++)
		if (!strcmp(fns[i].name, name))
			return fns[i].fn;
	exit(98);
}

static int hammer(void)
{
	int n = atoi(rest[0]);
	calls = atoi(rest[1]);
	target = lookup(rest[2]);
	pointer = f_lea;
	pthread_t t[64];
	struct timespec a, b;
	pthread_barrier_init(&begun, 0, n);
	clock_gettime(CLOCK_MONOTONIC, &a);
	for (long i = 0; i < n; i++)
		pthread_create(&t[i], 0, hammerer, (void *)i);
	for (int i = 0; i < n; i++)
		pthread_join(t[i], 0);
	clock_gettime(CLOCK_MONOTONIC, &b);
	double ns = ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / ((double)n * calls);
	printf("%.1f ns, %d bad\n", ns, bad);
	return 0;
}

// recursion
NOINLINE long fact(long n)
{
	asm volatile("");
	return n <= 1 ? 1 : n * fact(n - 1);
}
static void *facts(void *p)
{
	for (int i = 0; i < 20; i++)
		if (fact(10) != 3628800 || fact(12) != 479001600)
			__atomic_fetch_add(&bad, 1, __ATOMIC_RELAXED);
	return 0;
}
static int recurse(void)
{
	pthread_t t[4];
	for (int i = 0; i < 4; i++)
		pthread_create(&t[i], 0, facts, 0);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], 0);
	printf("%d bad\n", bad);
	return 0;
}

// g calls f_lea as its last act.
asm("fn tail\n add $100,%rdi\n jmp f_lea\n");
extern long tail(long);
static int tails(void)
{
	long s = 0;
	for (int i = 0; i < 50; i++)
		s += tail(i);
	printf("%ld\n", s);
	return 0;
}

// children
static int report_children(const char *what, int n)
{
	int ok = 0, st;
	while (n-- > 0)
		if (wait(&st) > 0 && st == 0)
			ok++;
	printf("%s ok=%d\n", what, ok);
	return 0;
}
static int forks(void)
{
	for (int i = 0; i < 10; i++) {
		f_push(i);
		if (!fork())
			_exit(f_push(i) == i + 1 && f_lea(i) == i + 3 ? 0 : 1);
	}
	return report_children("fork", 10);
}
static int vforks(void)
{
	for (int i = 0; i < 10; i++) {
		f_push(i);
		if (!vfork()) {
			if (f_push(i) != i + 1)
				_exit(1);
			if (i & 1)
				_exit(0);
			execl("/proc/self/exe", "breaker", "one", (char *)0);
			_exit(2);
		}
		f_push(i);
	}
	return report_children("vfork", 10);
}
static int shared(void *p) { return f_push((long)p) == (long)p + 1 ? 0 : 1; }
static int clones(void) // CLONE_VM without CLONE_THREAD, running beside its parent
{
	static char stacks[4][65536] __attribute__((aligned(16)));
	for (long i = 0; i < 4; i++)
		clone(shared, stacks[i] + sizeof stacks[i], CLONE_VM | SIGCHLD, (void *)i);
	for (int i = 0; i < 200; i++)
		f_push(i);
	return report_children("clone", 4);
}
// a function that forks: the child returns from it, too
NOINLINE int forker(void)
{
	asm volatile("");
	int p = fork();
	asm volatile("");
	return p ? 7 : 8;
}
static void *fork_from_thread(void *p)
{
	if (forker() == 8)
		_exit(f_push(1) == 2 ? 0 : 1);
	return 0;
}
static int fork_inside(void)
{
	pthread_t t[3];
	for (int i = 0; i < 3; i++)
		pthread_create(&t[i], 0, fork_from_thread, 0);
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], 0);
	return report_children("inside", 3);
}
static int one(void) { return f_push(1) == 2 ? 0 : 1; }
static volatile int spun;
static void *spinner(void *p)
{
	for (;;)
		spun = f_push(1);
	return 0;
}
static void *execer(void *p)
{
	usleep(2000);
	execl("/proc/self/exe", "breaker", "one", (char *)0);
	return 0;
}
static int thread_exec(void) // execve while others are at breakpoints
{
	pthread_t t;
	for (int i = 0; i < 4; i++)
		pthread_create(&t, 0, spinner, 0);
	pthread_create(&t, 0, execer, 0);
	if (rest[0])
		spinner(0);
	pause();
	return 9;
}
static int killed(void) // exit_group while others are at breakpoints
{
	pthread_t t;
	for (int i = 0; i < 6; i++)
		pthread_create(&t, 0, spinner, 0);
	do
		usleep(3000);
	while (!spun);
	if (rest[0] && !strcmp(rest[0], "kill"))
		kill(getpid(), SIGKILL);
	_exit(5);
}
static void *once(void *p)
{
	return (void *)f_push((long)p);
}
static int storm(void) // threads that call once and end
{
	for (int round = 0; round < 40; round++) {
		pthread_t t[8];
		for (long i = 0; i < 8; i++)
			pthread_create(&t[i], 0, once, (void *)i);
		for (long i = 0; i < 8; i++) {
			void *r;
			pthread_join(t[i], &r);
			if ((long)r != i + 1)
				bad++;
		}
	}
	printf("%d bad\n", bad);
	return 0;
}

// signals
static volatile long in_handler, fired;
static volatile int ticking;
static void tick(int usec)
{
	struct itimerval it = {{0, 0}, {0, usec}};
	setitimer(ITIMER_REAL, &it, 0);
}
static void handler(int s)
{
	long n = __atomic_add_fetch(&fired, 1, __ATOMIC_RELAXED);
	if (f_push(n) == n + 1)
		__atomic_fetch_add(&in_handler, 1, __ATOMIC_RELAXED);
	// Not again and again by itself: where handling one takes longer than the time to the
	// next, as it may on a busy machine, nothing else would be done.
	if (ticking)
		tick(1000);
}
static int signals(void)
{
	struct sigaction sa = {.sa_handler = handler, .sa_flags = SA_RESTART};
	sigaction(SIGALRM, &sa, 0);
	sigaction(SIGUSR1, &sa, 0);
	ticking = 1;
	tick(1000);
	int wrong = 0, i;
	target = lookup(rest[0]);
	pointer = f_lea;
	long off = target(0);
	for (i = 1; i < 4000; i++) {
		if (i % 16 == 0)
			raise(SIGUSR1);
		if (target(i) != i + off)
			wrong++;
	}
	ticking = 0;
	tick(0);
	printf("fired %ld, in handler %ld, wrong %d\n", fired, in_handler, wrong);
	return 0;
}

static jmp_buf back;
static volatile int jump_out;
NOINLINE long jumper(long n)
{
	asm volatile("");
	if (jump_out)
		longjmp(back, 1);
	asm volatile("");
	return n + 1;
}
static int longjmps(void)
{
	volatile int returned = 0, jumped = 0;
	for (volatile int i = 0; i < 60; i++) {
		jump_out = i % 3 == 0;
		if (setjmp(back))
			jumped++;
		else if (jumper(i) == i + 1)
			returned++;
	}
	printf("returned %d, jumped %d\n", returned, jumped);
	return 0;
}

// own breakpoints
static volatile int traps;
static void on_trap(int s) { traps++; }
static int own(void)
{
	signal(SIGTRAP, on_trap);
	for (int i = 0; i < 5; i++) {
		asm volatile("int3");
		f_push(i);
		raise(SIGTRAP);
		if (f_trap(i) != i + 16)
			bad++;
	}
	printf("traps %d, bad %d\n", traps, bad);
	return 0;
}

// a fault of the very instruction
static volatile long fault_at, fault_ip;
static long good = 77;
static void on_segv(int s, siginfo_t *si, void *u)
{
	ucontext_t *c = u;
	fault_at = (long)si->si_addr;
	fault_ip = c->uc_mcontext.gregs[REG_RIP];
	c->uc_mcontext.gregs[REG_RDI] = (long)&good;
}
static int segv(void)
{
	struct sigaction sa = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO};
	sigaction(SIGSEGV, &sa, 0);
	for (int i = 0; i < 3; i++) {
		long v = f_deref((long *)0x123450);
		printf("value %ld, fault at %lx, ip %s\n", v, fault_at, fault_ip == (long)f_deref ? "right" : "wrong");
	}
	return 0;
}
static int die(void) // untreated
{
	return f_deref((long *)0x10);
}

// a page that goes away, and comes back as another
static int unmap(void)
{
	for (int i = 0; i < 10; i++) {
		unsigned char *p = mmap((void *)0x612340000, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		static const unsigned char code[] = {0x55, 0x48, 0x8d, 0x47, 0x01, 0x5d, 0xc3}; // push; lea 1(%rdi),%rax; pop; ret
		memcpy(p, code, sizeof code);
		mprotect(p, 4096, PROT_READ | PROT_EXEC);
		if (((long (*)(long))p)(i) != i + 1)
			bad++;
		munmap(p, 4096);
	}
	printf("%d bad\n", bad);
	return 0;
}

// another stack
static ucontext_t here, there;
static volatile long on_stack;
NOINLINE long switcher(long n)
{
	asm volatile("");
	swapcontext(&here, &there);
	asm volatile("");
	return n * 2;
}
static void coroutine(void)
{
	for (;;) {
		on_stack += f_push(1);
		swapcontext(&there, &here);
	}
}
static int stacks(void)
{
	static char low[65536];
	getcontext(&there);
	there.uc_stack.ss_sp = low;
	there.uc_stack.ss_size = sizeof low;
	makecontext(&there, coroutine, 0);
	long sum = 0;
	for (int i = 0; i < 20; i++)
		sum += switcher(i);
	printf("sum %ld, other %ld\n", sum, on_stack);
	return 0;
}

// stops of every kind, for system calls
static int places(void)
{
	f_push(1);
	for (int i = 0; i < 20; i++) {
		errno = 0;
		if (device() != -1 || errno != ENOTTY)
			bad++;
		f_push(i);
	}
	pthread_t t;
	pthread_create(&t, 0, once, 0);
	pthread_join(t, 0);
	if (!vfork())
		_exit(0);
	wait(0);
	printf("%d bad\n", bad);
	fflush(stdout);
	if (rest[0] && !strcmp(rest[0], "again"))
		execl("/proc/self/exe", "breaker", "places", (char *)0);
	return 0;
}

// a thread that blocks everything
static void *masked_thread(void *p)
{
	sigset_t set;
	sigfillset(&set);
	pthread_sigmask(SIG_BLOCK, &set, 0);
	for (int i = 0; i < 10; i++)
		if (f_push(i) != i + 1 || f_avx(i) != i + 14)
			__atomic_fetch_add(&bad, 1, __ATOMIC_RELAXED);
	return 0;
}
static int masked(void)
{
	pthread_t t[4];
	for (int i = 0; i < 4; i++)
		pthread_create(&t[i], 0, masked_thread, 0);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], 0);
	printf("%d bad\n", bad);
	return 0;
}

// sleepers, for interruptions
static int pipes[2];
static void *sleeper(void *p)
{
	char c;
	if (read(pipes[0], &c, 1) != 1)
		bad++;
	return 0;
}
static void *napper(void *p)
{
	struct timespec ts = {0, 300000000};
	if (nanosleep(&ts, 0))
		bad++;
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	int s;
	if (sigwait(&set, &s))
		bad++;
	return 0;
}
static int sleep_until(int told)
{
	sigset_t set;
	int s;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	sigaddset(&set, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &set, 0);
	sigdelset(&set, SIGUSR2);
	pipe(pipes);
	pthread_t t[2];
	pthread_create(&t[0], 0, sleeper, 0);
	pthread_create(&t[1], 0, napper, 0);
	device();
	if (!told)
		kill(getpid(), SIGUSR1);
	if (sigwait(&set, &s)) // until they have been interrupted
		bad++;
	pthread_kill(t[1], SIGUSR2);
	write(pipes[1], "x", 1);
	pthread_join(t[0], 0);
	pthread_join(t[1], 0);
	printf("%d bad\n", bad);
	return 0;
}
static int sleepers(void) { return sleep_until(0); }
static int told_sleepers(void) { return sleep_until(1); }

// for attaching
static volatile int over;
static long made[4];
static void *worker(void *p)
{
	long i = (long)p;
	while (!over) {
		if (f_push(i) != i + 1 || f_load(i) != i + 41)
			__atomic_fetch_add(&bad, 1, __ATOMIC_RELAXED);
		made[i]++;
		if (made[i] % 64 == 0)
			device();
	}
	return 0;
}
static int attachee(void)
{
	unsigned char before[64], after[64];
	memcpy(before, (void *)f_push, 32);
	memcpy(before + 32, (void *)f_load, 32);
	pthread_t t[4];
	for (long i = 0; i < 4; i++)
		pthread_create(&t[i], 0, worker, (void *)i);
	printf("%d\n", getpid());
	fflush(stdout);
	char c;
	while (read(0, &c, 1) > 0) {
		memcpy(after, (void *)f_push, 32);
		memcpy(after + 32, (void *)f_load, 32);
		if (c == 'f' && !fork()) {
			int r = f_push(1) != 2;
			_exit(r);
		}
		if (c == 'f') {
			int st;
			wait(&st);
			printf("child %x\n", st);
		} else
			printf("same %d\n", !memcmp(before, after, 64));
		fflush(stdout);
	}
	over = 1;
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], 0);
	printf("%d bad\n", bad);
	return 0;
}

// calls from a page at 0x70000000, and elsewhere
static int exempt(void)
{
	static const unsigned char code[] = {0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6, 0x48, 0x89, 0xca, 0x0f, 0x05, 0xc3};
	// mov %rdi,%rax; mov %rsi,%rdi; mov %rdx,%rsi; mov %rcx,%rdx; syscall; ret
	for (int page = 0; page < 3; page++) {
		unsigned char *p = mmap((void *)(0x6ffff000L + page * 4096L), 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		for (int at = 0; at <= 4080; at += 4080) {
			memcpy(p + at, code, sizeof code);
			mprotect(p, 4096, PROT_READ | PROT_WRITE | PROT_EXEC);
			long r = ((long (*)(long, long, long, long))(p + at))(16, 2, 0xc020462a, page);
			if (r != -ENOTTY)
				bad++;
		}
	}
	printf("%d bad\n", bad);
	return 0;
}

// mappings of code, as ld.so makes them
static int maps(void)
{
	int fd = open("/proc/self/exe", O_RDONLY);
	mmap(0, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
	mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
	mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *p = mmap(0, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
	mprotect(p, 4096, PROT_READ | PROT_WRITE);
	mprotect(p, 4096, PROT_READ | PROT_EXEC);
	return 0;
}

static const struct {
	const char *name;
	int (*run)(void);
} table[] = {
#define MODE(f) {#f, f},
	MODE(insns) MODE(hammer) MODE(recurse) MODE(tails) MODE(forks) MODE(vforks) MODE(clones) MODE(fork_inside)
	MODE(one) MODE(thread_exec) MODE(killed) MODE(storm) MODE(signals) MODE(longjmps) MODE(own) MODE(segv) MODE(die)
	MODE(unmap) MODE(stacks) MODE(masked) MODE(places) MODE(sleepers) MODE(told_sleepers) MODE(attachee) MODE(exempt) MODE(maps)
};

int main(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "undumpable")) {
		prctl(PR_SET_DUMPABLE, 0);
		argv++;
		argc--;
	}
	if (argc < 2)
		return 99;
	rest = argv + 2;
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (!strcmp(argv[1], table[i].name))
			return table[i].run();
	return 99;
}
