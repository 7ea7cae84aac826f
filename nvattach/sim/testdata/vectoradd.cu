#include "test.h"

__global__ void vectorAdd(const float *a, const float *b, float *c, int n)
{
	int i = blockDim.x * blockIdx.x + threadIdx.x;
	if (i < n)
		c[i] = a[i] + b[i];
}

int main()
{
	const int n = 50000;
	size_t size = n * sizeof(float);
	float *h = (float *)malloc(3 * size), *a, *b, *c;
	for (int i = 0; i < 2 * n; i++)
		h[i] = (float)(i % 1000) / 8;
	CHECK(cudaMalloc(&a, size));
	CHECK(cudaMalloc(&b, size));
	CHECK(cudaMalloc(&c, size));
	CHECK(cudaMemcpy(a, h, size, cudaMemcpyHostToDevice));
	CHECK(cudaMemcpy(b, h + n, size, cudaMemcpyHostToDevice));
	vectorAdd<<<(n + 255) / 256, 256>>>(a, b, c, n);
	CHECK(cudaGetLastError());
	CHECK(cudaMemcpy(h + 2 * n, c, size, cudaMemcpyDeviceToHost));
	for (int i = 0; i < n; i++)
		EXPECT(h[2 * n + i] == h[i] + h[n + i]);
	CHECK(cudaFree(a));
	CHECK(cudaFree(b));
	CHECK(cudaFree(c));
	free(h);
	return passed();
}
