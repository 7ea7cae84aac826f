// Threads call step while kernels run, for bench/both_count.py: both_count THREADS STEPS LAUNCHES.
#include "driver.h"
#include <pthread.h>

enum { BLOCKS = 64, BLOCK = 256 };

static const char nothing[] = ".version 6.4\n.target sm_70\n.address_size 64\n.visible .entry nothing()\n{\n\tret;\n}\n";

static long steps;

__attribute__((noinline, noclone)) void step(void) { __asm__ volatile("nop; nop; nop; nop; nop" ::: "memory"); }

static void *work(void *arg)
{
	for (long i = 0; i < steps; i++)
		step();
	return arg;
}

int main(int argc, char **argv)
{
	enum { MOST = 64 };
	CUdevice dev;
	CUcontext ctx;
	CUmodule mod;
	CUfunction f;
	pthread_t t[MOST];
	int threads = argc > 3 ? atoi(argv[1]) : 0;
	long launches = argc > 3 ? atol(argv[3]) : 0;
	if (threads < 1 || threads > MOST)
		return 2;
	steps = atol(argv[2]);
	loadDriver();
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&dev, 0));
	CHECK(cuCtxCreate_v2(&ctx, 0, dev));
	CHECK(cuModuleLoadData(&mod, nothing));
	CHECK(cuModuleGetFunction(&f, mod, "nothing"));
	for (int i = 0; i < threads; i++)
		if (pthread_create(&t[i], 0, work, 0))
			return 1;
	for (long i = 0; i < launches; i++)
		CHECK(cuLaunchKernel(f, BLOCKS, 1, 1, BLOCK, 1, 1, 0, 0, 0, 0));
	CHECK(cuCtxSynchronize());
	for (int i = 0; i < threads; i++)
		pthread_join(t[i], 0);
	CHECK(cuCtxDestroy_v2(ctx));
	printf("%ld\n", launches * BLOCKS * BLOCK);
	return 0;
}
