// build: nvcc13.0 sm_75
// build: nvrtc12.4 sm_60 -ftz=true -fmad=false
// Compensated sums: contraction and flush options change this code.
extern "C" __global__ void kahan(const float *a, float *out, int n)
{
	float s = 0, c = 0;
	for (int i = 0; i < n; i++) {
		float y = a[i * blockDim.x + threadIdx.x] - c, t = s + y;
		c = (t - s) - y;
		s = t;
	}
	out[threadIdx.x] = s * 1.0000001f + c;
}
