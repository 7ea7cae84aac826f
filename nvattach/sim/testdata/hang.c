// A kernel that waits for ever, with one behind it on its stream; one before it is over.
#include "driver.h"

static const char *text =
	".version 6.4\n.target sm_75\n.address_size 64\n"
	".visible .entry forever(.param .u64 p)\n{\n"
	".reg .pred %q;\n.reg .b64 %r<3>;\n"
	"ld.param.u64 %r1, [p];\n"
	"L:\nld.volatile.global.u64 %r2, [%r1];\nsetp.eq.u64 %q, %r2, 0;\n@%q bra L;\nret;\n}\n"
	".visible .entry quick(.param .u64 p)\n{\nret;\n}\n";

int main(void)
{
	CUdevice dev;
	CUcontext ctx;
	CUmodule mod;
	CUfunction forever, quick;
	CUstream s;
	CUdeviceptr p;
	void *args[] = {&p};
	loadDriver();
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&dev, 0));
	CHECK(cuCtxCreate_v2(&ctx, 0, dev));
	CHECK(cuModuleLoadData(&mod, text));
	CHECK(cuModuleGetFunction(&forever, mod, "forever"));
	CHECK(cuModuleGetFunction(&quick, mod, "quick"));
	CHECK(cuMemAlloc_v2(&p, 64));
	CHECK(cuMemsetD32_v2(p, 0, 16));
	CHECK(cuStreamCreate(&s, 1));
	CHECK(cuLaunchKernel(quick, 1, 1, 1, 1, 1, 1, 0, s, args, 0));
	CHECK(cuStreamSynchronize(s));
	CHECK(cuLaunchKernel(forever, 1, 1, 1, 1, 1, 1, 0, s, args, 0));
	CHECK(cuLaunchKernel(quick, 1, 1, 1, 1, 1, 1, 0, s, args, 0));
	return cuStreamSynchronize(s) == 0; // the simulated GPU gives up
}
