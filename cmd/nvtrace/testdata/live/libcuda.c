// Functions of libcuda.so.1 that need no GPU: to attach to a program that calls them.
__attribute__((noinline)) int cuMemAlloc_v2(unsigned long long *p, unsigned long n)
{
	static unsigned long long at;
	*p = at += 4096;
	return n > 1 << 20 ? 2 : 0;
}

__attribute__((noinline)) int cuMemFree_v2(unsigned long long p) { return p ? 0 : 1; }

__attribute__((noinline)) int cuCtxSynchronize(void) { return 0; }
