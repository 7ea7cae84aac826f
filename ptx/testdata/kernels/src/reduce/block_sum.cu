// build: nvcc13.0 sm_80
// build: nvcc13.0 sm_90
// build: nvrtc12.4 sm_60
// build: nvrtc12.9 sm_75 -G
// build: clang19 sm_70
// Sum of a block by a shared-memory tree, then one atomic per block.
extern "C" __global__ void block_sum(const int *in, int *out, int n)
{
	__shared__ int part[256];
	int t = threadIdx.x, sum = 0;
	for (int i = blockIdx.x * 256 + t; i < n; i += gridDim.x * 256)
		sum += in[i];
	part[t] = sum;
	__syncthreads();
#pragma unroll 1
	for (int s = 128; s > 0; s >>= 1) {
		if (t < s)
			part[t] += part[t + s];
		__syncthreads();
	}
	if (t == 0)
		atomicAdd(out, part[0]);
}
