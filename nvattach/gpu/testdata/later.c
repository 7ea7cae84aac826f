// Looks kernels up in all ways, in modules whose kernels get their programs then, and launches each.
#define _GNU_SOURCE
#include "../../sim/testdata/driver.h"
#include <unistd.h>

enum { KERNELS = 8 };
static char text[1 << 14];
static CUdeviceptr out;
static int launched;

// launch runs 2 blocks of 64 threads of kernel i, which add i + 1 each.
static void launch(CUfunction f, int i)
{
	int got, zero = 0;
	void *args[] = {&out};
	CHECK(cuMemcpyHtoD_v2(out, &zero, sizeof zero));
	CHECK(cuLaunchKernel(f, 2, 1, 1, 64, 1, 1, 0, 0, args, 0));
	CHECK(cuMemcpyDtoH_v2(&got, out, sizeof got));
	EXPECT(got == 128 * (i + 1));
	launched++;
}

static const char *name(int i)
{
	static char s[8];
	sprintf(s, "add%d", i);
	return s;
}

static int mappings(void)
{
	int n = 0, c;
	FILE *f = fopen("/proc/self/maps", "r");
	while ((c = getc(f)) != EOF)
		n += c == '\n';
	fclose(f);
	return n;
}

static void module(int kernels)
{
	CUmodule m;
	CUfunction f, again;
	CHECK(cuModuleLoadData(&m, text));
	for (int i = 0; i < kernels; i++) {
		CHECK(cuModuleGetFunction(&f, m, name(i)));
		launch(f, i);
		CHECK(cuModuleGetFunction(&again, m, name(i)));
		EXPECT(again == f);
	}
	EXPECT(cuModuleGetFunction(&f, m, "none") != 0);
	CHECK(cuModuleUnload(m));
}

static void library(void)
{
	CUlibrary lib;
	CUkernel k, all[KERNELS + 2]; // there is room for more than there are
	CUmodule m;
	CUfunction f, functions[KERNELS + 2];
	memset(all, 0x11, sizeof all);
	memset(functions, 0x11, sizeof functions);
	CHECK(cuLibraryLoadData(&lib, text, 0, 0, 0, 0, 0, 0));
	for (int i = 0; i < KERNELS; i += 2) {
		CHECK(cuLibraryGetKernel(&k, lib, name(i)));
		launch((CUfunction)k, i);
		CHECK(cuKernelGetFunction(&f, k));
		launch(f, i);
	}
	CHECK(cuLibraryGetModule(&m, lib));
	for (int i = 0; i < KERNELS; i += 3) {
		CHECK(cuModuleGetFunction(&f, m, name(i)));
		launch(f, i);
	}
	CHECK(cuLibraryEnumerateKernels(all, KERNELS + 2, lib));
	CHECK(cuModuleEnumerateFunctions(functions, KERNELS + 2, m));
	EXPECT(!memcmp(&all[KERNELS], &functions[KERNELS], 2 * sizeof *all) && *(unsigned char *)&all[KERNELS] == 0x11);
	for (int i = 0; i < KERNELS; i++) {
		launch((CUfunction)all[i], i);
		launch(functions[i], i);
	}
	CHECK(cuLibraryUnload(lib));
}

int main(void)
{
	CUdevice dev;
	CUcontext ctx, other;
	CUmodule m;
	CUfunction f;
	char *at = text + sprintf(text, ".version 7.0\n.target sm_70\n.address_size 64\n");
	for (int i = 0; i < KERNELS; i++)
		at += sprintf(at, ".visible .entry add%d(.param .u64 p)\n{\n.reg .b64 %%a;\n.reg .b32 %%r;\nld.param.u64 %%a, [p];\natom.global.add.u32 %%r, [%%a], %d;\nret;\n}\n", i, i + 1);
	loadDriver();
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&dev, 0));
	CHECK(cuCtxCreate_v2(&ctx, 0, dev));
	CHECK(cuMemAlloc_v2(&out, sizeof(int)));
	module(KERNELS);
	int before = mappings();
	for (int i = 0; i < 20; i++)
		module(i % KERNELS + 1);
	library();
	EXPECT(mappings() < before + 10);
	// A kernel is looked up while another context is current.
	CHECK(cuModuleLoadData(&m, text));
	CHECK(cuCtxCreate_v2(&other, 0, dev));
	CHECK(cuModuleGetFunction(&f, m, name(1)));
	CHECK(cuCtxSetCurrent(ctx));
	launch(f, 1);
	printf("PASSED %d\n", launched);
	return 0;
}
