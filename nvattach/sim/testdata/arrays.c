// CUDA arrays of all kinds: each takes what its elements do, as far as the driver's pages show, until it is destroyed. What
// tools must say of them, the test knows: 96000 bytes in an array and 1364 in a mipmapped one are not given back.
#include "driver.h"

typedef struct { size_t width, height; int format; unsigned channels; } Desc;
typedef struct { size_t width, height, depth; int format; unsigned channels, flags; } Desc3D;

enum { U8 = 1, S16 = 9, FLOAT = 32, UNORM_8X4 = 0xc2, BC1 = 0x91, BC7 = 0x9d };

static int strict; // a simulated GPU has no pages, and what a real driver says of some mistakes is not tried
static size_t left;

static size_t freeBytes(void)
{
	size_t now, total;
	CHECK(cuMemGetInfo_v2(&now, &total));
	return now;
}

static CUarray create3D(Desc3D d, size_t bytes)
{
	CUarray a;
	Desc3D is;
	left = freeBytes();
	CHECK(cuArray3DCreate_v2(&a, &d));
	EXPECT(!strict || left - freeBytes() == bytes);
	CHECK(cuArray3DGetDescriptor_v2(&is, a));
	EXPECT(is.width == d.width && is.height == d.height && is.depth == d.depth && is.format == d.format && is.channels == d.channels);
	return a;
}

static void destroy(CUarray a)
{
	CHECK(cuArrayDestroy(a));
	EXPECT(!strict || left == freeBytes());
}

int main(void)
{
	CUdevice dev;
	CUcontext ctx;
	CUarray a, level, again;
	CUmipmappedArray m;
	Desc d = {200, 30, FLOAT, 4}, is;
	strict = getenv("NVTRACE_SIM") != 0;
	loadDriver();
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&dev, 0));
	CHECK(cuCtxCreate_v2(&ctx, 0, dev));
	left = freeBytes();
	CHECK(cuArrayCreate_v2(&a, &d)); // and stays
	EXPECT(!strict || left - freeBytes() == 96000);
	CHECK(cuArrayGetDescriptor_v2(&is, a));
	EXPECT(is.width == 200 && is.height == 30 && is.format == FLOAT && is.channels == 4);
	d.height = 0;
	CHECK(cuArrayCreate_v2(&a, &d));
	CHECK(cuArrayDestroy(a));
	EXPECT(!strict || cuArrayDestroy(a) == 400);

	destroy(create3D((Desc3D){10, 20, 30, S16, 2, 0}, 24000));
	destroy(create3D((Desc3D){10, 0, 30, FLOAT, 1, 1}, 1200)); // layers
	destroy(create3D((Desc3D){16, 16, 6, U8, 1, 4}, 1536));    // a cube
	destroy(create3D((Desc3D){50, 30, 0, UNORM_8X4, 4, 0}, 6000));
	destroy(create3D((Desc3D){64, 32, 0, BC1, 4, 0}, 1024));
	destroy(create3D((Desc3D){64, 32, 0, BC7, 4, 0}, 2048));

	Desc3D mip = {16, 16, 0, FLOAT, 1, 0};
	left = freeBytes();
	CHECK(cuMipmappedArrayCreate(&m, &mip, 3));
	EXPECT(!strict || left - freeBytes() == 4 * (256 + 64 + 16));
	CHECK(cuMipmappedArrayGetLevel(&level, m, 1));
	CHECK(cuMipmappedArrayGetLevel(&again, m, 1));
	EXPECT(!strict || level == again);
	CHECK(cuArrayGetDescriptor_v2(&is, level));
	EXPECT(is.width == 8 && is.height == 8);
	EXPECT(!strict || cuMipmappedArrayGetLevel(&again, m, 3) == 1);
	EXPECT(!strict || cuArrayDestroy(level) == 1);
	CHECK(cuMipmappedArrayDestroy(m));
	EXPECT(!strict || left == freeBytes());
	EXPECT(!strict || cuArrayDestroy(level) == 400);
	CHECK(cuMipmappedArrayCreate(&m, &mip, 99)); // five levels; and stays

	mip.width = mip.height = 16384;
	mip.depth = 16384;
	EXPECT(!strict || cuArray3DCreate_v2(&a, &mip) == 2);
	mip.width = 0;
	EXPECT(cuArray3DCreate_v2(&a, &mip) == 1);
	CUcontext primary;
	size_t before = freeBytes(); // the end of a primary context frees its device's arrays
	CHECK(cuDevicePrimaryCtxRetain(&primary, dev));
	CHECK(cuCtxSetCurrent(primary));
	d.height = 1024;
	CHECK(cuArrayCreate_v2(&a, &d));
	CHECK(cuDevicePrimaryCtxReset_v2(dev));
	CHECK(cuCtxSetCurrent(ctx));
	EXPECT(!strict || freeBytes() >= before);
	printf("PASSED\n");
	return 0;
}
