// Functions of libcuda.so.1 that need no GPU, for a program that calls them again and again.
#include <stdlib.h>

#define F __attribute__((noinline)) int

static char function;

F cuInit(unsigned flags) { return flags; }
F cuModuleLoadData(void **m, const void *image) { return image && (*m = malloc(16)) ? 0 : 1; }
F cuModuleGetFunction(void **f, void *m, const char *name) { return *f = &function, m && name ? 0 : 1; }
F cuLibraryLoadData(void **l, const void *image, int *o, void **v, unsigned n, int *lo, void **lv, unsigned ln)
{
	return image && !o && !v && !n && !lo && !lv && !ln && (*l = malloc(16)) ? 0 : 1;
}
F cuLibraryGetKernel(void **k, void *l, const char *name) { return *k = (char *)l + 8, name ? 0 : 1; }
F cuLibraryGetModule(void **m, void *l) { return *m = l, 0; }
F cuKernelGetFunction(void **f, void *k) { return *f = (char *)k + 1, 0; }
F cuLaunchKernel(void *f, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c, unsigned s, void *q, void **p, void **e)
{
	return f && x && y && z && a && b && c && !s && !q && !p && !e ? 0 : 1;
}
F cuMemAlloc_v2(unsigned long *p, unsigned long n) { return n && (*p = (unsigned long)malloc(8)) ? 0 : 2; }
F cuMemFree_v2(unsigned long p) { return free((void *)p), 0; }
F cuMemcpyHtoD_v2(unsigned long to, const void *from, unsigned long n) { return to && from && n ? 0 : 1; }
F cuStreamSynchronize(void *s) { return s ? 1 : 0; }
F cuEventQuery(void *e) { return e ? 600 : 1; }
