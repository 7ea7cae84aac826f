// build: nvcc13.0 sm_80
// build: nvrtc12.4 sm_61
// build: clang19 sm_60
// Five-point stencil with a halo in shared memory.
extern "C" __global__ void stencil(const float *in, float *out, int w, int h)
{
	__shared__ float t[18][18];
	int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
	auto at = [&](int i, int j) { return i < 0 || j < 0 || i >= w || j >= h ? 0.f : in[j * w + i]; };
	t[threadIdx.y + 1][threadIdx.x + 1] = at(x, y);
	if (threadIdx.x == 0) {
		t[threadIdx.y + 1][0] = at(x - 1, y);
		t[threadIdx.y + 1][17] = at(x + 16, y);
	}
	if (threadIdx.y == 0) {
		t[0][threadIdx.x + 1] = at(x, y - 1);
		t[17][threadIdx.x + 1] = at(x, y + 16);
	}
	__syncthreads();
	if (x < w && y < h) {
		const float(*c)[18] = t;
		int i = threadIdx.x + 1, j = threadIdx.y + 1;
		out[y * w + x] = 0.5f * c[j][i] + 0.125f * (c[j - 1][i] + c[j + 1][i] + c[j][i - 1] + c[j][i + 1]);
	}
}
