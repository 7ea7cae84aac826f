// Functions that call each other in many ways. The innermost prints who has called it, as
// libgcc's unwinder finds it, for each of the places at which somebody else may look.
#define _GNU_SOURCE
#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST 64
#define KEEP __attribute__((noinline, noclone))

static volatile int sink;
static void *list[MOST];

static void print(int where, int from, int n)
{
	printf("%d", where);
	for (int i = from; i < n; i++)
		printf(" %lx", (long)list[i]);
	printf("\n");
}

KEEP int here(int n)
{
	int count = backtrace(list, MOST);
	print(1, 1, count);
	print(2, 1, count);
	return n + sink;
}

KEEP int call(int n)
{
	int count = backtrace(list, MOST);
	print(3, 1, count); // its own caller is the first that is the same
	syscall(SYS_getpgid, -77);
	return n + here(n);
}

KEEP int between(int n) { return call(n) + 1; }

KEEP static int deep(int n) { return n ? deep(n - 1) + 1 : between(n); }

KEEP static int tail(int n)
{
	sink++;
	return between(n);
}

KEEP static int sized(int n)
{
	char *p = alloca(n);
	memset(p, 0, n);
	sink += p[n / 2];
	return between(n) + p[n / 3];
}

KEEP static int aligned(int n)
{
	double v[8] __attribute__((aligned(64)));
	for (int i = 0; i < 8; i++)
		v[i] = n * i;
	sink += between(n);
	return v[n & 7];
}

static int less(const void *a, const void *b)
{
	between(1);
	return *(const int *)a - *(const int *)b;
}

static void handler(int sig) { between(sig); }

int main(void)
{
	int numbers[3] = {2, 1, 3};
	static char stack[1 << 16];
	stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
	struct sigaction a = {.sa_handler = handler};
	deep(3);
	sink = tail(1) + sized(100) + aligned(3);
	qsort(numbers, 3, sizeof *numbers, less);
	sigaction(SIGUSR1, &a, 0);
	raise(SIGUSR1);
	a.sa_flags = SA_ONSTACK;
	sigaltstack(&other, 0);
	sigaction(SIGUSR2, &a, 0);
	raise(SIGUSR2);
	return 0;
}
