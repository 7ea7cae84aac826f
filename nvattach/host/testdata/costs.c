// What calls of functions with programs cost, in ns, against one without.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define FUNCTION(name) \
	__attribute__((noinline, noclone)) int name(int a, int b) { __asm__ volatile("nop; nop; nop; nop; nop"); return a + b; }
FUNCTION(plain)
FUNCTION(probed)
FUNCTION(hashed)
FUNCTION(returned)
FUNCTION(overridden)

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static volatile long sum;

static void measure(const char *name, int (*f)(int, int), int n)
{
	double best = 1e9;
	for (int r = 0; r < 20; r++) {
		double begin = now();
		long s = 0;
		for (int i = 0; i < n; i++)
			s += f(i, 1);
		double each = (now() - begin) / n;
		if (each < best)
			best = each;
		sum += s;
	}
	printf("%s %.2f\n", name, best);
}

int main(int argc, char **argv)
{
	int n = atoi(argv[1]);
	measure("plain", plain, n);
	measure("uprobe", probed, n);
	measure("uprobe_hash_update", hashed, n);
	measure("uretprobe", returned, n);
	measure("override", overridden, n);
	return 0;
}
