// vectorAdd by the driver API, with its kernel as PTX text: it needs no CUDA
// toolkit, only a C compiler, and runs on a GPU as on the simulated one:
//
//   gcc -O2 -o vectoradd_driver vectoradd_driver.c -ldl
//   nvtrace --sim -- ./vectoradd_driver
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

// What is used of cuda.h.
typedef int CUresult, CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;

static const char ptx[] = ".version 6.4\n"
	".target sm_75\n"
	".address_size 64\n"
	".visible .entry vectorAdd(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)\n"
	"{\n"
	"	.reg .pred %p;\n"
	"	.reg .b32 %r<5>;\n"
	"	.reg .f32 %f<4>;\n"
	"	.reg .b64 %rd<8>;\n"
	"	mov.u32 %r1, %ctaid.x;\n"
	"	mov.u32 %r2, %ntid.x;\n"
	"	mov.u32 %r3, %tid.x;\n"
	"	mad.lo.u32 %r1, %r1, %r2, %r3;\n"
	"	ld.param.u32 %r4, [n];\n"
	"	setp.ge.u32 %p, %r1, %r4;\n"
	"	@%p bra done;\n"
	"	ld.param.u64 %rd1, [a];\n"
	"	ld.param.u64 %rd2, [b];\n"
	"	ld.param.u64 %rd3, [c];\n"
	"	mul.wide.u32 %rd4, %r1, 4;\n"
	"	add.u64 %rd5, %rd1, %rd4;\n"
	"	add.u64 %rd6, %rd2, %rd4;\n"
	"	add.u64 %rd7, %rd3, %rd4;\n"
	"	ld.global.f32 %f1, [%rd5];\n"
	"	ld.global.f32 %f2, [%rd6];\n"
	"	add.f32 %f3, %f1, %f2;\n"
	"	st.global.f32 [%rd7], %f3;\n"
	"done:\n"
	"	ret;\n"
	"}\n";

static void *driver;

static void *entry(const char *name)
{
	void *f = dlsym(driver, name);
	if (!f) {
		fprintf(stderr, "libcuda.so.1 has no %s\n", name);
		exit(1);
	}
	return f;
}

static void check(const char *what, CUresult r)
{
	if (r) {
		fprintf(stderr, "%s: error %d\n", what, r);
		exit(1);
	}
}

#define CALL(type, name, ...) check(#name, ((CUresult(*) type)entry(#name))(__VA_ARGS__))

int main(void)
{
	enum { N = 50000 };
	static float a[N], b[N], c[N];
	CUdevice dev;
	CUcontext ctx;
	CUmodule mod;
	CUfunction f;
	CUdeviceptr d[3];
	int n = N;
	char name[100];
	if (!(driver = dlopen("libcuda.so.1", RTLD_NOW))) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	CALL((unsigned), cuInit, 0);
	CALL((CUdevice *, int), cuDeviceGet, &dev, 0);
	CALL((char *, int, CUdevice), cuDeviceGetName, name, sizeof name, dev);
	CALL((CUcontext *, unsigned, CUdevice), cuCtxCreate_v2, &ctx, 0, dev);
	CALL((CUmodule *, const void *), cuModuleLoadData, &mod, ptx);
	CALL((CUfunction *, CUmodule, const char *), cuModuleGetFunction, &f, mod, "vectorAdd");
	for (int i = 0; i < N; i++)
		a[i] = i, b[i] = 2 * i;
	for (int i = 0; i < 3; i++)
		CALL((CUdeviceptr *, size_t), cuMemAlloc_v2, &d[i], sizeof a);
	CALL((CUdeviceptr, const void *, size_t), cuMemcpyHtoD_v2, d[0], a, sizeof a);
	CALL((CUdeviceptr, const void *, size_t), cuMemcpyHtoD_v2, d[1], b, sizeof b);
	void *args[] = {&d[0], &d[1], &d[2], &n};
	CALL((CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **), cuLaunchKernel,
	     f, (N + 255) / 256, 1, 1, 256, 1, 1, 0, 0, args, 0);
	CALL((void *, CUdeviceptr, size_t), cuMemcpyDtoH_v2, c, d[2], sizeof c);
	for (int i = 0; i < N; i++)
		if (c[i] != 3 * i) {
			fprintf(stderr, "element %d is %g\n", i, c[i]);
			return 1;
		}
	for (int i = 0; i < 3; i++)
		CALL((CUdeviceptr), cuMemFree_v2, d[i]);
	CALL((CUcontext), cuCtxDestroy_v2, ctx);
	printf("vectorAdd of %d elements on %s: ok\n", N, name);
	return 0;
}
