// build: nvcc13.0 sm_75
// build: nvrtc12.4 sm_61
// Four-way byte and two-way halfword dot products.
extern "C" __global__ void dp4a(const int *a, const int *b, int *out)
{
	int i = threadIdx.x;
	out[4 * i + 0] = __dp4a(a[i], b[i], i);
	out[4 * i + 1] = (int)__dp4a((unsigned)a[i], (unsigned)b[i], 1u);
	out[4 * i + 2] = __dp2a_lo(a[i], b[i], -5);
	out[4 * i + 3] = (int)__dp2a_hi((unsigned)a[i], (unsigned)b[i], 9u);
}
