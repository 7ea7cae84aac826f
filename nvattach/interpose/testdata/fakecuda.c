/* A driver for tests: it exports what the shim wraps, checks its arguments, and says in the result what it was given. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default"), noinline))
typedef int R;
typedef void *P;
typedef unsigned U;
typedef unsigned long long Q;

static Q loads;

/* What the driver was given: its length, and a sum of its bytes. */
static U sum(const unsigned char *p, size_t n)
{
	U s = 2166136261u;
	for (size_t i = 0; i < n; i++)
		s = (s ^ p[i]) * 16777619u;
	return s & 0xffffff;
}
static R load(P *out, const void *image)
{
	const unsigned char *p = image;
	size_t n;
	__atomic_add_fetch(&loads, 1, __ATOMIC_RELAXED);
	if (!out || !p)
		return 1;
	if (*(U *)p == 0x466243b1)
		p = *(void **)(p + 8);
	if (*(U *)p == 0xba55ed50)
		n = 16 + *(Q *)(p + 8);
	else if (*(U *)p == 0x464c457f)
		n = 64;
	else
		n = strlen((const char *)p);
	*out = (P)(uintptr_t)(0x1000000 + sum(p, n));
	return 0;
}
API R cuInit(U f) { return f ? 1 : 0; }
API R cuFakeLoads(Q *n) { *n = loads; return 0; }
API R cuModuleLoadData(P *m, const void *i) { return load(m, i); }
API R cuModuleLoadFatBinary(P *m, const void *i) { return load(m, i); }
API R cuModuleLoadDataEx(P *m, const void *i, U n, int *o, void **v) { return n == 3 && (o || v) ? 1 : load(m, i); }
API R cuLibraryLoadData(P *l, const void *i, int *jo, void **jv, U nj, int *lo, void **lv, U nl)
{
	if (jo || jv || nj || lo != (int *)0x61 || lv != (void **)0x71 || nl != 81)
		return 7;
	return load(l, i);
}
static R from_file(P *m, const char *path)
{
	char b[4096];
	int fd = path ? open(path, O_RDONLY) : -1;
	long n = fd >= 0 ? read(fd, b, sizeof b) : -1;
	if (fd >= 0)
		close(fd);
	if (n < 0)
		return 301;
	*m = (P)(uintptr_t)(0x2000000 + sum((unsigned char *)b, (size_t)n));
	return 0;
}
/* Loads by its own export, looked up by name, as some drivers do. */
API R cuModuleLoad(P *m, const char *path)
{
	P other;
	R (*f)(P *, const void *) = (R (*)(P *, const void *))dlsym(RTLD_DEFAULT, "cuModuleLoadData");
	void *h = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	if (h)
		f = (R (*)(P *, const void *))dlsym(h, "cuModuleLoadData");
	if (f)
		f(&other, "inner");
	return from_file(m, path);
}
API R cuLibraryLoadFromFile(P *l, const char *path, int *jo, void **jv, U nj, int *lo, void **lv, U nl)
{
	return nj || jo || jv || lo || lv || nl != 81 ? 7 : from_file(l, path);
}
API R cuLinkCreate(U n, int *o, void **v, P *s)
{
	if (n == 99)
		((void (*)(void))v)();
	(void)o;
	*s = (P)0x55;
	return 0;
}
API R cuLinkCreate_v2(U n, int *o, void **v, P *s) { return cuLinkCreate(n, o, v, s); }
static struct { U sum, type; size_t size; } linked;
API R cuLinkAddData_v2(P s, int type, void *data, size_t size, const char *name, U n, int *o, void **v)
{
	if (s != (P)0x55 || o != (int *)0x61 || v != (void **)0x71 || n != 51 || strcmp(name, "part"))
		return 7;
	linked.sum = sum(data, size), linked.type = (U)type, linked.size = size;
	return 0;
}
API R cuLinkAddData(P s, int type, void *data, size_t size, const char *name, U n, int *o, void **v)
{
	return cuLinkAddData_v2(s, type, data, size, name, n, o, v);
}
API R cuLinkAddFile(P s, int type, const char *path, U n, int *o, void **v) { P m; (void)o, (void)v; return s != (P)0x55 || type != 1 || n ? 7 : from_file(&m, path); }
API R cuLinkAddFile_v2(P s, int type, const char *path, U n, int *o, void **v) { return cuLinkAddFile(s, type, path, n, o, v); }
static unsigned char made[64] = "\x7f" "ELF a linked image";
API R cuLinkComplete(P s, void **out, size_t *size) { if (s != (P)0x55) return 7; memcpy(made + 32, &linked, sizeof linked); *out = made, *size = sizeof made; return 0; }
API R cuLinkDestroy(P s) { return s != (P)0x55; }
API R cuModuleUnload(P m) { return m ? 0 : 1; }
API R cuLibraryUnload(P m) { return m ? 0 : 1; }
static P named(P m, const char *n) { return (P)((uintptr_t)m << 8 | (sum((const unsigned char *)n, strlen(n)) & 0xff)); }
API R cuModuleGetFunction(P *f, P m, const char *n) { if (!n || !*n) return 1; if (!strcmp(n, "missing")) return 500; *f = named(m, n); return 0; }
API R cuModuleGetGlobal_v2(Q *d, size_t *b, P m, const char *n) { if (d) *d = (Q)(uintptr_t)named(m, n); if (b) *b = 4; return 0; }
API R cuModuleGetGlobal(U *d, U *b, P m, const char *n) { if (d) *d = (U)(uintptr_t)named(m, n); if (b) *b = 4; return 0; }
API R cuModuleGetTexRef(P *f, P m, const char *n) { *f = named(m, n); return 0; }
API R cuModuleGetSurfRef(P *f, P m, const char *n) { *f = named(m, n); return 0; }
API R cuModuleEnumerateFunctions(P *f, U n, P m) { for (U i = 0; i < n; i++) f[i] = (P)((uintptr_t)m * 256 + i); return 0; }
API R cuLibraryGetKernel(P *f, P m, const char *n) { *f = named(m, n); return 0; }
API R cuLibraryGetModule(P *f, P m) { *f = (P)((uintptr_t)m + 1); return 0; }
API R cuLibraryGetGlobal(Q *d, size_t *b, P m, const char *n) { return cuModuleGetGlobal_v2(d, b, m, n); }
API R cuLibraryGetManaged(Q *d, size_t *b, P m, const char *n) { return cuModuleGetGlobal_v2(d, b, m, n); }
API R cuLibraryGetUnifiedFunction(P *f, P m, const char *n) { *f = named(m, n); return 0; }
API R cuLibraryEnumerateKernels(P *f, U n, P m) { return cuModuleEnumerateFunctions(f, n, m); }
API R cuKernelGetFunction(P *f, P k) { *f = (P)((uintptr_t)k + 2); return 0; }
API R cuKernelGetLibrary(P *f, P k) { *f = (P)((uintptr_t)k + 3); return 0; }
API R cuFuncGetModule(P *f, P k) { *f = (P)((uintptr_t)k >> 8); return 0; }

