#include "driver.h"

int main(void)
{
	enum { N = 10000 };
	static float a[N], b[N], c[N];
	CUdevice dev;
	CUcontext ctx;
	CUmodule mod;
	CUfunction f;
	CUdeviceptr d[3];
	CUevent start, stop;
	int n = N, v, count, major;
	float ms;
	char name[100];
	size_t total, size, off;
	loadDriver();
	EXPECT(cuDeviceGetCount(&count) == 3); // not initialised
	CHECK(cuInit(0));
	CHECK(cuDriverGetVersion(&v));
	EXPECT(v >= 11000);
	CHECK(cuDeviceGetCount(&count));
	EXPECT(count >= 1);
	CHECK(cuDeviceGet(&dev, 0));
	CHECK(cuDeviceGetName(name, sizeof name, dev));
	EXPECT(strlen(name) > 3);
	CHECK(cuDeviceTotalMem_v2(&total, dev));
	EXPECT(total > 1u << 30);
	CHECK(cuDeviceGetAttribute(&major, 75, dev));
	EXPECT(major >= 7);
	EXPECT(cuModuleLoadData(&mod, ptx) == 201); // no context
	CHECK(cuCtxCreate_v2(&ctx, 0, dev));
	CHECK(cuModuleLoadData(&mod, ptx));
	CHECK(cuModuleGetFunction(&f, mod, "vectorAdd"));
	for (int i = 0; i < N; i++)
		a[i] = i, b[i] = 3 * i;
	for (int i = 0; i < 3; i++)
		CHECK(cuMemAlloc_v2(&d[i], sizeof a));
	CHECK(cuMemcpyHtoD_v2(d[0], a, sizeof a));
	CHECK(cuMemcpyHtoD_v2(d[1], b, sizeof a));
	CHECK(cuEventCreate(&start, 0));
	CHECK(cuEventCreate(&stop, 0));
	void *args[] = {&d[0], &d[1], &d[2], &n};
	CHECK(cuEventRecord(start, 0));
	CHECK(cuLaunchKernel(f, (N + 127) / 128, 1, 1, 128, 1, 1, 0, 0, args, 0));
	CHECK(cuEventRecord(stop, 0));
	CHECK(cuEventSynchronize(stop));
	CHECK(cuEventElapsedTime(&ms, start, stop));
	EXPECT(ms >= 0);
	CHECK(cuMemcpyDtoH_v2(c, d[2], sizeof a));
	for (int i = 0; i < N; i++)
		EXPECT(c[i] == 4 * i);

	// The same with the parameters in one buffer.
	struct {
		CUdeviceptr a, b, c;
		int n;
	} p = {d[2], d[2], d[0], N};
	size = 28;
	void *extra[] = {(void *)1, &p, (void *)2, &size, 0};
	CHECK(cuLaunchKernel(f, (N + 127) / 128, 1, 1, 128, 1, 1, 0, 0, 0, extra));
	CHECK(cuMemcpyDtoH_v2(c, d[0], sizeof a));
	for (int i = 0; i < N; i++)
		EXPECT(c[i] == 8 * i);
	CHECK(cuFuncGetParamInfo(f, 3, &off, &size));
	EXPECT(off == 24 && size == 4);
	EXPECT(cuFuncGetParamInfo(f, 4, &off, &size) == 1);
	const char *fname;
	CHECK(cuFuncGetName(&fname, f));
	EXPECT(!strcmp(fname, "vectorAdd"));
	CHECK(cuModuleUnload(mod));
	CHECK(cuCtxDestroy_v2(ctx));
	printf("PASSED\n");
	return 0;
}
