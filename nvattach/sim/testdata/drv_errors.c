#include "driver.h"

int main(void)
{
	CUdevice dev;
	CUcontext ctx;
	CUmodule mod;
	CUfunction f;
	CUdeviceptr p, q;
	size_t free, total;
	const char *s;
	CUevent e;
	float ms;
	int n = 1;
	loadDriver();
	CHECK(cuInit(0));
	EXPECT(cuDeviceGet(&dev, 99) == 101);
	CHECK(cuDeviceGet(&dev, 0));
	CHECK(cuCtxCreate_v2(&ctx, 0, dev));
	CHECK(cuMemGetInfo_v2(&free, &total));
	EXPECT(cuMemAlloc_v2(&p, total + (1ul << 32)) == 2); // out of memory
	EXPECT(cuMemAlloc_v2(&p, 0) == 1);
	CHECK(cuMemAlloc_v2(&p, 1000));
	EXPECT(cuMemFree_v2(p + 8) == 1);
	CHECK(cuEventCreate(&e, 0));
	EXPECT(cuEventElapsedTime(&ms, e, e) == 400); // never recorded: an invalid handle
	if (getenv("NVTRACE_SIM")) { // a real driver may crash on what is no handle at all
		EXPECT(cuStreamSynchronize((CUstream)p) == 400);
		EXPECT(cuModuleUnload((CUmodule)ctx) == 400);
		EXPECT(cuCtxSetCurrent((CUcontext)&mod) == 201);
		EXPECT(cuMemcpyHtoD_v2(p, (void *)16, 8) == 1);
		EXPECT(cuMemAlloc_v2(0, 16) == 1);
		EXPECT(cuModuleLoadData(&mod, "no image") == 200);
		EXPECT(cuModuleLoadData(&mod, (void *)64) == 1);
	}
	EXPECT(cuModuleLoadData(&mod, ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry k() { bad;; }}\n") == 218);
	CHECK(cuModuleLoadData(&mod, ptx));
	EXPECT(cuModuleGetFunction(&f, mod, "nothing") == 500);
	CHECK(cuModuleGetFunction(&f, mod, "vectorAdd"));
	q = p;
	void *args[] = {&p, &p, &q, &n};
	EXPECT(cuLaunchKernel(f, 1, 1, 1, 1025, 1, 1, 0, 0, args, 0) == 1); // too many threads
	EXPECT(cuLaunchKernel(f, 0, 1, 1, 1, 1, 1, 0, 0, args, 0) == 1);
	EXPECT(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 1 << 24, 0, args, 0) == 1); // too much shared memory
	CHECK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, 0, args, 0));
	CHECK(cuCtxSynchronize());
	if (getenv("NVTRACE_SIM")) // beyond the allocation, and of what is read
		EXPECT(cuMemcpyHtoD_v2(p, &free, 1 << 20) == 1);
	CHECK(cuGetErrorString(2, &s));
	EXPECT(!strcmp(s, "out of memory"));
	EXPECT(cuGetErrorName(12345, &s) == 1);

	q = 8; // null, more or less
	CHECK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, 0, args, 0));
	EXPECT(cuCtxSynchronize() == 700);
	EXPECT(cuMemAlloc_v2(&p, 16) == 700); // for good
	printf("PASSED\n");
	return 0;
}
