// Calls step() and both(), for the programs of queues.bpf.c. The steps are drawn as the test draws
// them.
#include <pthread.h>
#include <stdio.h>

__attribute__((noinline)) void step(long what, long a, long b) { __asm__ volatile("nopl 0(%%rax)\n\tnopl 0(%%rax)" ::"r"(what), "r"(a), "r"(b) : "memory"); }
__attribute__((noinline)) void both(long a) { __asm__ volatile("nopl 0(%%rax)\n\tnopl 0(%%rax)" ::"r"(a) : "memory"); }

static unsigned long state = 88172645463325252ul;
static unsigned long next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state >> 20;
}

static void *work(void *x)
{
	for (long i = 0; i < 20000; i++)
		both(i);
	return x;
}

int main(void)
{
	for (int i = 0; i < 4000; i++) {
		long what = next() % 12, a = next() % 64, b = next() % 40;
		if (what >= 9)
			a = a << 26 | next() % 4;
		step(what, a, b);
	}
	pthread_t t[4];
	for (int i = 0; i < 4; i++)
		pthread_create(&t[i], 0, work, 0);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], 0);
	puts("ok");
	return 0;
}
