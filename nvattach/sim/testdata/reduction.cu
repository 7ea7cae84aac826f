#include "test.h"

__global__ void reduce(const int *in, int *out, int n)
{
	__shared__ int part[8];
	int sum = 0;
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		sum += in[i];
	for (int d = 16; d; d /= 2)
		sum += __shfl_down_sync(~0u, sum, d);
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = sum;
	__syncthreads();
	if (threadIdx.x == 0) {
		sum = 0;
		for (int i = 0; i < blockDim.x / 32; i++)
			sum += part[i];
		atomicAdd(out, sum);
	}
}

int main()
{
	const int n = 100000;
	int *h = new int[n], *in, *out, got;
	long want = 0;
	Rand r(1);
	for (int i = 0; i < n; i++)
		want += h[i] = (int)r.below(1000) - 500;
	CHECK(cudaMalloc(&in, n * sizeof(int)));
	CHECK(cudaMalloc(&out, sizeof(int)));
	CHECK(cudaMemset(out, 0, sizeof(int)));
	CHECK(cudaMemcpy(in, h, n * sizeof(int), cudaMemcpyHostToDevice));
	reduce<<<32, 256>>>(in, out, n);
	CHECK(cudaMemcpy(&got, out, sizeof(int), cudaMemcpyDeviceToHost));
	EXPECT(got == want);
	return passed();
}
