#include "test.h"
#include <assert.h>

__global__ void check(int n) { assert(threadIdx.x < n); }

int main()
{
	check<<<1, 32>>>(32);
	CHECK(cudaDeviceSynchronize());
	check<<<1, 32>>>(31);
	EXPECT(cudaDeviceSynchronize() == cudaErrorAssert);
	printf("FAILED AS EXPECTED: %s\n", cudaGetErrorName(cudaGetLastError()));
	return 0;
}
