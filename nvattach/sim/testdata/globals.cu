#include "test.h"

__constant__ int table[64];
__constant__ float factor = 2.5f;
__device__ int counter;
__device__ int squares[5] = {0, 1, 4, 9, 16};
static __device__ unsigned long long mask = 0x0123456789abcdefull;

__global__ void kernel(int *out)
{
	int i = threadIdx.x;
	out[i] = table[i % 64] + (int)(factor * 2) + squares[i % 5] + (int)(mask >> (4 * (i % 16)) & 15);
	atomicAdd(&counter, 1);
}

int main()
{
	int h[64], *out, got[256], n = 7, sq[5];
	size_t size;
	void *addr;
	for (int i = 0; i < 64; i++)
		h[i] = 1000 * i;
	CHECK(cudaMemcpyToSymbol(table, h, sizeof h));
	CHECK(cudaMemcpyToSymbol(counter, &n, sizeof n));
	CHECK(cudaMalloc(&out, sizeof got));
	kernel<<<1, 256>>>(out);
	CHECK(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
	unsigned long long m = 0x0123456789abcdefull;
	for (int i = 0; i < 256; i++)
		EXPECT(got[i] == h[i % 64] + 5 + (i % 5) * (i % 5) + (int)(m >> (4 * (i % 16)) & 15));
	CHECK(cudaMemcpyFromSymbol(&n, counter, sizeof n));
	EXPECT(n == 263);
	CHECK(cudaMemcpyFromSymbol(sq, squares, 8, 12));
	EXPECT(sq[0] == 9 && sq[1] == 16);
	CHECK(cudaGetSymbolSize(&size, table));
	EXPECT(size == sizeof h);
	CHECK(cudaGetSymbolAddress(&addr, counter));
	CHECK(cudaMemcpy(&n, addr, sizeof n, cudaMemcpyDeviceToHost));
	EXPECT(n == 263);
	EXPECT(cudaMemcpyFromSymbol(sq, squares, 8, 16) == cudaErrorInvalidValue);
	cudaGetLastError();
	return passed();
}
