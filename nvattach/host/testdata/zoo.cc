// What programs do with their stacks, one thing after the other, in functions that have
// probes at their entry and their return. What it prints must not change by that.
#include <execinfo.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define KEEP extern "C" __attribute__((noinline, noclone))
#define HERE __asm__ volatile("" ::: "memory")

static int alive; // objects

struct object {
	object() { alive++; }
	~object() { alive--; }
};

KEEP int p_throws(int n)
{
	object o;
	if (n == 0)
		throw 42;
	int r = p_throws(n - 1);
	HERE;
	return r + 1;
}

KEEP int p_catches(int n)
{
	try {
		return p_throws(n);
	} catch (int e) {
		return e;
	}
}

KEEP int p_jumps_to(int n) { return p_catches(n); } // at its end, by a jump

KEEP int p_rethrows(int n)
{
	object o;
	try {
		return p_throws(n);
	} catch (...) {
		HERE;
		throw;
	}
}

KEEP int p_frames(int n)
{
	if (n > 0) {
		int r = p_frames(n - 1);
		HERE;
		return r;
	}
	void *list[100];
	return backtrace(list, 100);
}

KEEP int p_deep(int n)
{
	if (n == 0)
		return 0;
	int r = p_deep(n - 1);
	HERE;
	return r + 1;
}

struct large {
	long v[20];
};

KEEP large p_large(large a, int n, double x, long double y)
{
	a.v[19] += n + (long)x + (long)y;
	HERE;
	return a;
}

KEEP double p_sum(int n, ...)
{
	va_list ap;
	double s = 0;
	va_start(ap, n);
	for (int i = 0; i < n; i++)
		s += va_arg(ap, double);
	va_end(ap);
	HERE;
	return s;
}

static sigjmp_buf env;
static volatile int handled;

KEEP void p_handler(int)
{
	handled++;
	HERE;
}

KEEP void p_leaves(int)
{
	HERE;
	siglongjmp(env, 1);
}

KEEP int p_busy(int n)
{
	int s = 0;
	for (int i = 0; i < n; i++) {
		s += i;
		HERE;
	}
	return s;
}

static ucontext_t home, other[2];
static int turns;

KEEP int p_switches(int n)
{
	for (int i = 0; i < n; i++) {
		turns++;
		swapcontext(&other[turns & 1], &other[!(turns & 1)]);
	}
	HERE;
	return n;
}

static void coroutine()
{
	p_switches(5);
	setcontext(&home);
}

KEEP void *p_thread(void *arg)
{
	object *o = new object; // of the cancelled one it stays
	if (arg)
		pthread_exit(arg);
	for (;;)
		pause();
	delete o;
	return 0;
}

KEEP pid_t p_forks()
{
	pid_t child = fork();
	HERE;
	return child;
}

KEEP int p_outer(int n)
{
	int r = p_busy(n);
	HERE;
	return r;
}

static void *many(void *)
{
	long s = 0;
	for (int i = 0; i < 20000; i++)
		s += p_outer(3);
	return (void *)s;
}

int main()
{
	printf("caught %d %d %d\n", p_catches(0), p_catches(20), p_jumps_to(3));
	try {
		p_rethrows(4);
	} catch (int e) {
		printf("again %d\n", e);
	}
	printf("alive %d\n", alive);
	printf("frames %d\n", p_frames(10) - p_frames(0) >= 10); // those in between may be seen
	printf("deep %d\n", p_deep(3000));
	large l = {};
	l.v[19] = 1;
	printf("large %ld %.1f\n", p_large(l, 2, 3.5, 4.5L).v[19], p_sum(4, 1.5, 2.5, 3.5, 4.5));

	struct sigaction sa = {};
	stack_t ss = {};
	ss.ss_sp = malloc(1 << 16);
	ss.ss_size = 1 << 16;
	sigaltstack(&ss, 0);
	sa.sa_handler = p_handler;
	sa.sa_flags = SA_ONSTACK;
	sigaction(SIGALRM, &sa, 0);
	struct itimerval every = {{0, 500}, {0, 500}}, never = {};
	setitimer(ITIMER_REAL, &every, 0);
	long sum = 0, calls = 0;
	while (handled < 200) {
		sum += p_outer(3) - 3;
		calls++;
	}
	setitimer(ITIMER_REAL, &never, 0);
	printf("sum %ld\n", sum);
	sa.sa_handler = p_leaves;
	sigaction(SIGUSR1, &sa, 0);
	volatile int left = 0;
	for (volatile int i = 0; i < 100; i++)
		if (!sigsetjmp(env, 1)) {
			raise(SIGUSR1);
			puts("not left");
		} else
			left += p_busy(3);
	printf("left %d\n", left);

	for (int i = 0; i < 2; i++) {
		getcontext(&other[i]);
		other[i].uc_stack.ss_sp = malloc(1 << 16);
		other[i].uc_stack.ss_size = 1 << 16;
		makecontext(&other[i], coroutine, 0);
	}
	swapcontext(&home, &other[1]);
	printf("turns %d\n", turns);

	pthread_t t[8];
	pthread_create(&t[0], 0, p_thread, (void *)7);
	pthread_create(&t[1], 0, p_thread, 0);
	pthread_cancel(t[1]);
	void *r0, *r1;
	pthread_join(t[0], &r0);
	pthread_join(t[1], &r1);
	printf("threads %ld %d\n", (long)r0, r1 == PTHREAD_CANCELED);
	for (int i = 0; i < 8; i++)
		pthread_create(&t[i], 0, many, 0);
	sum = 0;
	for (int i = 0; i < 8; i++) {
		pthread_join(t[i], &r0);
		sum += (long)r0;
	}
	printf("many %ld\n", sum);
	fflush(stdout);
	pid_t child = p_forks();
	if (child == 0) {
		printf("child %d %d\n", p_busy(4), p_catches(2));
		fflush(stdout);
		_exit(3);
	}
	int status;
	waitpid(child, &status, 0);
	printf("status %d\n", WEXITSTATUS(status));
	fprintf(stderr, "%ld %d\n", calls, (int)handled);
	return 0;
}
