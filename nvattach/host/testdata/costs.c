// What calls of functions with programs cost, in ns, against one without; and system calls, one
// with programs, one without. With a second argument, under a filter that allows all system calls.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define FUNCTION(name) \
	__attribute__((noinline, noclone)) int name(int a, int b) { __asm__ volatile("nop; nop; nop; nop; nop"); return a + b; }
FUNCTION(plain)
FUNCTION(probed)
FUNCTION(hashed)
FUNCTION(returned)
FUNCTION(overridden)

static int traced(int a, int b) { return getppid() + a + b; }
static int untraced(int a, int b) { return getpgrp() + a + b; }

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
	for (int r = 0; r < 200; r++) {
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
	struct sock_filter allow[] = {{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
	struct sock_fprog filter = {1, allow};
	if (argc > 2 && (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)))
		return 1;
	measure("plain", plain, n);
	measure("uprobe", probed, n);
	measure("uprobe_hash_update", hashed, n);
	measure("uretprobe", returned, n);
	measure("override", overridden, n);
	measure("syscall", traced, n);
	measure("untraced_syscall", untraced, n);
	return 0;
}
