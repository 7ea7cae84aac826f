// build: nvcc13.0 sm_90
// build: nvcc13.0 sm_75
// build: nvrtc12.4 sm_60
// build: clang19 sm_70
// Byte histogram: shared atomics, then global ones.
extern "C" __global__ void histogram(const unsigned char *in, unsigned *out, int n)
{
	__shared__ unsigned h[256];
	h[threadIdx.x] = 0;
	__syncthreads();
	for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256)
		atomicAdd(&h[in[i]], 1);
	__syncthreads();
	if (h[threadIdx.x])
		atomicAdd(&out[threadIdx.x], h[threadIdx.x]);
}
