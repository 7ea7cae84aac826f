#include "test.h"

__global__ void big(int *v)
{
	__shared__ int s[8192]; // 32 KB
	s[threadIdx.x] = v[threadIdx.x];
	__syncthreads();
	v[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}

__global__ void __launch_bounds__(128) bounded(int *v) { v[threadIdx.x]++; }

int main()
{
	cudaDeviceProp p;
	CHECK(cudaGetDeviceProperties(&p, 0));
	EXPECT(p.warpSize == 32 && p.maxThreadsPerBlock == 1024 && p.multiProcessorCount > 0 && p.major >= 7 && p.totalGlobalMem > (1u << 30));
	EXPECT(p.maxThreadsDim[2] == 64 && p.maxGridSize[0] == 2147483647 && p.name[0] != 0);
	int v;
	CHECK(cudaDeviceGetAttribute(&v, cudaDevAttrMultiProcessorCount, 0));
	EXPECT(v == p.multiProcessorCount);
	CHECK(cudaDeviceGetAttribute(&v, cudaDevAttrMaxSharedMemoryPerMultiprocessor, 0));
	EXPECT((size_t)v == p.sharedMemPerMultiprocessor);
	int blocks, grid, block;
	CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, big, 64, 0));
	EXPECT(blocks == (int)(p.sharedMemPerMultiprocessor / (32768 + p.reservedSharedMemPerBlock)));
	CHECK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, bounded, 0, 0));
	EXPECT(block == 128 && grid % p.multiProcessorCount == 0 && grid > 0);
	cudaFuncAttributes a;
	CHECK(cudaFuncGetAttributes(&a, big));
	EXPECT(a.sharedSizeBytes == 32768 && a.maxThreadsPerBlock == 1024);
	CHECK(cudaFuncGetAttributes(&a, bounded));
	EXPECT(a.maxThreadsPerBlock == 128);
	int h[64], *d;
	for (int i = 0; i < 64; i++)
		h[i] = i;
	CHECK(cudaMalloc(&d, sizeof h));
	CHECK(cudaMemcpy(d, h, sizeof h, cudaMemcpyHostToDevice));
	big<<<1, 64>>>(d);
	bounded<<<1, 64>>>(d);
	CHECK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
	for (int i = 0; i < 64; i++)
		EXPECT(h[i] == 64 - i);
	return passed();
}
