// A program whose functions the tracer calls.
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FN __attribute__((noinline, noclone))

volatile int inside, ticks, during;

// scaled is where the tracer stops: its arguments are in registers of both kinds.
FN double scaled(double x, long n, float y) { return x * n + y; }

// nine has arguments on the stack, wants it aligned, and leaves nothing as it was.
FN long nine(long a, long b, long c, long d, long e, long f, long g, long h, long i)
{
	_Alignas(16) volatile char room[64];
	if ((unsigned long)room & 15)
		return -1;
	errno = 77;
	long r = a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i;
	asm volatile("movaps %%xmm0, (%0)\n pcmpeqd %%xmm0, %%xmm0\n movaps %%xmm0, %%xmm1\n movaps %%xmm0, %%xmm15\n std\n cld\n fninit\n"
		     : : "r"(room) : "memory", "xmm0", "xmm1", "xmm15");
	return r;
}

// slow sleeps in system calls; signals must wait.
FN long slow(long ms)
{
	inside = 1;
	struct timespec t = {ms / 1000, ms % 1000 * 1000000}, rest;
	long r = nanosleep(&t, &rest);
	inside = 0;
	return r;
}

FN long dies(void) { abort(); }

FN long never(void)
{
	for (;;)
		pause();
}

static void tick(int sig)
{
	ticks++;
	during += inside;
}

static void *worker(void *arg)
{
	long n = (long)arg, bad = 0;
	for (long i = 0; i < 50; i++)
		bad += scaled(1.5, n + i, 0.25f) != 1.5 * (n + i) + 0.25;
	return (void *)bad;
}

int main(int argc, char **argv)
{
	struct sigaction sa = {.sa_handler = tick};
	sigaction(SIGUSR1, &sa, 0);
	if (argc > 1 && !strcmp(argv[1], "exit")) {
		write(1, "leaving\n", 8);
		_exit(7);
	}
	if (argc > 1 && !strcmp(argv[1], "threads")) {
		pthread_t t[6];
		long bad = 0;
		void *r;
		for (long i = 0; i < 6; i++)
			pthread_create(&t[i], 0, worker, (void *)(100 * i));
		for (int i = 0; i < 6; i++)
			pthread_join(t[i], &r), bad += (long)r;
		printf("%ld bad\n", bad);
		return 0;
	}
	for (int i = 0; i < 20; i++) {
		errno = 5;
		double v = scaled(1.5 + i, 3, 0.25f);
		if (v != (1.5 + i) * 3 + 0.25)
			printf("scaled: %g\n", v);
	}
	printf("ticks %d, during calls %d\n", ticks, during);
	return 0;
}
