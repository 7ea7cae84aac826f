// build: nvcc13.0 sm_90
// Double library functions.
extern "C" __global__ void libm64(const double *a, double *o)
{
	int i = threadIdx.x;
	o[4 * i] = exp(a[i]); o[4 * i + 1] = log(a[i]); o[4 * i + 2] = sqrt(a[i]) / a[i]; o[4 * i + 3] = rsqrt(a[i]);
}
