#include "test.h"
#include <string.h>

__global__ void nothing(int *v) { if (v) *v = 1; }
__global__ void __launch_bounds__(64) small(int *v) { if (v) *v = 1; }

int main()
{
	size_t free, total;
	void *p = (void *)1;
	CHECK(cudaMemGetInfo(&free, &total));
	EXPECT(cudaMalloc(&p, total + (1ull << 30)) == cudaErrorMemoryAllocation);
	EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation);
	EXPECT(cudaGetLastError() == cudaSuccess);
	nothing<<<1, 2048>>>(nullptr);
	EXPECT(cudaPeekAtLastError() == cudaErrorInvalidConfiguration);
	EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
	nothing<<<0, 32>>>(nullptr);
	EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
	nothing<<<1, 32, 1 << 20>>>(nullptr);
	EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
	EXPECT(cudaMemcpy(nullptr, &p, 8, (cudaMemcpyKind)9) == cudaErrorInvalidMemcpyDirection);
	EXPECT(cudaMemcpy(&p, &total, 8, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
	EXPECT(cudaSetDevice(77) == cudaErrorInvalidDevice);
	cudaGetLastError();
	EXPECT(cudaFuncSetAttribute((const void *)&free, cudaFuncAttributeMaxDynamicSharedMemorySize, 1024) == cudaErrorInvalidDeviceFunction);
	cudaGetLastError();
	small<<<1, 64>>>(nullptr);
	CHECK(cudaDeviceSynchronize());
	EXPECT(!strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation"));
	return passed();
}
