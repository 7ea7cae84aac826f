// build: nvcc13.0 sm_80
// build: nvcc13.0 sm_90 -G
// build: nvrtc12.4 sm_60
// build: clang19 sm_80
// Grid-stride saxpy, single and double, and an in-place scale.
extern "C" __global__ void saxpy(int n, float a, const float *__restrict__ x, float *__restrict__ y)
{
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		y[i] = a * x[i] + y[i];
}
extern "C" __global__ void daxpy(int n, double a, const double *__restrict__ x, double *__restrict__ y)
{
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		y[i] = a * x[i] + y[i];
}
extern "C" __global__ void scale(int n, float *x, float s)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= n)
		return;
	x[i] *= s;
}
