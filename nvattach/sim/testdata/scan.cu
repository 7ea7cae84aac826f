#include "test.h"

// Inclusive sums of a block, and the block's total.
__global__ void scanBlocks(const unsigned *in, unsigned *out, unsigned *totals, int n)
{
	__shared__ unsigned s[2][256];
	int i = blockIdx.x * 256 + threadIdx.x, t = threadIdx.x, at = 0;
	s[0][t] = i < n ? in[i] : 0;
	__syncthreads();
	for (int d = 1; d < 256; d *= 2, at ^= 1) {
		s[at ^ 1][t] = s[at][t] + (t >= d ? s[at][t - d] : 0);
		__syncthreads();
	}
	if (i < n)
		out[i] = s[at][t];
	if (t == 255)
		totals[blockIdx.x] = s[at][t];
}

__global__ void addTotals(unsigned *out, const unsigned *totals, int n)
{
	int i = blockIdx.x * 256 + threadIdx.x;
	if (i < n && blockIdx.x)
		out[i] += totals[blockIdx.x - 1];
}

int main()
{
	const int n = 20000, blocks = (n + 255) / 256;
	unsigned *h = new unsigned[n], *got = new unsigned[n], *in, *out, *totals, *sums, *none;
	Rand r(2);
	for (int i = 0; i < n; i++)
		h[i] = r.below(100);
	CHECK(cudaMalloc(&in, n * 4));
	CHECK(cudaMalloc(&out, n * 4));
	CHECK(cudaMalloc(&totals, blocks * 4));
	CHECK(cudaMalloc(&sums, blocks * 4));
	CHECK(cudaMalloc(&none, 4));
	CHECK(cudaMemcpy(in, h, n * 4, cudaMemcpyHostToDevice));
	scanBlocks<<<blocks, 256>>>(in, out, totals, n);
	scanBlocks<<<1, 256>>>(totals, sums, none, blocks);
	addTotals<<<blocks, 256>>>(out, sums, n);
	CHECK(cudaMemcpy(got, out, n * 4, cudaMemcpyDeviceToHost));
	unsigned want = 0;
	for (int i = 0; i < n; i++) {
		want += h[i];
		EXPECT(got[i] == want);
	}
	return passed();
}
