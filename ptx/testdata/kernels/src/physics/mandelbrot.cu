// build: nvcc13.0 sm_80
// build: nvcc13.0 sm_90
// build: nvrtc11.8 sm_35
// build: clang19 sm_70
// Escape-time fractal in float and double: divergent loops.
extern "C" __global__ void mandelbrot(unsigned *out, int w, int h, float x0, float y0, float step, int limit)
{
	int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
	if (x >= w || y >= h)
		return;
	float cr = x0 + x * step, ci = y0 + y * step, r = 0, i = 0;
	int n = 0;
	while (n < limit && r * r + i * i < 4) {
		float t = r * r - i * i + cr;
		i = 2 * r * i + ci;
		r = t;
		n++;
	}
	out[y * w + x] = n;
}
extern "C" __global__ void mandelbrot64(unsigned *out, int w, double x0, double y0, double step, int limit)
{
	int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
	double cr = x0 + x * step, ci = y0 + y * step, r = 0, i = 0;
	int n = 0;
	for (; n < limit; n++) {
		double t = r * r - i * i + cr;
		i = 2 * r * i + ci;
		r = t;
		if (r * r + i * i > 4)
			break;
	}
	out[y * w + x] = n;
}
