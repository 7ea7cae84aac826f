// build: nvcc13.0 sm_90
// Montgomery modular exponentiation.
__device__ unsigned redc(unsigned long long t, unsigned n, unsigned k)
{
	unsigned m = (unsigned)t * k;
	unsigned long long s = t + (unsigned long long)m * n;
	unsigned r = (unsigned)(s >> 32);
	return r >= n || s < t ? r - n : r;
}
extern "C" __global__ void modpow(const unsigned *base, const unsigned *exp, unsigned n, unsigned k, unsigned r2, unsigned *out)
{
	int i = threadIdx.x;
	unsigned x = redc((unsigned long long)base[i] * r2, n, k), a = redc(r2, n, k);
	for (unsigned e = exp[i]; e; e >>= 1) {
		if (e & 1)
			a = redc((unsigned long long)a * x, n, k);
		x = redc((unsigned long long)x * x, n, k);
	}
	out[i] = redc(a, n, k);
}
