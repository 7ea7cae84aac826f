#include "test.h"
#include <string.h>

__global__ void nothing(int *v) { if (v) *v = 1; }
__global__ void __launch_bounds__(64) small(int *v) { if (v) *v = 1; }

int main()
{
	size_t free, total;
	int version;
	// What is told of a bad launch depends on the runtime.
	CHECK(cudaRuntimeGetVersion(&version));
	cudaError_t bad = version < 13000 ? cudaErrorInvalidConfiguration : cudaErrorInvalidValue;
	cudaError_t unknown = version < 13000 ? cudaErrorInvalidDeviceFunction : cudaErrorInvalidResourceHandle;
	void *p = (void *)1;
	CHECK(cudaMemGetInfo(&free, &total));
	EXPECT(cudaMalloc(&p, total + (1ull << 30)) == cudaErrorMemoryAllocation);
	EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation);
	EXPECT(cudaGetLastError() == cudaSuccess);
	nothing<<<1, 2048>>>(nullptr);
	EXPECT(cudaPeekAtLastError() == bad);
	EXPECT(cudaGetLastError() == bad);
	nothing<<<0, 32>>>(nullptr);
	EXPECT(cudaGetLastError() == bad);
	nothing<<<1, 32, 1 << 20>>>(nullptr);
	EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
	EXPECT(cudaMemcpy(nullptr, &p, 8, (cudaMemcpyKind)9) == cudaErrorInvalidMemcpyDirection);
	EXPECT(cudaMemcpy(&p, &total, 8, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
	EXPECT(cudaSetDevice(77) == cudaErrorInvalidDevice);
	cudaGetLastError();
	EXPECT(cudaFuncSetAttribute((const void *)&free, cudaFuncAttributeMaxDynamicSharedMemorySize, 1024) == unknown);
	cudaGetLastError();
	small<<<1, 128>>>(nullptr);
	EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
	small<<<1, 64>>>(nullptr);
	CHECK(cudaDeviceSynchronize());
	EXPECT(!strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation"));
	return passed();
}
