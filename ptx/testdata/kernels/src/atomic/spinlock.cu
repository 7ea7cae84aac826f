// build: nvcc13.0 sm_80
// build: nvrtc12.4 sm_52
// A lock taken by one lane of a warp at a time; needs fences and forward progress.
__device__ int lock;
extern "C" __global__ void spinlock(volatile int *sum)
{
	for (int i = 0; i < 32; i++)
		if ((threadIdx.x & 31) == i) {
			while (atomicCAS(&lock, 0, 1))
				;
			__threadfence();
			sum[0] = sum[0] + 1;
			__threadfence();
			atomicExch(&lock, 0);
		}
}
