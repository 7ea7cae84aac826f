#include "test.h"

__global__ void reverse(int *v, int n)
{
	extern __shared__ int s[];
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		s[i] = v[i];
	__syncthreads();
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		v[i] = s[n - 1 - i];
}

int main()
{
	const int n = 15000; // 60 KB: more than a kernel may have without asking
	static int h[n];
	int *v;
	for (int i = 0; i < n; i++)
		h[i] = i * 3;
	CHECK(cudaMalloc(&v, sizeof h));
	CHECK(cudaMemcpy(v, h, sizeof h, cudaMemcpyHostToDevice));
	reverse<<<1, 128, 4000>>>(v, 1000);
	CHECK(cudaGetLastError());
	reverse<<<1, 128, sizeof h>>>(v, n);
	EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
	CHECK(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof h));
	reverse<<<1, 128, sizeof h>>>(v, n);
	CHECK(cudaGetLastError());
	CHECK(cudaMemcpy(h, v, sizeof h, cudaMemcpyDeviceToHost));
	for (int i = 0; i < n; i++) {
		int j = n - 1 - i;
		EXPECT(h[i] == (j < 1000 ? 999 - j : j) * 3);
	}
	return passed();
}
