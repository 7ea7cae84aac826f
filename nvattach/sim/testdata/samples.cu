// What ordinary samples of the runtime API call, each at least once.
#include "test.h"
#include <string.h>

// Of cuda_profiler_api.h, which not every toolkit has.
extern "C" cudaError_t cudaProfilerStart();
extern "C" cudaError_t cudaProfilerStop();

__constant__ float factor[4];
__device__ int total;

__global__ void add(float *v, size_t pitch, int w, int h)
{
	int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
	if (x < w && y < h) {
		float *row = (float *)((char *)v + y * pitch);
		row[x] += factor[y & 3];
		atomicAdd(&total, 1);
	}
}

static void CUDART_CB hostDone(void *p) { *(int *)p += 1; }
static void CUDART_CB callback(cudaStream_t, cudaError_t e, void *p) { *(int *)p += e == cudaSuccess; }

static void devices()
{
	int n, d, v, r, drv, lo, hi, can = 1;
	cudaDeviceProp p;
	char bus[32];
	size_t free, all, limit;
	CHECK(cudaGetDeviceCount(&n));
	EXPECT(n >= 1);
	CHECK(cudaSetDeviceFlags(cudaDeviceScheduleAuto | cudaDeviceMapHost));
	CHECK(cudaSetDevice(0));
	CHECK(cudaGetDevice(&d));
	EXPECT(d == 0);
	CHECK(cudaGetDeviceProperties(&p, 0));
	EXPECT(p.name[0] && p.warpSize == 32 && p.maxThreadsPerBlock == 1024 && p.multiProcessorCount > 0 && p.totalGlobalMem > 0);
	CHECK(cudaDeviceGetAttribute(&v, cudaDevAttrMultiProcessorCount, 0));
	EXPECT(v == p.multiProcessorCount);
	CHECK(cudaChooseDevice(&d, &p));
	CHECK(cudaDeviceGetPCIBusId(bus, sizeof bus, 0));
	CHECK(cudaDeviceGetByPCIBusId(&d, bus));
	EXPECT(d == 0);
	CHECK(cudaRuntimeGetVersion(&r));
	CHECK(cudaDriverGetVersion(&drv));
	EXPECT(r >= 12000 && drv >= r);
	CHECK(cudaDeviceGetStreamPriorityRange(&lo, &hi));
	EXPECT(lo >= hi);
	CHECK(cudaDeviceCanAccessPeer(&can, 0, 0));
	EXPECT(can == 0);
	CHECK(cudaMemGetInfo(&free, &all));
	EXPECT(free > 0 && free <= all);
	CHECK(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 1 << 20));
	CHECK(cudaDeviceGetLimit(&limit, cudaLimitPrintfFifoSize));
	EXPECT(limit >= 1 << 20);
	CHECK(cudaDeviceSetCacheConfig(cudaFuncCachePreferL1));
	CHECK(cudaProfilerStart());
	CHECK(cudaProfilerStop());
}

static void kernels()
{
	int blocks, grid, block;
	cudaFuncAttributes a;
	void *f;
	size_t size;
	CHECK(cudaFuncGetAttributes(&a, (const void *)add));
	EXPECT(a.maxThreadsPerBlock == 1024 && a.numRegs > 0);
	CHECK(cudaFuncSetAttribute((const void *)add, cudaFuncAttributeMaxDynamicSharedMemorySize, 1024));
	CHECK(cudaFuncSetCacheConfig((const void *)add, cudaFuncCachePreferShared));
	CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 256, 0));
	EXPECT(blocks >= 1);
	CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, add, 256, 0, cudaOccupancyDefault));
	CHECK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, add, 0, 0));
	EXPECT(grid > 0 && block > 0);
	CHECK(cudaOccupancyAvailableDynamicSMemPerBlock(&size, (const void *)add, 1, 64));
	CHECK(cudaGetSymbolAddress(&f, total));
	CHECK(cudaGetSymbolSize(&size, factor));
	EXPECT(f && size == 16);
}

