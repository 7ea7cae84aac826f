// Measures calls of the driver API: bench MODE COUNT; prints nanoseconds per call.
#include "driver.h"
#include <time.h>

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "call";
	int n = argc > 2 ? atoi(argv[2]) : 1000, by = 1;
	CUdevice dev;
	CUcontext ctx;
	CUmodule mod;
	CUfunction f;
	CUdeviceptr p;
	loadDriver();
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&dev, 0));
	CHECK(cuCtxCreate_v2(&ctx, 0, dev));
	CHECK(cuModuleLoadData(&mod, ptx));
	CHECK(cuModuleGetFunction(&f, mod, "scale"));
	CHECK(cuMemAlloc_v2(&p, 1 << 20));
	void *args[] = {&p, &by};
	double t = now();
	for (int i = 0; i < n; i++) {
		if (!strcmp(mode, "call")) {
			CHECK(cuCtxSetCurrent(ctx));
		} else if (!strcmp(mode, "out")) {
			CHECK(cuCtxGetCurrent(&ctx));
		} else if (!strcmp(mode, "launch")) {
			CHECK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, 0, args, 0));
		} else {
			CHECK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, 0, args, 0));
			CHECK(cuCtxSynchronize());
		}
	}
	CHECK(cuCtxSynchronize());
	printf("%.0f\n", (now() - t) / n);
	return 0;
}
