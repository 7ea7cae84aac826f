// build: nvcc13.0 sm_80
// build: nvcc13.0 sm_90
// build: nvrtc12.4 sm_50
// build: nvrtc12.4 sm_80 -G
// build: clang19 sm_80
// Tiled matrix product through shared memory.
#define T 16
extern "C" __global__ void matmul(const float *a, const float *b, float *c, int n)
{
	__shared__ float sa[T][T], sb[T][T + 1];
	int x = blockIdx.x * T + threadIdx.x, y = blockIdx.y * T + threadIdx.y;
	float acc = 0;
	for (int k = 0; k < n; k += T) {
		sa[threadIdx.y][threadIdx.x] = a[y * n + k + threadIdx.x];
		sb[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + x];
		__syncthreads();
#pragma unroll
		for (int i = 0; i < T; i++)
			acc += sa[threadIdx.y][i] * sb[i][threadIdx.x];
		__syncthreads();
	}
	c[y * n + x] = acc;
}
