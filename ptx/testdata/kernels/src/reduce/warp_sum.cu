// build: nvcc13.0 sm_75
// build: nvcc13.0 sm_90 -lineinfo
// build: nvrtc12.4 sm_80
// Sum, maximum and arg-max of a warp by shuffles; float sum by butterfly.
extern "C" __global__ void warp_sum(const float *in, float *out, int n)
{
	float v = 0;
	for (int i = threadIdx.x; i < n; i += 32)
		v += in[i];
	for (int d = 16; d; d >>= 1)
		v += __shfl_xor_sync(~0u, v, d);
	if (threadIdx.x == 0)
		*out = v;
}
extern "C" __global__ void warp_argmax(const float *in, int *out, int n)
{
	float best = -3.4e38f;
	int at = -1;
	for (int i = threadIdx.x; i < n; i += 32)
		if (in[i] > best) {
			best = in[i];
			at = i;
		}
	for (int d = 16; d; d >>= 1) {
		float v = __shfl_down_sync(~0u, best, d);
		int a = __shfl_down_sync(~0u, at, d);
		if (v > best || (v == best && a < at)) {
			best = v;
			at = a;
		}
	}
	if (threadIdx.x == 0)
		*out = at;
}
