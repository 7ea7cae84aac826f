// build: nvcc13.0 sm_80
// build: clang19 sm_70
// One dynamic array carved into several typed parts.
extern __shared__ char raw[];
extern "C" __global__ void dynamic_shared(const float *in, float *out, int n)
{
	double *d = (double *)raw;
	float *f = (float *)(d + blockDim.x);
	unsigned char *c = (unsigned char *)(f + blockDim.x);
	int t = threadIdx.x;
	d[t] = in[t];
	f[t] = in[t] * 2;
	c[t] = (unsigned char)t;
	__syncthreads();
	int r = blockDim.x - 1 - t;
	out[t] = (float)d[r] + f[c[r]] * n;
}
