// Allocates and frees memory, whose address a kernel gets that does not look there. With an argument, a
// child does it that was forked when the driver was loaded.
#include <sys/wait.h>
#include <unistd.h>

#include "../../sim/testdata/driver.h"

enum { N = 1000 };
static CUfunction f;

static void launch(CUdeviceptr d)
{
	int n = 0;
	void *args[] = {&d, &d, &d, &n};
	CHECK(cuLaunchKernel(f, 8, 1, 1, 128, 1, 1, 0, 0, args, 0));
	CHECK(cuCtxSynchronize());
}

static CUdeviceptr filled(int managed)
{
	static unsigned v[N];
	CUdeviceptr d;

	for (int i = 0; i < N; i++)
		v[i] = i;
	if (managed)
		CHECK(cuMemAllocManaged(&d, sizeof v, 1));
	else
		CHECK(cuMemAlloc_v2(&d, sizeof v));
	CHECK(cuMemcpyHtoD_v2(d, v, sizeof v));
	return d;
}

int main(int argc, char **argv)
{
	CUdevice dev;
	CUcontext ctx;
	CUmodule mod;
	CUdeviceptr before, after, managed;

	loadDriver();
	if (argc > 1 && fork()) {
		int status;
		EXPECT(wait(&status) > 0 && status == 0);
		return 0;
	}
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&dev, 0));
	CHECK(cuCtxCreate_v2(&ctx, 0, dev));
	before = filled(0);
	CHECK(cuModuleLoadData(&mod, ptx));
	CHECK(cuModuleGetFunction(&f, mod, "vectorAdd"));
	after = filled(0);
	managed = filled(1);
	launch(before);
	launch(after);
	launch(managed);
	CHECK(cuMemFree_v2(after));
	CHECK(cuMemFree_v2(managed));
	launch(after);
	launch(managed);
	launch(0);
	launch(before);
	CHECK(cuCtxDestroy_v2(ctx));
	printf("PASSED\n");
	return 0;
}
