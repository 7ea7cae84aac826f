// A stand-in for libcuda.so.1 to test the runner without a GPU. Device memory is host memory; a "kernel" is chosen by its name:
//
//	copy(dst, src, n)  copies n bytes           count(dst)  adds the number of launches so far: unstable
//	fault              fails like a wild access, and every later call too
//	hang, crash        do what they say
//	late               works once, then fails like a wild access
//
// A module whose text contains "syntax error" does not load; "tab" is a module variable of 64 bytes.
#include "../cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct CUmod { unsigned char tab[64]; };
struct CUfunc { char name[64]; };

static int sticky, launches, late;

CUresult cuInit(unsigned f) { return f ? 1 : 0; }
CUresult cuDriverGetVersion(int *v) { *v = 13000; return 0; }
CUresult cuDeviceGet(CUdevice *d, int i) { *d = i; return 0; }
CUresult cuDeviceGetName(char *s, int n, CUdevice d) { snprintf(s, (size_t)n, "Fake %d", d); return 0; }
CUresult cuDeviceGetAttribute(int *v, int a, CUdevice d) { *v = a == CU_DEVICE_MAJOR ? 9 : d; return 0; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) { *c = NULL; return d; }
CUresult cuCtxSetCurrent(CUcontext c) { return c != NULL; }
CUresult cuCtxSetLimit(int l, size_t n) { return l != CU_LIMIT_STACK_SIZE || n == 0; }
CUresult cuCtxSynchronize(void) { return sticky; }

CUresult cuModuleLoadDataEx(CUmodule *m, const void *text, unsigned n, int *options, void **values)
{
	if (strstr(text, "syntax error")) {
		for (unsigned i = 0; i < n; i++)
			if (options[i] == CU_JIT_ERROR_LOG)
				strcpy(values[i], "ptxas application ptx input, line 7; fatal : Parsing error");
		return 218;
	}
	*m = calloc(1, sizeof **m);
	memset((*m)->tab, 7, sizeof (*m)->tab);
	return sticky;
}
CUresult cuModuleUnload(CUmodule m) { free(m); return 0; }
CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name)
{
	static struct CUfunc fn;
	if (!strcmp(name, "missing") || !m)
		return 500;
	snprintf(fn.name, sizeof fn.name, "%s", name);
	*f = &fn;
	return 0;
}
CUresult cuModuleGetGlobal_v2(CUdeviceptr *p, size_t *n, CUmodule m, const char *name)
{
	if (strcmp(name, "tab"))
		return 500;
	*p = (CUdeviceptr)(uintptr_t)m->tab;
	*n = sizeof m->tab;
	return 0;
}
CUresult cuFuncSetAttribute(CUfunction f, int a, int v) { return !f || a != CU_FUNC_MAX_DYNAMIC_SHARED || v <= 0; }
CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t n) { *p = (CUdeviceptr)(uintptr_t)malloc(n); return sticky; }
CUresult cuMemFree_v2(CUdeviceptr p) { free((void *)(uintptr_t)p); return sticky; }
CUresult cuMemcpyHtoD_v2(CUdeviceptr d, const void *s, size_t n) { memcpy((void *)(uintptr_t)d, s, n); return sticky; }
CUresult cuMemcpyDtoH_v2(void *d, CUdeviceptr s, size_t n) { memcpy(d, (void *)(uintptr_t)s, n); return sticky; }
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **args, void **extra)
{
	if (stream || extra || !gx || !gy || !gz || !bx || !by || !bz || shared > 1 << 20)
		return 1;
	launches++;
	if (!strcmp(f->name, "copy"))
		memcpy(*(void **)args[0], *(void **)args[1], *(uint32_t *)args[2]);
	else if (!strcmp(f->name, "count"))
		**(uint32_t **)args[0] = (uint32_t)launches;
	else if (!strcmp(f->name, "fault"))
		sticky = 700;
	else if (!strcmp(f->name, "late"))
		sticky = ++late > 1 ? 700 : 0;
	else if (!strcmp(f->name, "hang"))
		for (;;)
			pause();
	else if (!strcmp(f->name, "crash"))
		abort();
	else
		return 500;
	return 0;
}
CUresult cuGetErrorName(CUresult e, const char **s) { *s = e == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR"; return 0; }
