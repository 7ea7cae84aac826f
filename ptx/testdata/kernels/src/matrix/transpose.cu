// build: nvcc13.0 sm_75
// build: nvrtc12.9 sm_80
// build: clang14 sm_60
// Transpose through a padded shared tile; 8 rows a thread.
extern "C" __global__ void transpose(const float *in, float *out, int w, int h)
{
	__shared__ float t[32][33];
	int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
	for (int j = 0; j < 32; j += 8)
		if (x < w && y + j < h)
			t[threadIdx.y + j][threadIdx.x] = in[(y + j) * w + x];
	__syncthreads();
	x = blockIdx.y * 32 + threadIdx.x;
	y = blockIdx.x * 32 + threadIdx.y;
	for (int j = 0; j < 32; j += 8)
		if (x < h && y + j < w)
			out[(y + j) * h + x] = t[threadIdx.x][threadIdx.y + j];
}
