// Functions with probes: p_hit, which threads call at once, p_chosen, which is chosen when
// the program starts, and p_child, which is called by children that share memory.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noclone))

KEEP long p_hit(long n) { __asm__ volatile("" ::: "memory"); return n + 1; }
KEEP void p_child(void) { __asm__ volatile("nop; nop; nop; nop; nop" ::: "memory"); }
KEEP static int chosen_one(int n) { __asm__ volatile("" ::: "memory"); return 3 * n + 1; }
static int (*choose(void))(int) { return chosen_one; }
int p_chosen(int) __attribute__((ifunc("choose")));

static long times; // negative: until standard input ends
static volatile int over;

static void *work(void *arg)
{
	long n = 0;
	for (long i = 0; times < 0 ? !over : i < times; i++)
		if (p_hit(n) != ++n)
			return 0;
	if (times < 0)
		n = 7;
	return (void *)n;
}

int main(int argc, char **argv)
{
	int threads = atoi(argv[1]);
	times = atol(argv[2]);
	pthread_t *t = calloc(threads, sizeof *t);
	long sum = 0;
	for (int i = 0; i < threads; i++)
		pthread_create(&t[i], 0, work, 0);
	char c;
	while (times < 0 && read(0, &c, 1) > 0)
		;
	over = 1;
	for (int i = 0; i < threads; i++) {
		void *n;
		pthread_join(t[i], &n);
		sum += (long)n;
	}
	for (int i = 0; i < 3; i++) {
		pid_t child = vfork();
		if (child == 0) {
			p_child();
			_exit(0);
		}
		waitpid(child, 0, 0);
	}
	for (int i = 0; i < 5; i++)
		sum += p_chosen(i);
	printf("%ld\n", sum);
	return 0;
}
