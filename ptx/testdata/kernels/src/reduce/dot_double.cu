// build: nvcc13.0 sm_90
// build: nvrtc11.8 sm_37
// Dot product in double precision with a volatile shared tail, as written before Volta.
extern "C" __global__ void dot(const double *a, const double *b, double *out, int n)
{
	__shared__ double s[128];
	double v = 0;
	for (int i = threadIdx.x; i < n; i += 128)
		v += a[i] * b[i];
	s[threadIdx.x] = v;
	__syncthreads();
	if (threadIdx.x < 64)
		s[threadIdx.x] += s[threadIdx.x + 64];
	__syncthreads();
	if (threadIdx.x < 32) {
		volatile double *p = s;
		for (int d = 32; d; d >>= 1) {
			p[threadIdx.x] += p[threadIdx.x + d];
			__syncwarp();
		}
	}
	if (threadIdx.x == 0)
		*out = s[0];
}
