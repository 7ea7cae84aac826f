// build: nvcc13.0 sm_90
// __int128 products and sums as the compiler expands them.
extern "C" __global__ void int128(const unsigned long long *a, const unsigned long long *b, unsigned long long *out)
{
	int i = threadIdx.x;
	unsigned __int128 p = (unsigned __int128)a[i] * b[i] + a[i];
	__int128 q = (__int128)(long long)a[i] * (long long)b[i] - (__int128)b[i];
	out[4 * i] = (unsigned long long)p;
	out[4 * i + 1] = (unsigned long long)(p >> 64);
	out[4 * i + 2] = (unsigned long long)(q >> 3);
	out[4 * i + 3] = (unsigned long long)((p ^ (unsigned __int128)q) << 5 >> 64);
}
