// Launches kernels whose results show whether each launch had effect just once.
#define _GNU_SOURCE
#include "../../sim/testdata/driver.h"
#include <pthread.h>
#include <unistd.h>

enum { N = 256 };
static CUdevice dev;
static CUcontext ctx;
static CUmodule mod;
static CUfunction scale;

// chase(p) adds 1 to what the pointer at p points to; touch(p) counts in it how
// often it ran, in an order that is never the same.
static const char *const more = ".version 6.4\n"
	".target sm_75\n"
	".address_size 64\n"
	".visible .entry chase(.param .u64 p) .maxntid 256, 1, 1\n"
	"{\n"
	"	.reg .b32 %r<3>;\n"
	"	.reg .b64 %rd<4>;\n"
	"	ld.param.u64 %rd1, [p];\n"
	"	ld.global.u64 %rd1, [%rd1];\n"
	"	mov.u32 %r1, %tid.x;\n"
	"	mul.wide.u32 %rd2, %r1, 4;\n"
	"	add.u64 %rd3, %rd1, %rd2;\n"
	"	ld.global.u32 %r2, [%rd3];\n"
	"	add.u32 %r2, %r2, 1;\n"
	"	st.global.u32 [%rd3], %r2;\n"
	"	ret;\n"
	"}\n"
	".const .align 8 .u32 by;\n"
	".global .align 8 .u32 calls[2];\n"
	// factor(p) multiplies by what is in constant memory, and counts in the module's own.
	".visible .entry factor(.param .u64 p) .maxntid 256, 1, 1\n"
	"{\n"
	"	.reg .b32 %r<4>;\n"
	"	.reg .b64 %rd<4>;\n"
	"	ld.param.u64 %rd1, [p];\n"
	"	mov.u32 %r1, %tid.x;\n"
	"	mul.wide.u32 %rd2, %r1, 4;\n"
	"	add.u64 %rd3, %rd1, %rd2;\n"
	"	ld.global.u32 %r2, [%rd3];\n"
	"	ld.const.u32 %r3, [by];\n"
	"	mul.lo.u32 %r2, %r2, %r3;\n"
	"	st.global.u32 [%rd3], %r2;\n"
	"	red.global.add.u32 [calls], 1;\n"
	"	ret;\n"
	"}\n"
	".visible .entry clock(.param .u64 p) .maxntid 256, 1, 1\n"
	"{\n"
	"	.reg .b64 %rd<3>;\n"
	"	ld.param.u64 %rd1, [p];\n"
	"	mov.u64 %rd2, %globaltimer;\n"
	"	st.global.u64 [%rd1], %rd2;\n"
	"	mov.u64 %rd2, 77;\n"
	"	st.global.u64 [%rd1+8], %rd2;\n"
	"	ret;\n"
	"}\n"
	// tail(p) writes half of its shared memory and stores all of it, and leaves other values there.
	".extern .shared .align 4 .b8 s[];\n"
	".visible .entry tail(.param .u64 p) .maxntid 256, 1, 1\n"
	"{\n"
	"	.reg .pred %p;\n"
	"	.reg .b32 %r<4>;\n"
	"	.reg .b64 %rd<3>;\n"
	"	ld.param.u64 %rd1, [p];\n"
	"	mov.u32 %r1, %tid.x;\n"
	"	mul.wide.u32 %rd2, %r1, 4;\n"
	"	add.u64 %rd1, %rd1, %rd2;\n"
	"	shl.b32 %r2, %r1, 2;\n"
	"	mov.u32 %r3, s;\n"
	"	add.u32 %r2, %r2, %r3;\n"
	"	setp.lt.u32 %p, %r1, 128;\n"
	"	@%p st.shared.u32 [%r2], %r1;\n"
	"	ld.shared.u32 %r3, [%r2];\n"
	"	st.global.u32 [%rd1], %r3;\n"
	"	add.u32 %r3, %r3, 1;\n"
	"	st.shared.u32 [%r2], %r3;\n"
	"	ret;\n"
	"}\n"
	".visible .entry spin(.param .u64 p) .maxntid 256, 1, 1\n"
	"{\n"
	"	.reg .pred %p;\n"
	"	.reg .b32 %r;\n"
	"	.reg .b64 %rd;\n"
	"	ld.param.u64 %rd, [p];\n"
	"	red.global.add.u32 [%rd+4], 1;\n"
	"again:\n"
	"	ld.volatile.global.u32 %r, [%rd];\n"
	"	setp.eq.u32 %p, %r, 0;\n"
	"	@%p bra again;\n"
	"	ret;\n"
	"}\n";

