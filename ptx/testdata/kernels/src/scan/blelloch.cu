// build: nvcc13.0 sm_75
// build: clang19 sm_60
// Work-efficient exclusive scan with a dynamic shared array.
extern __shared__ unsigned tmp[];
extern "C" __global__ void blelloch(const unsigned *in, unsigned *out, int n)
{
	int t = threadIdx.x, off = 1;
	tmp[2 * t] = in[2 * t];
	tmp[2 * t + 1] = in[2 * t + 1];
	for (int d = n >> 1; d > 0; d >>= 1) {
		__syncthreads();
		if (t < d)
			tmp[off * (2 * t + 2) - 1] += tmp[off * (2 * t + 1) - 1];
		off *= 2;
	}
	if (t == 0)
		tmp[n - 1] = 0;
	for (int d = 1; d < n; d *= 2) {
		off >>= 1;
		__syncthreads();
		if (t < d) {
			unsigned a = tmp[off * (2 * t + 1) - 1];
			tmp[off * (2 * t + 1) - 1] = tmp[off * (2 * t + 2) - 1];
			tmp[off * (2 * t + 2) - 1] += a;
		}
	}
	__syncthreads();
	out[2 * t] = tmp[2 * t];
	out[2 * t + 1] = tmp[2 * t + 1];
}