static void memory()
{
	const int w = 100, h = 50;
	static float host[h][w], back[h][w];
	float *v, *pinned, *mapped, *onDevice, *late, *managed, k[4] = {1, 2, 3, 4};
	size_t pitch;
	int zero = 0, seen;
	unsigned flags;
	cudaPointerAttributes at;
	cudaStream_t s;
	cudaEvent_t begin, end;
	float ms;
	CHECK(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, 0));
	CHECK(cudaStreamGetFlags(s, &flags));
	EXPECT(flags == cudaStreamNonBlocking);
	CHECK(cudaEventCreate(&begin));
	CHECK(cudaEventCreateWithFlags(&end, cudaEventBlockingSync));
	CHECK(cudaMemcpyToSymbol(factor, k, sizeof k));
	CHECK(cudaMemcpyToSymbolAsync(total, &zero, sizeof zero, 0, cudaMemcpyHostToDevice, s));
	CHECK(cudaMallocPitch(&v, &pitch, w * sizeof(float), h));
	CHECK(cudaMemset2D(v, pitch, 0, w * sizeof(float), h));
	for (int y = 0; y < h; y++)
		for (int x = 0; x < w; x++)
			host[y][x] = x + y;
	CHECK(cudaMemcpy2D(v, pitch, host, w * sizeof(float), w * sizeof(float), h, cudaMemcpyHostToDevice));
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaEventRecord(begin, s));
	add<<<dim3((w + 15) / 16, (h + 15) / 16), dim3(16, 16), 0, s>>>(v, pitch, w, h);
	CHECK(cudaPeekAtLastError());
	CHECK(cudaEventRecord(end, s));
	CHECK(cudaMemcpy2DAsync(back, w * sizeof(float), v, pitch, w * sizeof(float), h, cudaMemcpyDeviceToHost, s));
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaEventQuery(end));
	CHECK(cudaEventElapsedTime(&ms, begin, end));
	for (int y = 0; y < h; y++)
		for (int x = 0; x < w; x++)
			EXPECT(back[y][x] == x + y + k[y & 3]);
	CHECK(cudaMemcpyFromSymbol(&seen, total, sizeof seen));
	EXPECT(seen == w * h);

	cudaExtent extent = make_cudaExtent(64 * sizeof(float), 8, 4);
	cudaPitchedPtr cube;
	static float box[4][8][64], got[4][8][64];
	for (int i = 0; i < 4 * 8 * 64; i++)
		(&box[0][0][0])[i] = i;
	CHECK(cudaMalloc3D(&cube, extent));
	cudaMemcpy3DParms c = {};
	c.srcPtr = make_cudaPitchedPtr(box, 64 * sizeof(float), 64, 8);
	c.dstPtr = cube;
	c.extent = extent;
	c.kind = cudaMemcpyHostToDevice;
	CHECK(cudaMemcpy3D(&c));
	c.srcPtr = cube;
	c.dstPtr = make_cudaPitchedPtr(got, 64 * sizeof(float), 64, 8);
	c.kind = cudaMemcpyDeviceToHost;
	CHECK(cudaMemcpy3DAsync(&c, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT(!memcmp(box, got, sizeof box));

	CHECK(cudaHostAlloc(&pinned, 4096, cudaHostAllocDefault));
	CHECK(cudaHostAlloc(&mapped, 4096, cudaHostAllocMapped));
	CHECK(cudaHostGetDevicePointer(&onDevice, mapped, 0));
	CHECK(cudaHostGetFlags(&flags, mapped));
	CHECK(cudaPointerGetAttributes(&at, v));
	EXPECT(at.type == cudaMemoryTypeDevice && at.device == 0);
	CHECK(cudaPointerGetAttributes(&at, pinned));
	EXPECT(at.type == cudaMemoryTypeHost);
	CHECK(cudaMallocManaged(&managed, 4096));
	CHECK(cudaPointerGetAttributes(&at, managed));
	EXPECT(at.type == cudaMemoryTypeManaged);
	CHECK(cudaMallocAsync(&late, 4096, s));
	CHECK(cudaMemsetAsync(late, 1, 4096, s));
	CHECK(cudaMemcpyAsync(pinned, late, 4096, cudaMemcpyDefault, s));
	CHECK(cudaFreeAsync(late, s));
	int done = 0;
	CHECK(cudaLaunchHostFunc(s, hostDone, &done));
	CHECK(cudaStreamAddCallback(s, callback, &done, 0));
	CHECK(cudaStreamSynchronize(s));
	EXPECT(done == 2 && *(int *)pinned == 0x01010101 && cudaStreamQuery(s) == cudaSuccess);
	CHECK(cudaStreamWaitEvent(0, end, 0));
	CHECK(cudaMemcpy(v, cube.ptr, 256, cudaMemcpyDeviceToDevice));
	CHECK(cudaFree(cube.ptr));
	CHECK(cudaFree(managed));
	CHECK(cudaFree(v));
	CHECK(cudaFree(nullptr));
	CHECK(cudaFreeHost(mapped));
	CHECK(cudaFreeHost(pinned));
	CHECK(cudaEventDestroy(begin));
	CHECK(cudaEventDestroy(end));
	CHECK(cudaStreamDestroy(s));
}

int main()
{
	devices();
	kernels();
	memory();
	EXPECT(!strcmp(cudaGetErrorString(cudaErrorInvalidValue), "invalid argument"));
	CHECK(cudaGetLastError());
	CHECK(cudaDeviceReset());
	return passed();
}
