// A kernel that never ends.
#include "driver.h"

static const char *const loop = ".version 6.4\n.target sm_75\n.address_size 64\n"
	".visible .entry forever()\n{\n\t.reg .b32 %r<2>;\n\tmov.u32 %r1, 0;\nagain:\n\tadd.u32 %r1, %r1, 1;\n\tbra again;\n}\n";

int main(void)
{
	CUdevice dev;
	CUcontext ctx;
	CUmodule mod;
	CUfunction f;
	loadDriver();
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&dev, 0));
	CHECK(cuCtxCreate_v2(&ctx, 0, dev));
	CHECK(cuModuleLoadData(&mod, loop));
	CHECK(cuModuleGetFunction(&f, mod, "forever"));
	CHECK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0));
	printf("launched\n");
	fflush(stdout);
	printf("%s\n", errorName(cuCtxSynchronize()));
	return 0;
}
