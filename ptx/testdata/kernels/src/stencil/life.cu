// build: nvcc13.0 sm_75
// build: nvrtc12.9 sm_100
// Game of life, 64 cells a word, neighbours by bit tricks.
extern "C" __global__ void life(const unsigned long long *in, unsigned long long *out, int h)
{
	int y = blockIdx.x * blockDim.x + threadIdx.x;
	if (y >= h)
		return;
	unsigned long long r[3], s0 = 0, s1 = 0, s2 = 0;
	for (int k = 0; k < 3; k++)
		r[k] = in[(y + k - 1 + h) % h];
	for (int k = 0; k < 9; k++) {
		if (k == 4)
			continue;
		unsigned long long v = r[k / 3];
		if (k % 3 == 0)
			v = v << 1 | v >> 63;
		if (k % 3 == 2)
			v = v >> 1 | v << 63;
		unsigned long long c = s0 & v;
		s0 ^= v;
		s2 |= s1 & c;
		s1 ^= c;
	}
	out[y] = (s1 & ~s2) & (s0 | r[1]);
}
