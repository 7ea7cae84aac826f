// build: nvcc13.0 sm_80
// build: nvcc13.0 sm_90
// build: nvrtc12.4 sm_70 -G
// Bitonic sort of one block in shared memory.
extern "C" __global__ void bitonic(unsigned *data)
{
	__shared__ unsigned s[512];
	for (int i = threadIdx.x; i < 512; i += 256)
		s[i] = data[blockIdx.x * 512 + i];
	__syncthreads();
	for (unsigned k = 2; k <= 512; k <<= 1)
		for (unsigned j = k >> 1; j; j >>= 1) {
			unsigned i = 2 * threadIdx.x - (threadIdx.x & (j - 1));
			unsigned a = s[i], b = s[i + j];
			if ((a > b) == ((i & k) == 0)) {
				s[i] = b;
				s[i + j] = a;
			}
			__syncthreads();
		}
	for (int i = threadIdx.x; i < 512; i += 256)
		data[blockIdx.x * 512 + i] = s[i];
}
