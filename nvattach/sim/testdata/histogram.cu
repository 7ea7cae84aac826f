#include "test.h"

__global__ void histogram(const unsigned char *in, int n, unsigned *bins)
{
	__shared__ unsigned local[256];
	local[threadIdx.x] = 0;
	__syncthreads();
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		atomicAdd(&local[in[i]], 1);
	__syncthreads();
	atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
}

int main()
{
	const int n = 60000;
	unsigned char *h = new unsigned char[n], *in;
	unsigned want[256] = {}, got[256], *bins;
	Rand r(3);
	for (int i = 0; i < n; i++)
		want[h[i] = r.below(16) * r.below(16)]++;
	CHECK(cudaMalloc(&in, n));
	CHECK(cudaMalloc(&bins, sizeof got));
	CHECK(cudaMemcpy(in, h, n, cudaMemcpyHostToDevice));
	CHECK(cudaMemset(bins, 0, sizeof got));
	histogram<<<12, 256>>>(in, n, bins);
	CHECK(cudaMemcpy(got, bins, sizeof got, cudaMemcpyDeviceToHost));
	for (int i = 0; i < 256; i++)
		EXPECT(got[i] == want[i]);
	return passed();
}