static CUmodule m;
static int alone; // the module has no other kernels than these

static CUfunction extra(const char *name)
{
	CUfunction f;
	if (!m) {
		unsigned n;
		CUresult (*count)(unsigned *, CUmodule) = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuModuleGetFunctionCount");
		CHECK(cuModuleLoadData(&m, more));
		CHECK(count(&n, m));
		EXPECT(n == 5 || !alone);
	}
	CHECK(cuModuleGetFunction(&f, m, name));
	return f;
}

// The driver's CUlaunchConfig.
struct config {
	unsigned grid[3], block[3], shared;
	CUstream stream;
	void *attributes;
	unsigned count;
};

static void run(CUfunction f, unsigned threads, CUstream s, CUdeviceptr p, unsigned by)
{
	void *args[] = {&p, &by};
	CHECK(cuLaunchKernel(f, 1, 1, 1, threads, 1, 1, 0, s, args, 0));
}

// scaled has a vector scaled several times, and checks it.
static void scaled(unsigned n, unsigned threads, int times)
{
	CUdeviceptr p;
	CUstream s;
	unsigned *v = calloc(n, 4), want = 1;
	for (unsigned i = 0; i < n; i++)
		v[i] = i + 1;
	CHECK(cuStreamCreate(&s, 1));
	CHECK(cuMemAlloc_v2(&p, 4 * n));
	CHECK(cuMemcpyHtoD_v2(p, v, 4 * n));
	for (int i = 0; i < times; i++, want *= 3)
		run(scale, threads, s, p, 3);
	CHECK(cuStreamSynchronize(s));
	CHECK(cuMemcpyDtoH_v2(v, p, 4 * n));
	for (unsigned i = 0; i < n; i++)
		EXPECT(v[i] == (i + 1) * (i < threads ? want : 1));
	CHECK(cuMemFree_v2(p));
	CHECK(cuStreamDestroy_v2(s));
	free(v);
}

static void counted(unsigned want)
{
	CUdeviceptr p;
	size_t size;
	unsigned n;
	CHECK(cuModuleGetGlobal_v2(&p, &size, mod, "threads"));
	CHECK(cuMemcpyDtoH_v2(&n, p, 4));
	EXPECT(n == want);
}

static void *work(void *arg)
{
	CHECK(cuCtxSetCurrent(ctx));
	for (int i = 0; i < 3; i++)
		scaled(N, N, 2);
	return 0;
}

static void late(void)
{
	scaled(N, N, 1);
	CHECK(cuCtxDestroy_v2(ctx));
}

