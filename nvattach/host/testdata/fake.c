// A program with a library that is called as CUDA's is, and has functions of such names; made
// with -DLIBRARY, that library.
#ifdef LIBRARY
#define KEEP __attribute__((noinline, noclone))
KEEP int cuMemAlloc_v2(unsigned long *p, unsigned long n) { __asm__ volatile("" ::: "memory"); *p = n; return 0; }
KEEP int cuInit(unsigned n) { __asm__ volatile("" ::: "memory"); return n > 0 ? 1 : 0; }
#else
#include <stdio.h>
int cuMemAlloc_v2(unsigned long *p, unsigned long n);
int cuInit(unsigned n);
int main(void)
{
	unsigned long p;
	int failed = cuInit(0);
	for (int i = 1; i <= 4; i++)
		failed += cuMemAlloc_v2(&p, i * 16) * i;
	printf("%d\n", failed);
	return 0;
}
#endif
