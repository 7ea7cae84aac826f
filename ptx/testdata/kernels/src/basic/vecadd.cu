// build: nvcc13.0 sm_75
// build: nvcc13.0 sm_90
// build: nvcc13.0 sm_100
// build: nvrtc11.8 sm_35
// build: nvrtc11.8 sm_52
// build: nvrtc12.4 sm_50
// build: nvrtc12.4 sm_70 -G
// build: nvrtc12.9 sm_90 -lineinfo
// build: clang19 sm_70
// build: clang19 sm_90
// build: clang14 sm_35
// build: nvrtc13.5 sm_90
// build: nvrtc13.5 sm_120
// Element-wise sum: the smallest kernel with a bounds check.
extern "C" __global__ void vecadd(const float *a, const float *b, float *c, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		c[i] = a[i] + b[i];
}
