// A program with what people look for: each step waits for the GPU, in report, and each
// fourth one keeps an allocation that nothing frees, in evaluate.
//
//   planted [STEPS]
#include "driver.h"

enum { KEPT = 65536, SCRATCH = 4096 };

static CUdeviceptr buffer;
static CUfunction scale;
static volatile int done; // what comes behind a call keeps it from being the caller's last

static __attribute__((noinline)) void step(void)
{
	int by = 2;
	void *args[] = {&buffer, &by};
	CHECK(cuLaunchKernel(scale, 1, 1, 1, 256, 1, 1, 0, 0, args, 0));
	done++;
}

static __attribute__((noinline)) void report(void)
{
	int first;
	CHECK(cuMemcpyDtoH_v2(&first, buffer, sizeof first));
	done++;
}

static __attribute__((noinline)) void evaluate(void)
{
	CUdeviceptr kept, scratch;
	CHECK(cuMemAlloc_v2(&kept, KEPT));
	CHECK(cuMemAlloc_v2(&scratch, SCRATCH));
	CHECK(cuMemFree_v2(scratch));
	done++;
}

int main(int argc, char **argv)
{
	int steps = argc > 1 ? atoi(argv[1]) : 20;
	CUdevice dev;
	CUcontext ctx;
	CUmodule mod;
	loadDriver();
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&dev, 0));
	CHECK(cuCtxCreate_v2(&ctx, 0, dev));
	CHECK(cuModuleLoadData(&mod, ptx));
	CHECK(cuModuleGetFunction(&scale, mod, "scale"));
	CHECK(cuMemAlloc_v2(&buffer, 1 << 20));
	for (int i = 0; i < steps; i++) {
		step();
		report();
		if (i % 4 == 0)
			evaluate();
	}
	CHECK(cuMemFree_v2(buffer));
	printf("%d steps\n", steps);
}
