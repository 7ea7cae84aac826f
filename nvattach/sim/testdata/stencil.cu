#include "test.h"

__global__ void stencil(const int *in, int *out, int w, int h)
{
	__shared__ int s[18][18];
	int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y, i = threadIdx.x + 1, j = threadIdx.y + 1;
	auto at = [&](int x, int y) { return x < 0 || y < 0 || x >= w || y >= h ? 0 : in[y * w + x]; };
	s[j][i] = at(x, y);
	if (i == 1) s[j][0] = at(x - 1, y);
	if (i == 16) s[j][17] = at(x + 1, y);
	if (j == 1) s[0][i] = at(x, y - 1);
	if (j == 16) s[17][i] = at(x, y + 1);
	__syncthreads();
	if (x < w && y < h)
		out[y * w + x] = s[j][i - 1] + s[j][i + 1] + s[j - 1][i] + s[j + 1][i] - 4 * s[j][i];
}

int main()
{
	const int w = 100, h = 60, steps = 4;
	static int a[h][w], b[h][w], got[h][w];
	int *d[2];
	for (int i = 0; i < w * h; i++)
		a[i / w][i % w] = i * i % 17;
	CHECK(cudaMalloc(&d[0], sizeof a));
	CHECK(cudaMalloc(&d[1], sizeof a));
	CHECK(cudaMemcpy(d[0], a, sizeof a, cudaMemcpyHostToDevice));
	for (int k = 0; k < steps; k++)
		stencil<<<dim3((w + 15) / 16, (h + 15) / 16), dim3(16, 16)>>>(d[k % 2], d[(k + 1) % 2], w, h);
	CHECK(cudaMemcpy(got, d[steps % 2], sizeof got, cudaMemcpyDeviceToHost));
	for (int k = 0; k < steps; k++) {
		for (int y = 0; y < h; y++)
			for (int x = 0; x < w; x++)
				b[y][x] = (x ? a[y][x - 1] : 0) + (x < w - 1 ? a[y][x + 1] : 0) + (y ? a[y - 1][x] : 0) + (y < h - 1 ? a[y + 1][x] : 0) - 4 * a[y][x];
		for (int i = 0; i < w * h; i++)
			a[i / w][i % w] = b[i / w][i % w];
	}
	for (int i = 0; i < w * h; i++)
		EXPECT(got[i / w][i % w] == a[i / w][i % w]);
	return passed();
}
