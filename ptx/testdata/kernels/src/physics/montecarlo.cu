// build: nvcc13.0 sm_75
// Pi by a 64-bit linear congruential generator; warp-aggregated result.
extern "C" __global__ void montecarlo(unsigned long long seed, int rounds, unsigned *hits)
{
	unsigned long long s = seed + blockIdx.x * blockDim.x + threadIdx.x;
	unsigned n = 0;
	for (int i = 0; i < rounds; i++) {
		s = s * 6364136223846793005ull + 1442695040888963407ull;
		unsigned x = s >> 33;
		s = s * 6364136223846793005ull + 1442695040888963407ull;
		unsigned y = s >> 33;
		unsigned long long d = (unsigned long long)x * x + (unsigned long long)y * y;
		n += d < 1ull << 62;
	}
	for (int d = 16; d; d >>= 1)
		n += __shfl_down_sync(~0u, n, d);
	if ((threadIdx.x & 31) == 0)
		atomicAdd(hits, n);
}
