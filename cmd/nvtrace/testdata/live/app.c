// For each byte on stdin ten allocations, of which it frees nine, and a wait; then the number
// of calls that returned what they should, on stdout.
#include <stdio.h>
#include <sys/prctl.h>

int cuMemAlloc_v2(unsigned long long *p, unsigned long n);
int cuMemFree_v2(unsigned long long p);
int cuCtxSynchronize(void);

int main(void)
{
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); // whatever kernel.yama.ptrace_scope is
	for (int calls = 0, i; getchar() != EOF; printf("%d\n", calls), fflush(stdout)) {
		for (i = 0; i < 10; i++) {
			unsigned long long p = 0, before = p;
			calls += cuMemAlloc_v2(&p, i ? 256 : 4096) == 0 && p > before;
			if (i)
				calls += cuMemFree_v2(p) == 0;
		}
		calls += cuMemAlloc_v2(&(unsigned long long){0}, 1 << 30) == 2;
		calls += cuCtxSynchronize() == 0;
	}
	return 0;
}
