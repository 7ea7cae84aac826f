// hooks: calls functions that the tracer hooks, in the way that argv[1] names, and
// prints what must have been recorded. `mark(i, f, size)` asks the tracer to hook f
// with its hook number i.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define NI __attribute__((noinline, noclone))

static void mark(long i, void *f, long size) { syscall(SYS_ioctl, 0xfffffffeu, 0x4d41524bu, i, f, size); }

static int gettid_(void) { return syscall(SYS_gettid); }

NI long six(long a, long b, long c, long d, long e, long f, long g, long h)
{
	__asm__ volatile("");
	return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h;
}

struct big {
	long v[8];
};

NI struct big give(long a)
{
	struct big b;
	for (int i = 0; i < 8; i++)
		b.v[i] = a * i;
	return b;
}

NI double dbl(double x, long n, double y)
{
	__asm__ volatile("");
	return x * n + y;
}

NI long va(int n, ...)
{
	va_list l;
	long s = 0;
	va_start(l, n);
	for (int i = 0; i < n; i++)
		s += i % 2 ? (long)va_arg(l, double) : va_arg(l, long);
	va_end(l);
	return s;
}

NI long mem(const char *s, const long *in, long *out, long n)
{
	for (long i = 0; i < n; i++)
		out[i] = in[i] * 2;
	return strlen(s);
}

NI long odd(long n)
{
	__asm__ volatile("" : "+r"(n));
	return n & 1;
}

// Calls odd with numbers in the registers that calls preserve.
NI long preserving(long n, long *kept)
{
	long r, bad;
	__asm__ volatile("push %%rbx\n push %%r12\n push %%r13\n push %%r14\n push %%r15\n push %%rbp\n mov %%rsp,%%rbp\n and $-16,%%rsp\n"
			 "mov $0x5a5a0000,%%ebx\n mov $0x5a5a0001,%%r12d\n mov $0x5a5a0002,%%r13d\n mov $0x5a5a0003,%%r14d\n mov $0x5a5a0004,%%r15d\n"
			 "call *%%rdx\n"
			 "xor $0x5a5a0000,%%ebx\n xor $0x5a5a0001,%%r12d\n xor $0x5a5a0002,%%r13d\n xor $0x5a5a0003,%%r14d\n xor $0x5a5a0004,%%r15d\n"
			 "or %%r12,%%rbx\n or %%r13,%%rbx\n or %%r14,%%rbx\n or %%r15,%%rbx\n mov %%rbx,%%rdx\n"
			 "mov %%rbp,%%rsp\n pop %%rbp\n pop %%r15\n pop %%r14\n pop %%r13\n pop %%r12\n pop %%rbx\n"
			 : "+D"(n), "=a"(r), "=d"(bad)
			 : "2"(odd)
			 : "rcx", "rsi", "r8", "r9", "r10", "r11", "memory", "cc");
	if (bad)
		*kept = 0;
	return r;
}

