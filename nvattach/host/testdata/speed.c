// What the work of speed.h takes as eBPF, in functions with programs that return what these
// compute, against gcc's code: prints the ratios, and WRONG where results differ.
#include <stdio.h>
#include <time.h>
#include "speed.h"

typedef unsigned long long u64;
#define PROBED(name) \
	__attribute__((noinline, noclone)) u64 name(u64 x) { __asm__ volatile("nop; nop; nop; nop; nop" ::"r"(x)); return x; }
PROBED(probed_mix)
PROBED(probed_branches)
PROBED(probed_memory)
PROBED(probed_counts)

static struct words table;
static u64 counts[256];

__attribute__((noinline)) u64 plain_mix(u64 x) { return mix(x); }
__attribute__((noinline)) u64 plain_branches(u64 x) { return branches(x); }
__attribute__((noinline)) u64 plain_memory(u64 x) { return memory(&table, x); }
__attribute__((noinline)) u64 *find(unsigned int *key) { return *key < 256 ? &counts[*key] : 0; }
__attribute__((noinline)) u64 plain_counts(u64 x)
{
	u64 sum = 0;
	for (int i = 0; i < ROUNDS; i++) {
		unsigned int key = (x >> 8) & 255;
		u64 *v = find(&key);
		if (v)
			sum += __sync_fetch_and_add(v, x & 15);
		x = x * 6364136223846793005ull + 1;
	}
	return sum;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static void measure(const char *name, u64 (*plain)(u64), u64 (*probed)(u64))
{
	double best[2] = {1e18, 1e18};
	int wrong = 0;
	for (int r = 0; r < 60; r++) {
		u64 got[2];
		for (int k = 0; k < 2; k++) {
			double begin = now();
			u64 x = r + 1;
			for (int i = 0; i < 50; i++)
				x = (k ? probed : plain)(x) + i;
			double each = (now() - begin) / 50;
			if (each < best[k])
				best[k] = each;
			got[k] = x;
		}
		wrong |= got[0] != got[1];
	}
	printf("%s %.3f%s\n", name, best[1] / best[0], wrong ? " WRONG" : "");
}

int main(void)
{
	measure("arithmetic", plain_mix, probed_mix);
	measure("branches", plain_branches, probed_branches);
	measure("memory", plain_memory, probed_memory);
	measure("map", plain_counts, probed_counts);
	return 0;
}
