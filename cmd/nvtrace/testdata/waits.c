// waits: what is on one stream, behind a lengthy kernel on another. The argument says how it waits: by an
// event, value or function of the host, or as the legacy default stream and others wait for each other.
#include "../../../nvattach/sim/testdata/driver.h"
#include <unistd.h>

static const char text[] =
	".version 6.4\n.target sm_75\n.address_size 64\n"
	".visible .entry lengthy(.param .u64 p, .param .u32 n)\n{\n"
	".reg .pred %q;\n.reg .b32 %r<3>;\n"
	"ld.param.u32 %r1, [n];\n"
	"L:\nsub.u32 %r1, %r1, 1;\nsetp.ne.u32 %q, %r1, 0;\n@%q bra L;\n"
	"ret;\n}\n"
	".visible .entry brief(.param .u64 p, .param .u32 n)\n{\nret;\n}\n";

static CUresult (*waitEvent)(CUstream, CUevent, unsigned), (*waitValue)(CUstream, CUdeviceptr, unsigned, unsigned),
	(*writeValue)(CUstream, CUdeviceptr, unsigned, unsigned), (*hostFunc)(CUstream, void (*)(void *), void *),
	(*set)(CUdeviceptr, unsigned, size_t, CUstream), (*synchronize)(void);

static void host(void *none) { usleep(20000); }

int main(int argc, char **argv)
{
	const char *how = argv[argc - 1];
	int blocking = !strcmp(how, "legacy") || !strcmp(how, "default");
	CUdevice dev;
	CUcontext ctx;
	CUmodule mod;
	CUfunction lengthy, brief;
	CUstream a, b;
	CUevent e;
	CUdeviceptr p;
	unsigned n = 200000;
	void *args[] = {&p, &n}, *lib;
	loadDriver();
	lib = dlopen("libcuda.so.1", RTLD_NOW);
	*(void **)&waitEvent = dlsym(lib, "cuStreamWaitEvent");
	*(void **)&waitValue = dlsym(lib, "cuStreamWaitValue32_v2");
	*(void **)&writeValue = dlsym(lib, "cuStreamWriteValue32_v2");
	*(void **)&hostFunc = dlsym(lib, "cuLaunchHostFunc");
	*(void **)&set = dlsym(lib, "cuMemsetD32Async");
	*(void **)&synchronize = dlsym(lib, "cuCtxSynchronize");
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&dev, 0));
	CHECK(cuCtxCreate_v2(&ctx, 0, dev));
	CHECK(cuModuleLoadData(&mod, text));
	CHECK(cuModuleGetFunction(&lengthy, mod, "lengthy"));
	CHECK(cuModuleGetFunction(&brief, mod, "brief"));
	CHECK(cuMemAlloc_v2(&p, 4096));
	CHECK(cuMemsetD32_v2(p, 0, 1024));
	CHECK(cuStreamCreate(&a, !blocking));
	CHECK(cuStreamCreate(&b, !blocking));
	CHECK(cuEventCreate(&e, 0));
	CHECK(synchronize());
	for (int i = 1; i <= 5; i++) {
		CUstream first = strcmp(how, "legacy") ? a : 0, second = strcmp(how, "default") ? b : 0;
		CHECK(cuLaunchKernel(lengthy, 1, 1, 1, 1, 1, 1, 0, first, args, 0));
		if (!strcmp(how, "event")) {
			CHECK(cuEventRecord(e, a));
			CHECK(waitEvent(b, e, 0));
		} else if (!strcmp(how, "value")) {
			CHECK(writeValue(a, p, i, 0));
			CHECK(waitValue(b, p, i, 0));
		} else if (!strcmp(how, "host")) {
			second = first;
			CHECK(hostFunc(first, host, 0));
		}
		CHECK(set(p + 64, i, 4, second));
		CHECK(cuLaunchKernel(brief, 1, 1, 1, 1, 1, 1, 0, second, args, 0));
		CHECK(synchronize());
	}
	return 0;
}