static R launch(P f, U a, U b, U c, U d, U e, U g, U s, P st, void **k, void **x, int n)
{
	if (a != 1 || b != 2 || c != 3 || d != 4 || e != 5 || g != 6 || s != 7 || st != (P)8 || k != (void **)9 || (n == 11 && x != (void **)10))
		return 7;
	return f ? 0 : 400;
}
API R cuLaunchKernel(P f, U a, U b, U c, U d, U e, U g, U s, P st, void **k, void **x) { return launch(f, a, b, c, d, e, g, s, st, k, x, 11); }
API R cuLaunchKernel_ptsz(P f, U a, U b, U c, U d, U e, U g, U s, P st, void **k, void **x) { return launch(f, a, b, c, d, e, g, s, st, k, x, 11); }
API R cuLaunchCooperativeKernel(P f, U a, U b, U c, U d, U e, U g, U s, P st, void **k) { return launch(f, a, b, c, d, e, g, s, st, k, 0, 10); }
API R cuLaunchCooperativeKernel_ptsz(P f, U a, U b, U c, U d, U e, U g, U s, P st, void **k) { return launch(f, a, b, c, d, e, g, s, st, k, 0, 10); }
API R cuLaunchKernelEx(P cfg, P f, void **k, void **x) { return cfg != (P)1 || !f || k != (void **)3 || x != (void **)4 ? 7 : 0; }
API R cuLaunchKernelEx_ptsz(P cfg, P f, void **k, void **x) { return cuLaunchKernelEx(cfg, f, k, x); }
API R cuLaunchCooperativeKernelMultiDevice(P p, U n, U flags) { return !p || n != 2 || flags ? 7 : 0; }
API R cuLaunch(P f) { return !f; }
API R cuLaunchGrid(P f, int w, int h) { return !f || w != 2 || h != 3; }
API R cuLaunchGridAsync(P f, int w, int h, P s) { return !f || w != 2 || h != 3 || s != (P)8; }
API R cuGraphLaunch(P g, P s) { return g != (P)0x6000 || s != (P)8; }
API R cuGraphLaunch_ptsz(P g, P s) { return cuGraphLaunch(g, s); }
API R cuGraphAddKernelNode(P *n, P g, P *d, size_t k, P p) { *n = (P)0x70; return !g || d || k || !p; }
API R cuGraphAddKernelNode_v2(P *n, P g, P *d, size_t k, P p) { return cuGraphAddKernelNode(n, g, d, k, p); }
API R cuGraphAddNode(P *n, P g, P *d, size_t k, P p) { return cuGraphAddKernelNode(n, g, d, k, p); }
API R cuGraphAddNode_v2(P *n, P g, P *d, P e, size_t k, P p) { return e ? 7 : cuGraphAddKernelNode(n, g, d, k, p); }
API R cuGraphKernelNodeSetParams(P n, P p) { return !n || !p; }
API R cuGraphKernelNodeSetParams_v2(P n, P p) { return !n || !p; }
API R cuGraphExecKernelNodeSetParams(P x, P n, P p) { return !x || !n || !p; }
API R cuGraphExecKernelNodeSetParams_v2(P x, P n, P p) { return !x || !n || !p; }
API R cuGraphNodeSetParams(P n, P p) { return !n || !p; }
API R cuGraphExecNodeSetParams(P x, P n, P p) { return !x || !n || !p; }
API R cuCtxCreate_v2(P *c, U f, int d) { *c = (P)(0xc000ul + f + (U)d); return 0; }
API R cuCtxCreate(P *c, U f, int d) { return cuCtxCreate_v2(c, f, d); }
API R cuCtxCreate_v3(P *c, P a, int n, U f, int d) { return a || n ? 7 : cuCtxCreate_v2(c, f, d); }
API R cuCtxCreate_v4(P *c, P a, U f, int d) { return a ? 7 : cuCtxCreate_v2(c, f, d); }
API R cuCtxAttach(P *c, U f) { return cuCtxCreate_v2(c, f, 0); }
API R cuCtxDestroy(P c) { return !c; }
API R cuCtxDestroy_v2(P c) { return !c; }
API R cuCtxDetach(P c) { return !c; }
API R cuDevicePrimaryCtxRetain(P *c, int d) { *c = (P)(0xd000ul + (U)d); return 0; }
API R cuDevicePrimaryCtxRelease(int d) { return d; }
API R cuDevicePrimaryCtxRelease_v2(int d) { return d; }
API R cuDevicePrimaryCtxReset(int d) { return d; }
API R cuDevicePrimaryCtxReset_v2(int d) { return d; }
API R cuGreenCtxCreate(P *c, P r, int d, U f) { (void)r, (void)d, (void)f; *c = (P)0xe000; return 0; }
API R cuGreenCtxDestroy(P c) { return !c; }
API R cuCtxFromGreenCtx(P *c, P g) { *c = g; return 0; }