int main(int argc, char **argv)
{
	const char *mode = argv[1];
	alone = argc > 2;
	CUdeviceptr p, q;
	loadDriver();
	CUresult (*begin)(CUstream, int), (*end)(CUstream, CUgraph *);
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
	*(void **)&begin = dlsym(cuda, "cuStreamBeginCapture_v2");
	*(void **)&end = dlsym(cuda, "cuStreamEndCapture");
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&dev, 0));
	CHECK(cuCtxCreate_v2(&ctx, 0, dev));
	CHECK(cuMemAlloc_v2(&q, 1024)); // before there is any code
	CHECK(cuMemsetD32_v2(q, 5, 256));
	CHECK(cuModuleLoadData(&mod, ptx));
	CHECK(cuModuleGetFunction(&scale, mod, "scale"));
	if (!strcmp(mode, "inplace")) {
		scaled(N + 1, N, 3);
		counted(3 * N);
	} else if (!strcmp(mode, "wide")) {
		scaled(1024, 1024, 2);
		counted(2 * 1024);
	} else if (!strcmp(mode, "factor")) {
		unsigned v[256], by = 3, calls;
		size_t size;
		CUfunction f = extra("factor");
		for (int i = 0; i < 2; i++, by += 4) {
			CHECK(cuModuleGetGlobal_v2(&p, &size, m, "by"));
			CHECK(cuMemcpyHtoD_v2(p, &by, 4));
			run(f, N, 0, q, 0);
		}
		CHECK(cuMemcpyDtoH_v2(v, q, 1024));
		for (int i = 0; i < 256; i++)
			EXPECT(v[i] == 5 * 3 * 7);
		CHECK(cuModuleGetGlobal_v2(&p, &size, m, "calls"));
		CHECK(cuMemcpyDtoH_v2(&calls, p, 4));
		EXPECT(calls == 2 * N);
	} else if (!strcmp(mode, "chase")) {
		unsigned v[256];
		CHECK(cuMemAlloc_v2(&p, 8));
		CHECK(cuMemcpyHtoD_v2(p, &q, 8));
		run(extra("chase"), N, 0, p, 0);
		CHECK(cuMemcpyDtoH_v2(v, q, 1024));
		for (int i = 0; i < 256; i++)
			EXPECT(v[i] == 6);
	} else if (!strcmp(mode, "tail")) {
		CHECK(cuMemAlloc_v2(&p, 4 * N));
		CUresult (*launchEx)(const struct config *, CUfunction, void **, void **) = dlsym(cuda, "cuLaunchKernelEx");
		struct config c = {.grid = {1, 1, 1}, .block = {N, 1, 1}, .shared = 4 * N};
		void *args[] = {&p};
		CHECK(cuLaunchKernel(extra("tail"), 1, 1, 1, N, 1, 1, 4 * N, 0, args, 0));
		CHECK(launchEx(&c, extra("tail"), args, 0));
		CHECK(cuCtxSynchronize());
	} else if (!strcmp(mode, "clock")) {
		run(extra("clock"), 1, 0, q, 0);
		CHECK(cuCtxSynchronize());
	} else if (!strcmp(mode, "pinned")) {
		unsigned *h;
		CHECK(cuMemHostAlloc((void **)&h, 4 * N, 2));
		for (int i = 0; i < N; i++)
			h[i] = i;
		run(scale, N, 0, (CUdeviceptr)h, 3);
		CHECK(cuCtxSynchronize());
		for (int i = 0; i < N; i++)
			EXPECT(h[i] == 3u * i);
	} else if (!strcmp(mode, "capture")) {
		CUstream s;
		CUgraph g;
		CUgraphExec x;
		CHECK(cuStreamCreate(&s, 1));
		CHECK(begin(s, 0));
		run(scale, N, s, q, 3);
		CHECK(end(s, &g));
		CHECK(cuGraphInstantiateWithFlags(&x, g, 0));
		CHECK(cuGraphLaunch(x, s));
		CHECK(cuStreamSynchronize(s));
		counted(N);
	} else if (!strcmp(mode, "threads")) {
		pthread_t t[3];
		for (int i = 0; i < 3; i++)
			pthread_create(&t[i], 0, work, 0);
		for (int i = 0; i < 3; i++)
			pthread_join(t[i], 0);
		counted(3 * 3 * 2 * N);
	} else if (!strcmp(mode, "spin")) {
		// It ends when the host has written what it waits for.
		CUstream s, other;
		unsigned v[2] = {0, 0}, one = 1;
		CHECK(cuStreamCreate(&s, 1));
		CHECK(cuMemcpyHtoD_v2(q, v, 8));
		run(extra("spin"), 1, s, q, 0);
		CHECK(cuMemsetD32_v2(q, 1, 1));
		CHECK(cuStreamSynchronize(s));
		CHECK(cuMemcpyDtoH_v2(v, q, 8));
		EXPECT(v[1] == 1);
	} else if (!strcmp(mode, "atexit") || !strcmp(mode, "released")) {
		scaled(N, N, 1);
		if (!strcmp(mode, "atexit"))
			atexit(late);
	}
	printf("PASSED\n");
	fflush(stdout);
	return 0;
}
