// build: nvcc13.0 sm_75
// build: clang19 sm_80
// Data-dependent loop lengths.
extern "C" __global__ void collatz(unsigned first, unsigned *steps)
{
	unsigned i = blockIdx.x * blockDim.x + threadIdx.x, n = 0;
	unsigned long long v = first + i;
	while (v > 1) {
		v = v & 1 ? 3 * v + 1 : v >> 1;
		n++;
	}
	steps[i] = n;
}
