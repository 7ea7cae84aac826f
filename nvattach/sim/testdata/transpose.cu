#include "test.h"

__global__ void transpose(const int *in, int *out, int w, int h)
{
	__shared__ int tile[32][33];
	int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
	for (int j = 0; j < 32; j += 8)
		if (x < w && y + j < h)
			tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * w + x];
	__syncthreads();
	x = blockIdx.y * 32 + threadIdx.x, y = blockIdx.x * 32 + threadIdx.y;
	for (int j = 0; j < 32; j += 8)
		if (x < h && y + j < w)
			out[(y + j) * h + x] = tile[threadIdx.x][threadIdx.y + j];
}

int main()
{
	const int w = 150, h = 70;
	static int a[h][w], t[w][h];
	int *in, *out;
	for (int i = 0; i < w * h; i++)
		a[i / w][i % w] = i * 31;
	CHECK(cudaMalloc(&in, sizeof a));
	CHECK(cudaMalloc(&out, sizeof t));
	CHECK(cudaMemcpy(in, a, sizeof a, cudaMemcpyHostToDevice));
	transpose<<<dim3((w + 31) / 32, (h + 31) / 32), dim3(32, 8)>>>(in, out, w, h);
	CHECK(cudaMemcpy(t, out, sizeof t, cudaMemcpyDeviceToHost));
	for (int y = 0; y < h; y++)
		for (int x = 0; x < w; x++)
			EXPECT(t[x][y] == a[y][x]);
	return passed();
}
