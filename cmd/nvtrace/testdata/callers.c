// Calls the driver from functions that a test knows, and prints what it did. It is compiled without
// frame pointers.
#include "../../../nvattach/sim/testdata/driver.h"

#define NI __attribute__((noinline, noclone, optimize("no-optimize-sibling-calls")))

static volatile long sum;

NI static CUdeviceptr keeps(long n)
{
	CUdeviceptr p;
	char room[64 + n % 2];
	memset(room, 1, sizeof room);
	CHECK(cuMemAlloc_v2(&p, n));
	sum += room[n % 64];
	return p;
}

NI static long twice(long n)
{
	return keeps(n) + keeps(n + 1);
}

NI static int wrong(CUdeviceptr p)
{
	int r = cuMemFree_v2(p);
	sum += r;
	return r;
}

NI static int refused(long n)
{
	return wrong(n) + 1000;
}

NI static void waits(void)
{
	CHECK(cuCtxSynchronize());
	sum++;
}

int main(int argc, char **argv)
{
	CUcontext ctx;
	loadDriver();
	CHECK(cuInit(0));
	CHECK(cuDevicePrimaryCtxRetain(&ctx, 0));
	CHECK(cuCtxSetCurrent(ctx));
	for (int i = 0; i < 3; i++) {
		long r = refused(64 + i);
		if (r < 1001)
			return 1;
		sum += twice(4096);
		for (int k = 0; k < 20; k++)
			waits();
	}
	printf("done %d\n", argc);
	return 0;
}
