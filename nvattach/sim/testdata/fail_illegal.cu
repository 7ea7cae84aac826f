#include "test.h"

// Thread 37 of block 2 writes where nothing is.
__global__ void stray(int *v, long far)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	v[i == 165 ? far : i] = i;
}

int main()
{
	int *d;
	CHECK(cudaMalloc(&d, 4096));
	stray<<<4, 64>>>(d, 1l << 40);
	CHECK(cudaGetLastError());
	EXPECT(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
	EXPECT(cudaMalloc(&d, 16) == cudaErrorIllegalAddress); // for good
	EXPECT(cudaGetLastError() == cudaErrorIllegalAddress);
	EXPECT(cudaGetLastError() == cudaSuccess); // told once
	EXPECT(cudaMalloc(&d, 16) == cudaErrorIllegalAddress);
	printf("FAILED AS EXPECTED: %s\n", cudaGetErrorName(cudaGetLastError()));
	return 0;
}
