#include "test.h"

__global__ void hello(const char *who, int n)
{
	if (threadIdx.x < n)
		printf("hello %d of block %d: %5.2f %s %llx%%\n", threadIdx.x, blockIdx.x, threadIdx.x * 0.25, "str", 0x123456789abull);
}

int main()
{
	printf("before\n");
	hello<<<1, 32>>>(nullptr, 3);
	CHECK(cudaDeviceSynchronize());
	printf("between\n");
	hello<<<1, 1>>>(nullptr, 1);
	return passed();
}
