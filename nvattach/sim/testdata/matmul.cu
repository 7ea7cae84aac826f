#include "test.h"

enum { TILE = 16, N = 96 };

__global__ void matmul(const float *a, const float *b, float *c, int n)
{
	__shared__ float as[TILE][TILE], bs[TILE][TILE];
	int x = threadIdx.x, y = threadIdx.y, col = blockIdx.x * TILE + x, row = blockIdx.y * TILE + y;
	float sum = 0;
	for (int t = 0; t < n; t += TILE) {
		as[y][x] = a[row * n + t + x];
		bs[y][x] = b[(t + y) * n + col];
		__syncthreads();
		for (int k = 0; k < TILE; k++)
			sum += as[y][k] * bs[k][x];
		__syncthreads();
	}
	c[row * n + col] = sum;
}

int main()
{
	static float a[N][N], b[N][N], c[N][N];
	float *d[3];
	for (int i = 0; i < N; i++)
		for (int j = 0; j < N; j++)
			a[i][j] = (i * 7 + j) % 13 - 6, b[i][j] = (i + j * 5) % 11 - 5;
	for (int i = 0; i < 3; i++)
		CHECK(cudaMalloc(&d[i], sizeof a));
	CHECK(cudaMemcpy(d[0], a, sizeof a, cudaMemcpyHostToDevice));
	CHECK(cudaMemcpy(d[1], b, sizeof b, cudaMemcpyHostToDevice));
	matmul<<<dim3(N / TILE, N / TILE), dim3(TILE, TILE)>>>(d[0], d[1], d[2], N);
	CHECK(cudaMemcpy(c, d[2], sizeof c, cudaMemcpyDeviceToHost));
	for (int i = 0; i < N; i++)
		for (int j = 0; j < N; j++) {
			float want = 0; // small integers: every order of adding is exact
			for (int k = 0; k < N; k++)
				want += a[i][k] * b[k][j];
			EXPECT(c[i][j] == want);
		}
	return passed();
}
