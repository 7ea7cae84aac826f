// build: nvcc13.0 sm_80
// build: nvrtc12.4 sm_70
// build: nvrtc12.9 sm_90 -G
// build: clang19 sm_80
// Inclusive prefix sum of a block: Hillis-Steele in shared memory.
extern "C" __global__ void scan(const int *in, int *out)
{
	__shared__ int s[2][256];
	int t = threadIdx.x, cur = 0;
	s[0][t] = in[blockIdx.x * 256 + t];
	__syncthreads();
	for (int d = 1; d < 256; d <<= 1) {
		s[cur ^ 1][t] = s[cur][t] + (t >= d ? s[cur][t - d] : 0);
		cur ^= 1;
		__syncthreads();
	}
	out[blockIdx.x * 256 + t] = s[cur][t];
}
