#include "test.h"
#include <algorithm>

// One step of a bitonic sort.
__global__ void step(unsigned *v, int k, int j)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x, o = i ^ j;
	if (o <= i)
		return;
	unsigned a = v[i], b = v[o];
	if ((a > b) == ((i & k) == 0))
		v[i] = b, v[o] = a;
}

int main()
{
	const int n = 4096;
	static unsigned h[n], want[n];
	unsigned *v;
	Rand r(4);
	for (int i = 0; i < n; i++)
		h[i] = want[i] = r.next();
	CHECK(cudaMalloc(&v, sizeof h));
	CHECK(cudaMemcpy(v, h, sizeof h, cudaMemcpyHostToDevice));
	for (int k = 2; k <= n; k *= 2)
		for (int j = k / 2; j; j /= 2)
			step<<<n / 256, 256>>>(v, k, j);
	CHECK(cudaMemcpy(h, v, sizeof h, cudaMemcpyDeviceToHost));
	std::sort(want, want + n);
	for (int i = 0; i < n; i++)
		EXPECT(h[i] == want[i]);
	return passed();
}
