// Launches a kernel with as much shared memory as a block can have, which it writes and reads.
#include "../../sim/testdata/driver.h"

static const char *const text = ".version 6.4\n"
	".target sm_75\n"
	".address_size 64\n"
	".extern .shared .align 16 .b8 most[];\n"
	// around(p, n) writes the last of n words of shared memory, and reads them from there.
	".visible .entry around(.param .u64 p, .param .u32 n)\n"
	"{\n"
	"	.reg .b32 %r<6>;\n"
	"	.reg .b64 %rd<4>;\n"
	"	ld.param.u64 %rd1, [p];\n"
	"	ld.param.u32 %r1, [n];\n"
	"	mov.u32 %r2, %tid.x;\n"
	"	mov.u32 %r3, most;\n"
	"	sub.u32 %r4, %r1, %r2;\n"
	"	shl.b32 %r4, %r4, 2;\n"
	"	add.u32 %r3, %r3, %r4;\n"
	"	st.shared.u32 [%r3+-4], %r2;\n"
	"	bar.sync 0;\n"
	"	ld.shared.u32 %r5, [%r3+-4];\n"
	"	add.u32 %r5, %r5, %r1;\n"
	"	mul.wide.u32 %rd2, %r2, 4;\n"
	"	add.u64 %rd3, %rd1, %rd2;\n"
	"	st.global.u32 [%rd3], %r5;\n"
	"	ret;\n"
	"}\n";

enum { THREADS = 64, DEFAULT = 48 << 10 };

static CUresult (*setFunction)(CUfunction, int, int), (*setKernel)(int, int, CUkernel, CUdevice);

static CUresult launch(CUfunction f, unsigned shared)
{
	CUdeviceptr p;
	unsigned v[THREADS], n = shared / 4;
	void *args[] = {&p, &n};
	CHECK(cuMemAlloc_v2(&p, sizeof v));
	CUresult r = cuLaunchKernel(f, 1, 1, 1, THREADS, 1, 1, shared, 0, args, 0);
	if (r)
		return r;
	CHECK(cuCtxSynchronize());
	CHECK(cuMemcpyDtoH_v2(v, p, sizeof v));
	for (unsigned i = 0; i < THREADS; i++)
		EXPECT(v[i] == n + i);
	CHECK(cuMemFree_v2(p));
	return 0;
}

int main(int argc, char **argv)
{
	CUdevice dev;
	CUcontext ctx;
	CUmodule mod, other;
	CUlibrary lib;
	CUkernel k;
	CUfunction f;
	int most, library = argc > 1 && !strcmp(argv[1], "library");
	loadDriver();
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
	*(void **)&setFunction = dlsym(cuda, "cuFuncSetAttribute");
	*(void **)&setKernel = dlsym(cuda, "cuKernelSetAttribute");
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&dev, 0));
	CHECK(cuCtxCreate_v2(&ctx, 0, dev));
	CHECK(cuDeviceGetAttribute(&most, 97, dev)); // …_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
	if (library) {
		CHECK(cuLibraryLoadData(&lib, text, 0, 0, 0, 0, 0, 0));
		CHECK(cuLibraryGetKernel(&k, lib, "around"));
		f = (CUfunction)k;
	} else {
		CHECK(cuModuleLoadData(&mod, text));
		CHECK(cuModuleGetFunction(&f, mod, "around"));
	}
	CHECK(launch(f, 4096));
	CHECK(launch(f, DEFAULT));
	EXPECT(launch(f, DEFAULT + 16) == 1); // CUDA_ERROR_INVALID_VALUE
	EXPECT((library ? setKernel(8, most + 16, k, dev) : setFunction(f, 8, most + 16)) == 1);
	CHECK(library ? setKernel(8, most, k, dev) : setFunction(f, 8, most));
	CHECK(cuModuleLoadData(&other, text));
	CHECK(cuModuleUnload(other));
	CHECK(launch(f, most));
	CHECK(launch(f, 4096));
	printf("PASSED\n");
	fflush(stdout);
	return 0;
}
