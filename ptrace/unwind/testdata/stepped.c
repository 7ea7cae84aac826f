// A program that executes one instruction after the other, and after each tells whoever watches
// which callers libgcc finds, by a system call that no program makes.
#define _GNU_SOURCE
#include <execinfo.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define MOST 100
#define KEEP __attribute__((noinline, noclone))

static __thread char stack[256 << 10] __attribute__((aligned(16)));
static volatile int sink;
static jmp_buf back;

// What is told: the callers of the handler, and where the program was.
static void told(int n, void **list, ucontext_t *c)
{
	syscall(SYS_getpgid, -77, n, list, c ? c->uc_mcontext.gregs[REG_RIP] : 0);
}

static void stepped(int sig, siginfo_t *info, void *context)
{
	void *list[MOST];
	(void)sig, (void)info;
	told(backtrace(list, MOST), list, context);
}

// Sets and clears the processor's trap flag.
void steps(int on);
__asm__(
	".text\n"
	"steps:\n"
	"	.cfi_startproc\n"
	"	pushfq\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	andl $~0x100,(%rsp)\n"
	"	shl $8,%edi\n"
	"	or %edi,(%rsp)\n"
	"	popfq\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	ret\n"
	"	.cfi_endproc\n");

KEEP static int less(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

KEEP static int deep(int n)
{
	if (n == 0)
		return sink;
	return deep(n - 1) + n;
}

KEEP static int last(int a, int b) { return sink = a * b; }
KEEP static int tail(int a, int b)
{
	sink += deep(2);
	return last(b, a);
}

KEEP static int sized(int n) // a frame whose size is not known before
{
	char *p = alloca(n);
	memset(p, n, n);
	return p[n / 2] + deep(1);
}

KEEP static int aligned(int n) // a frame that is aligned further than the stack is
{
	double v[8] __attribute__((aligned(64)));
	for (int i = 0; i < 8; i++)
		v[i] = n * i;
	sink += deep(1);
	return v[n & 7];
}

KEEP static int many(int n, ...)
{
	va_list l;
	int sum = 0;
	va_start(l, n);
	while (n--)
		sum += va_arg(l, int);
	va_end(l);
	return sum;
}

KEEP static void jumps(int n)
{
	if (n == 0)
		longjmp(back, 1);
	jumps(n - 1);
	sink++;
}

KEEP static int all(void)
{
	int list[6] = {3, 1, 2, 6, 5, 4};
	char text[32];
	struct timespec ts;
	div_t d;
	qsort(list, 6, sizeof *list, less);
	sink = deep(3) + tail(2, 3) + sized(100) + aligned(3) + many(9, 1, 2, 3, 4, 5, 6, 7, 8, 9);
	d = div(sink, 7); // a function that is not bound yet
	snprintf(text, sizeof text, "%d %g", d.quot, 2.5);
	clock_gettime(CLOCK_MONOTONIC, &ts);
	if (!setjmp(back))
		jumps(2);
	return text[0] + (int)ts.tv_nsec;
}

static void *run(void *arg)
{
	stack_t s = {.ss_sp = stack, .ss_size = sizeof stack};
	if (arg)
		sigaltstack(&s, 0);
	steps(1);
	sink = arg ? aligned(3) : all();
	steps(0);
	return 0;
}

int main(void)
{
	struct sigaction a = {.sa_sigaction = stepped, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	void *list[MOST];
	pthread_t t;
	backtrace(list, MOST); // loads libgcc
	sigaction(SIGTRAP, &a, 0);
	run(0);
	pthread_create(&t, 0, run, &t);
	pthread_join(t, 0);
	puts("done");
	return 0;
}
