#define _GNU_SOURCE
#include "driver.h"
#include <sys/mman.h>
#include <unistd.h>

int main(void)
{
	CUdevice dev;
	CUcontext ctx, cur;
	CUmodule mod;
	CUlibrary lib;
	CUkernel k;
	CUfunction f;
	CUdeviceptr p, g;
	size_t size;
	int h[32], by = 5, status;
	unsigned count;
	loadDriver();
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&dev, 0));
	CHECK(cuDevicePrimaryCtxRetain(&ctx, dev));
	CHECK(cuCtxGetCurrent(&cur));
	EXPECT(cur == 0);
	CHECK(cuCtxPushCurrent_v2(ctx));
	CHECK(cuLibraryLoadData(&lib, ptx, 0, 0, 0, 0, 0, 0));
	CHECK(cuLibraryGetKernel(&k, lib, "scale"));
	EXPECT(cuLibraryGetKernel(&k, lib, "nothing") == 500);
	CHECK(cuLibraryGetKernel(&k, lib, "scale"));
	CHECK(cuMemAlloc_v2(&p, sizeof h));
	for (int i = 0; i < 32; i++)
		h[i] = i;
	CHECK(cuMemcpyHtoD_v2(p, h, sizeof h));
	void *args[] = {&p, &by};
	CHECK(cuLaunchKernel((CUfunction)k, 1, 1, 1, 32, 1, 1, 0, 0, args, 0)); // a kernel is a function too
	CHECK(cuKernelGetFunction(&f, k));
	CHECK(cuLaunchKernel(f, 1, 1, 1, 16, 1, 1, 0, 0, args, 0));
	CHECK(cuMemcpyDtoH_v2(h, p, sizeof h));
	for (int i = 0; i < 32; i++)
		EXPECT(h[i] == i * (i < 16 ? 25 : 5));

	// A module's variable, and memory of the host that kernels reach.
	int *host;
	CHECK(cuModuleLoadData(&mod, ptx));
	CHECK(cuModuleGetFunction(&f, mod, "scale"));
	EXPECT(cuModuleGetGlobal_v2(&g, &size, mod, "nothing") == 500);
	CHECK(cuModuleGetGlobal_v2(&g, &size, mod, "threads"));
	EXPECT(size == 4);
	CHECK(cuMemHostAlloc((void **)&host, 128, 2));
	for (int i = 0; i < 32; i++)
		host[i] = 1 + i;
	p = (CUdeviceptr)host;
	CHECK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, 0, args, 0));
	CHECK(cuCtxSynchronize());
	for (int i = 0; i < 32; i++)
		EXPECT(host[i] == 5 * (1 + i));
	CHECK(cuMemcpyDtoH_v2(&count, g, 4));
	EXPECT(count == 32);
	CHECK(cuMemFreeHost(host));

	// Files, also such as only the program itself can name.
	char name[64];
	int fd = memfd_create("ptx", 0);
	EXPECT(write(fd, ptx, strlen(ptx)) == (long)strlen(ptx));
	for (int i = 0; i < 3; i++) {
		snprintf(name, sizeof name, i == 0 ? "/proc/self/fd/%d" : i == 1 ? "/dev/fd/%d" : "/proc/thread-self/fd/%d", fd);
		CHECK(cuModuleLoad(&mod, name));
		CHECK(cuModuleGetFunction(&f, mod, "scale"));
		CHECK(cuModuleUnload(mod));
	}
	EXPECT(cuModuleLoad(&mod, "/proc/self/fd/999") == 301);

	// Addresses of functions.
	void *fn, *ex = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2");
	CHECK(cuGetProcAddress_v2("cuMemAlloc", &fn, 12000, 0, &status));
	EXPECT(fn == ex && status == 0);
	cuGetProcAddress_v2("cuNothing", &fn, 12000, 0, &status);
	EXPECT(fn == 0 && status == 1);
	CHECK(cuLibraryUnload(lib));
	CHECK(cuCtxPopCurrent_v2(&cur));
	EXPECT(cur == ctx);
	CHECK(cuDevicePrimaryCtxRelease_v2(dev));
	printf("PASSED\n");
	return 0;
}
