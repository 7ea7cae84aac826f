// Memory that is mapped at addresses which the program has reserved, as PyTorch's expandable segments are, beside all
// other kinds; what tools must say of them, the test knows: 4 MiB and 2 MiB are released while they are mapped,
// 2 MiB before, and what is not given back are 2 MiB that are mapped, 3 pitches, and 8192 bytes of the host.
#include "driver.h"

#define MB (1ul << 20)

int main(void)
{
	struct { int type, handles, location, id; char rest[64]; } prop = {1, 0, 1, 0};
	struct { int location, id, flags; } access = {1, 0, 3};
	CUdevice dev;
	CUcontext ctx;
	CUdeviceptr va, p, q;
	unsigned long long a, b, c, d, again;
	size_t least, pitch, before, after, total;
	void *pinned;
	int strict = getenv("NVTRACE_SIM") != 0; // what a real driver says of some mistakes is not tried
	char text[16] = "", *host = calloc(1, 6 * MB);
	loadDriver();
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&dev, 0));
	CHECK(cuCtxCreate_v2(&ctx, 0, dev));
	CHECK(cuMemGetAllocationGranularity(&least, &prop, 0));
	EXPECT(least == 2 * MB);
	CHECK(cuMemAddressReserve(&va, 16 * MB, 0, 0, 0));
	EXPECT(cuMemCreate(&a, 1000, &prop, 0) == 1);
	CHECK(cuMemGetInfo_v2(&before, &total));
	CHECK(cuMemCreate(&a, 4 * MB, &prop, 0));
	CHECK(cuMemCreate(&b, 2 * MB, &prop, 0));
	CHECK(cuMemGetInfo_v2(&after, &total));
	EXPECT(before - after >= 6 * MB);
	EXPECT(!strict || cuMemMap(va + 16 * MB, 4 * MB, 0, a, 0) == 1);
	CHECK(cuMemMap(va, 4 * MB, 0, a, 0));
	EXPECT(!strict || cuMemMap(va + 2 * MB, 2 * MB, 0, b, 0) == 1); // there is something
	CHECK(cuMemMap(va + 4 * MB, 2 * MB, 0, b, 0));
	CHECK(cuMemSetAccess(va, 6 * MB, &access, 1));
	CHECK(cuMemcpyHtoD_v2(va, host, 6 * MB)); // across both
	CHECK(cuMemcpyHtoD_v2(va + 4 * MB - 4, "abcdefg", 8));
	CHECK(cuMemcpyDtoH_v2(text, va + 4 * MB - 4, 8));
	EXPECT(!strcmp(text, "abcdefg"));
	EXPECT(!strict || cuMemcpyDtoH_v2(text, va + 6 * MB - 4, 8) == 1);
	EXPECT(!strict || cuMemAddressFree(va, 16 * MB) == 1);
	CHECK(cuMemRelease(a)); // it lives on, where it is mapped
	CHECK(cuMemRelease(b));
	CHECK(cuMemcpyDtoH_v2(text, va + 4 * MB - 4, 8));
	CHECK(cuMemRetainAllocationHandle(&again, (void *)(va + 4 * MB)));
	EXPECT(again == b);
	CHECK(cuMemRelease(again));
	CHECK(cuMemUnmap(va, 6 * MB));
	EXPECT(!strict || cuMemcpyDtoH_v2(text, va, 8) == 1);
	CHECK(cuMemCreate(&c, 2 * MB, &prop, 0));
	CHECK(cuMemRelease(c));
	CHECK(cuMemCreate(&d, 2 * MB, &prop, 0));
	CHECK(cuMemMap(va + 8 * MB, 2 * MB, 0, d, 0)); // and stays

	CHECK(cuMemAllocPitch_v2(&p, &pitch, 1000, 3, 4)); // and stays
	EXPECT(pitch >= 1000);
	CHECK(cuMemAllocAsync(&q, 4096, 0));
	CHECK(cuMemFreeAsync(q, 0));
	CHECK(cuMemAllocManaged(&q, 12288, 1));
	CHECK(cuMemFree_v2(q));
	CHECK(cuMemHostAlloc(&pinned, 8192, 0)); // and stays
	CUcontext primary, old; // memory that is mapped is no context's
	CHECK(cuCtxGetCurrent(&old));
	CHECK(cuDevicePrimaryCtxRetain(&primary, dev));
	CHECK(cuCtxSetCurrent(primary));
	CHECK(cuMemcpyHtoD_v2(va + 8 * MB, "stays", 6));
	CHECK(cuDevicePrimaryCtxReset_v2(dev));
	CHECK(cuCtxSetCurrent(old));
	CHECK(cuMemcpyDtoH_v2(text, va + 8 * MB, 6));
	EXPECT(!strcmp(text, "stays"));
	printf("PASSED\n");
	return 0;
}
