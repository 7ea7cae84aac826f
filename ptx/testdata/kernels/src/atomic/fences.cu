// build: nvcc13.0 sm_90
// build: nvrtc12.4 sm_60
// Fences of every scope and a "last block done" pattern.
__device__ unsigned done;
extern "C" __global__ void last_block(const int *in, volatile int *part, int *out)
{
	__shared__ bool last;
	int v = in[blockIdx.x * blockDim.x + threadIdx.x];
	v = __syncthreads_count(v > 0) + __syncthreads_and(v > 0) * 1000 + __syncthreads_or(v > 7) * 2000;
	if (threadIdx.x == 0) {
		part[blockIdx.x] = v;
		__threadfence();
		last = atomicInc(&done, gridDim.x - 1) == gridDim.x - 1;
	}
	__syncthreads();
	__threadfence_block();
	if (last && threadIdx.x == 0) {
		int s = 0;
		for (int i = 0; i < gridDim.x; i++)
			s += part[i];
		*out = s;
		__threadfence_system();
	}
}