/* Is main among the callers, seen through the wrapper? */
API R cuFakeBacktrace(void *lo, void *hi)
{
	void *b[64];
	int n = backtrace(b, 64);
	for (int i = 0; i < n; i++)
		if (b[i] >= lo && b[i] < hi)
			return 0;
	return 1;
}

API R cuGetProcAddress_v2(const char *name, void **pfn, int version, Q flags, int *status);
API R cuGetProcAddress(const char *name, void **pfn, int version, Q flags)
{
	int s;
	return cuGetProcAddress_v2(name, pfn, version, flags, &s);
}
static R hidden_load(P *m, const void *w, P a, P b, U n) { return a || b || n ? 7 : load(m, w); }
static const void *const tables[2][4] = {
	{(void *)32, (void *)hidden_load, (void *)0, (void *)hidden_load},
	{(void *)32, (void *)load, (void *)1, (void *)2},
};
API R cuGetExportTable(const void **table, const void *id)
{
	if (!table || !id || *(const unsigned char *)id > 1)
		return 1;
	*table = tables[*(const unsigned char *)id];
	return 0;
}
static R unexported(P *m, const void *i) { return load(m, i); }
static const struct { const char *name; int since; Q flag; void *fn; } requests[] = {
	{"cuInit", 2000, 0, cuInit},
	{"cuModuleLoadData", 2000, 0, cuModuleLoadData},
	{"cuModuleLoadFatBinary", 2000, 0, unexported},
	{"cuModuleGetGlobal", 2000, 0, cuModuleGetGlobal},
	{"cuModuleGetGlobal", 3020, 0, cuModuleGetGlobal_v2},
	{"cuModuleGetFunction", 2000, 0, cuModuleGetFunction},
	{"cuLibraryLoadData", 12000, 0, cuLibraryLoadData},
	{"cuLinkAddData", 5050, 0, cuLinkAddData},
	{"cuLinkAddData", 6050, 0, cuLinkAddData_v2},
	{"cuLaunchKernel", 4000, 0, cuLaunchKernel},
	{"cuLaunchKernel", 7000, 2, cuLaunchKernel_ptsz},
	{"cuGraphAddNode", 12020, 0, cuGraphAddNode},
	{"cuGraphAddNode", 12030, 0, cuGraphAddNode_v2},
	{"cuGetProcAddress", 11030, 0, cuGetProcAddress},
	{"cuGetProcAddress", 12000, 0, cuGetProcAddress_v2},
	{"cuGetExportTable", 3000, 0, cuGetExportTable},
};
R cuGetProcAddress_v2(const char *name, void **pfn, int version, Q flags, int *status)
{
	int known = 0;
	void *best = 0;
	if (!pfn || !name || !*name)
		return 1;
	for (unsigned i = 0; i < sizeof requests / sizeof *requests; i++) {
		if (strcmp(requests[i].name, name))
			continue;
		known = 1;
		if (requests[i].since <= version && (!requests[i].flag || flags & requests[i].flag))
			best = requests[i].fn;
	}
	*pfn = best;
	if (status)
		*status = best ? 0 : known ? 2 : 1;
	return best ? 0 : 500;
}