NI long fib(long n)
{
	return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

NI long add(long a, long b)
{
	__asm__ volatile("");
	return a + b;
}

NI long call(long (*f)(long), long x)
{
	long r = f(x);
	__asm__ volatile("");
	return r + 1;
}

// Shapes of beginnings. Some must be refused.
__asm__(
	".text\n.globl short1\nshort1: mov $7,%eax\n ret\n .skip 16,0xcc\n.globl short1_end\nshort1_end:\n"
	".globl tiny\ntiny: xor %eax,%eax\n ret\n.globl tiny_end\ntiny_end:\n nop\n nop\n nop\n .skip 8,0x90\n"
	".globl tight\ntight: inc %edi\n mov %edi,%eax\n ret\n.globl tight_end\ntight_end:\n"
	".globl neighbour\nneighbour: lea 1(%rdi),%rax\n ret\n .skip 16,0x90\n"
	".globl brief\nbrief: mov %edi,%eax\n ret\n.globl brief_end\nbrief_end: lea 1(%rdi),%rax\n ret\n"
	".globl ripload\nripload: mov value(%rip),%eax\n add %edi,%eax\n ret\n .skip 16,0x90\n.globl ripload_end\nripload_end:\n"
	".globl ripstore\nripstore: movl $5,value2(%rip)\n mov value2(%rip),%eax\n ret\n .skip 16,0x90\n.globl ripstore_end\nripstore_end:\n"
	".globl early\nearly: test %edi,%edi\n je 1f\n mov $1,%eax\n ret\n1: mov $2,%eax\n ret\n .skip 16,0x90\n.globl early_end\nearly_end:\n"
	".globl loopy\nloopy: mov %edi,%eax\n2: dec %eax\n add $2,%eax\n dec %edi\n jg 2b\n ret\n .skip 16,0x90\n.globl loopy_end\nloopy_end:\n"
	".globl again\nagain: mov %edi,%eax\n sub $1,%edi\n jg again\n ret\n .skip 16,0x90\n.globl again_end\nagain_end:\n"
	".globl thunk\nthunk: jmp add\n .skip 16,0xcc\n.globl thunk_end\nthunk_end:\n"
	".globl marked\nmarked: endbr64\n push %rbx\n mov %rdi,%rbx\n lea 3(%rbx),%rax\n pop %rbx\n ret\n .skip 16,0x90\n.globl marked_end\nmarked_end:\n"
	".globl calls\ncalls: sub $8,%rsp\n call neighbour\n add $8,%rsp\n ret\n .skip 16,0x90\n.globl calls_end\ncalls_end:\n"
	".globl calls2\ncalls2: push %rdi\n call neighbour\n pop %rdi\n ret\n .skip 16,0x90\n.globl calls2_end\ncalls2_end:\n"
	".data\nvalue: .long 40\nvalue2: .long 0\n.text\n");
#define SHAPES(X) X(short1) X(tiny) X(tight) X(brief) X(ripload) X(ripstore) X(early) X(loopy) X(again) X(thunk) X(marked) X(calls) X(calls2)
#define DECL(f) extern char f[], f##_end[];
SHAPES(DECL)

static void shapes(void)
{
	long sum[2];
	for (int pass = 0; pass < 2; pass++) {
		sum[pass] = 0;
#define RUN(f) for (long i = 0; i < 5; i++) { long r = ((int (*)(long, long))(void *)f)(i, 3); sum[pass] = sum[pass] * 31 + r; }
		SHAPES(RUN)
#define MARK(f) if (!pass) mark(0, f, f##_end - f);
		SHAPES(MARK)
	}
	printf("same %d\n", sum[0] == sum[1]);
}

static jmp_buf env;

static long jumps(long x)
{
	if (x % 3 == 0)
		longjmp(env, 1);
	return x;
}

static long forks(long x)
{
	int st;
	pid_t p = fork();
	if (p < 0)
		abort();
	if (p)
		waitpid(p, &st, 0);
	return p ? WEXITSTATUS(st) : 100;
}

static long vforks(long x)
{
	int st;
	pid_t p = vfork();
	if (!p) {
		add(1000, x);
		_exit(add(40, 2));
	}
	waitpid(p, &st, 0);
	return WEXITSTATUS(st);
}

// fill sets n bytes. It is in the midst of its second instruction nearly all the time.
void fill(void *to, int c, long n);
__asm__(".text\n.globl fill\n.type fill, @function\n.balign 16\nfill:\n"
	"\txchg %eax, %esi\n\tmov %rdx, %rcx\n\trep stosb\n\tret\n\t.balign 16, 0x90\n.size fill, .-fill\n");

enum { filled = 64 << 20 };
static volatile char *full;
static volatile long rounds;
static volatile int over;

static void *filler(void *none)
{
	while (!over) {
		fill((void *)full, rounds % 100 + 1, filled);
		for (long i = 0; i < filled; i += 4097)
			if (full[i] != rounds % 100 + 1)
				abort();
		rounds++;
	}
	return none;
}

static long exits(long x)
{
	pthread_exit((void *)x);
	return 0;
}

static void *exiter(void *x)
{
	call(exits, (long)x);
	return 0;
}

static volatile long handled;

static void onalarm(int s)
{
	handled++;
	add(handled, 1);
}

static int step_fd;

// ask makes an ioctl that fails.
static NI long ask(long a, long b)
{
	long arg[2] = {a, b};
	return ioctl(step_fd, 0x4600, arg) == -1 && errno == ENOTTY ? a + b : -1;
}

static long (*step_call)(long, long) = add;

// Steps: the trap flag is set for one call of add, or ask. The handler of SIGTRAP comes
// after each of its instructions, and at the one of number `at` it makes a call
// itself, or jumps away.
static volatile long step_no, step_at;
static volatile int step_how; // 0: call; 1: jump; 2: call and jump; 3: many calls
static sigjmp_buf step_env;

static void onstep(int s)
{
	if (step_no++ != step_at)
		return;
	if (step_how != 1)
		for (int i = step_how == 3 ? 550 : 1; i-- > 0;)
			if (step_call(step_at, 2) != step_at + 2)
				abort();
	if (step_how == 1 || step_how == 2)
		siglongjmp(step_env, 1);
}

static NI long trap_flag(long (*f)(long, long), long a)
{
	long r;
	__asm__ volatile("sub $128,%%rsp\n pushf\n orq $0x100,(%%rsp)\n popf\n call *%[f]\n pushf\n andq $~0x100,(%%rsp)\n popf\n add $128,%%rsp\n"
			 : "=a"(r) : [f] "r"(f), "D"(a), "S"(1l) : "rcx", "rdx", "r8", "r9", "r10", "r11", "cc", "memory");
	return r;
}

// For every stride-th instruction of a call. Prints how many instructions there were,
// how many calls were made, and how many were left.
static void steps(int how, int stack, long from, long stride)
{
	static char other[1 << 16];
	stack_t ss = {.ss_sp = other, .ss_size = sizeof other};
	struct sigaction sa = {.sa_handler = onstep, .sa_flags = stack ? SA_ONSTACK : 0};
	volatile long left = 0, calls = 0, at;
	if (stack)
		sigaltstack(&ss, 0);
	sigaction(SIGTRAP, &sa, 0);
	step_how = how;
	if (step_call == add) {
		mark(0, add, 0);
	} else {
		step_fd = open("/dev/null", O_RDWR);
		mark(step_fd, 0, 0);
		calls += 2; // which stop
		ask(0, 9);
		ask(0, 9);
	}
	for (at = from;; at += stride) {
		step_no = 0;
		step_at = at;
		calls++;
		if (sigsetjmp(step_env, 1))
			left++;
		else if (trap_flag(step_call, at) != at + 1)
			abort();
		if (step_no <= at)
			break;
		calls += how == 3 ? 550 : how != 1;
		calls++;
		if (step_call(at, 5) != at + 5)
			abort();
	}
	printf("steps %ld calls %ld left %ld\n", step_no, (long)calls, (long)left);
}

static long calls_of_thread;

static void *hammer(void *n)
{
	long s = 0;
	for (long i = 0; i < (long)n; i++)
		s += add(i, 1);
	if (s != (long)n * ((long)n + 1) / 2)
		abort();
	printf("tid %d calls %ld\n", gettid_(), (long)n);
	return 0;
}

static ucontext_t mainc, fiber[2];
static char stacks[2][65536];

static long switches(long x)
{
	swapcontext(&fiber[x], &mainc);
	return x;
}

static void body(int i) { calls_of_thread += call(switches, i); }

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	const char *how = argv[1];
	setvbuf(stdout, 0, _IOLBF, 0);
	if (!strcmp(how, "plain")) {
		char text[300];
		long in[4] = {1, 2, 3, 4}, out[4] = {0};
		mark(0, six, 0);
		mark(1, give, 0);
		mark(2, dbl, 0);
		mark(3, va, 0);
		mark(4, mem, 0);
		struct big b;
		memset(text, 'x', sizeof text);
		text[299] = 0;
		printf("six %ld\n", six(1, 2, 3, 4, 5, 6, 7, 8));
		b = give(3);
		printf("give %ld %ld\n", b.v[1], b.v[7]);
		printf("dbl %g\n", dbl(1.5, 4, 0.25));
		printf("va %ld\n", va(4, 1l, 2.0, 3l, 4.0));
		long n = mem("hello", in, out, 4);
		printf("mem %ld %ld\n", n, out[3]);
		printf("mem %ld\n", mem(text, in, out, 1));
	} else if (!strcmp(how, "fib")) {
		mark(0, fib, 0);
		printf("fib %ld\n", fib(16));
	} else if (!strcmp(how, "shapes")) {
		shapes();
	} else if (!strcmp(how, "threads")) {
		pthread_t t[16];
		mark(0, add, 0);
		for (int i = 0; i < 16; i++)
			pthread_create(&t[i], 0, hammer, (void *)5000);
		for (int i = 0; i < 16; i++)
			pthread_join(t[i], 0);
	} else if (!strcmp(how, "storm")) {
		mark(0, add, 0);
		for (int i = 0; i < 300; i++) {
			pthread_t t[4];
			for (int j = 0; j < 4; j++)
				pthread_create(&t[j], 0, hammer, (void *)(long)(i % 7));
			for (int j = 0; j < 4; j++)
				pthread_join(t[j], 0);
		}
	} else if (!strcmp(how, "longjmp")) {
		volatile long i, back = 0, jumped = 0;
		mark(0, call, 0);
		for (i = 0; i < 300; i++) {
			if (setjmp(env)) {
				jumped++;
				continue;
			}
			back += call(jumps, i) == i + 1;
		}
		printf("back %ld jumped %ld\n", back, jumped);
	} else if (!strcmp(how, "fork")) {
		mark(0, call, 0);
		mark(1, add, 0);
		pid_t me = getpid();
		add(1, 1);
		long r = call(forks, 5);
		add(2, r);
		if (getpid() != me)
			_exit(add(r, 0) % 256);
		printf("fork %ld\n", r);
	} else if (!strcmp(how, "vfork")) {
		mark(0, call, 0);
		mark(1, add, 0);
		for (int i = 0; i < 3; i++)
			printf("vfork %ld\n", call(vforks, i));
		printf("add %ld\n", add(1, 2));
	} else if (!strcmp(how, "exit")) {
		pthread_t t;
		void *r;
		mark(0, call, 0);
		mark(1, add, 0);
		for (long i = 1; i < 4; i++) {
			pthread_create(&t, 0, exiter, (void *)i);
			pthread_join(t, &r);
			printf("exit %ld\n", (long)r);
		}
		printf("add %ld\n", add(1, 2));
	} else if (!strcmp(how, "inside")) {
		pthread_t t;
		full = malloc(filled);
		pthread_create(&t, 0, filler, 0);
		while (rounds == 0 || full[0] == full[filled - 1])
			;
		mark(0, fill, 16); // it is filling
		for (long from = rounds; rounds < from + 3;)
			;
		over = 1;
		pthread_join(t, 0);
		printf("rounds %ld\n", rounds);
	} else if (!strcmp(how, "signals")) {
		struct itimerval it = {{0, 150}, {0, 150}};
		long n = 0, s = 0;
		mark(0, add, 0);
		signal(SIGALRM, onalarm);
		setitimer(ITIMER_REAL, &it, 0);
		while (handled < 500) {
			n++;
			s += add(n, 0);
		}
		memset(&it, 0, sizeof it);
		setitimer(ITIMER_REAL, &it, 0);
		if (s != n * (n + 1) / 2)
			abort();
		printf("calls %ld handled %ld\n", n, handled);
	} else if (!strcmp(how, "steps")) {
		if (argc > 6)
			step_call = ask;
		steps(atoi(argv[2]), atoi(argv[3]), atol(argv[4]), atol(argv[5]));
	} else if (!strcmp(how, "fibers")) {
		mark(0, call, 0);
		for (int i = 0; i < 2; i++) {
			getcontext(&fiber[i]);
			fiber[i].uc_stack.ss_sp = stacks[i];
			fiber[i].uc_stack.ss_size = sizeof stacks[i];
			fiber[i].uc_link = &mainc;
			makecontext(&fiber[i], (void (*)(void))body, 1, i);
			swapcontext(&mainc, &fiber[i]);
		}
		swapcontext(&mainc, &fiber[0]);
		swapcontext(&mainc, &fiber[1]);
		printf("fibers %ld\n", calls_of_thread);
	} else if (!strcmp(how, "dlclose")) {
		for (int i = 0; i < 3; i++) {
			void *l = dlopen(argv[2], RTLD_NOW);
			if (!l)
				abort();
			long (*f)(long) = (long (*)(long))dlsym(l, "twice");
			mark(0, f, 0);
			printf("twice %ld\n", f(21 + i));
			dlclose(l);
			mark(-1, f, 64);
		}
	} else if (!strcmp(how, "odd")) {
		long s = 0, kept = 1;
		mark(0, odd, 0);
		for (int i = 0; i < atoi(argv[2]); i++)
			s += preserving(i, &kept);
		printf("odd %ld %s\n", s, kept ? "kept" : "changed");
	} else if (!strcmp(how, "once")) {
		long s = 0;
		mark(0, add, 0);
		for (int i = 0; i < 100000; i++)
			s += add(i % 100 * 16, 1);
		mark(-2, 0, 0);
		for (int i = 0; i < 10; i++)
			s += add(i % 5 * 16, 1);
		printf("sum %ld\n", s);
	} else if (!strcmp(how, "bench")) {
		// Windows of 100 calls: the mean has the supervisor's work in it, the median
		// what a call costs by itself, the last what reading the clock costs.
		long n = atol(argv[2]) / 100, s = 0;
		double sum = 0, *w = malloc(n * sizeof *w);
		struct timespec b, c;
		mark(0, add, 0);
		for (long i = 0; i < n; i++) {
			clock_gettime(CLOCK_MONOTONIC, &b);
			for (int k = 0; k < 100; k++)
				s += add(7, 1);
			clock_gettime(CLOCK_MONOTONIC, &c);
			w[i] = ((c.tv_sec - b.tv_sec) * 1e9 + c.tv_nsec - b.tv_nsec) / 100;
			sum += w[i];
		}
		qsort(w, n, sizeof *w, compare);
		double median = w[n / 2];
		for (long i = 0; i < n; i++) {
			clock_gettime(CLOCK_MONOTONIC, &b);
			for (int k = 0; k < 98; k++)
				clock_gettime(CLOCK_MONOTONIC, &c);
			clock_gettime(CLOCK_MONOTONIC, &c);
			w[i] = ((c.tv_sec - b.tv_sec) * 1e9 + c.tv_nsec - b.tv_nsec) / 100;
		}
		qsort(w, n, sizeof *w, compare);
		printf("%.1f %.1f %.1f\n", sum / n, median, w[n / 2]);
	} else {
		return 2;
	}
	return 0;
}
