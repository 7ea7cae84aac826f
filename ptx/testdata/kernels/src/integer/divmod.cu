// build: nvcc13.0 sm_80
// build: nvrtc12.4 sm_60 -G
// build: clang19 sm_60
// Division and remainder, all widths, by variables and by constants.
extern "C" __global__ void divmod(const int *a, const int *b, const long long *c, const long long *d, long long *out)
{
	int i = threadIdx.x;
	long long *o = out + 10 * i;
	int x = a[i], y = b[i] | 1;
	long long p = c[i], q = d[i] | 1;
	o[0] = x / y;
	o[1] = x % y;
	o[2] = (unsigned)x / (unsigned)y;
	o[3] = (unsigned)x % (unsigned)y;
	o[4] = p / q;
	o[5] = p % q;
	o[6] = (long long)((unsigned long long)p / (unsigned long long)q);
	o[7] = x / 7 + x % 10;
	o[8] = p / 1000 + p % 60;
	o[9] = (short)x / (short)y + (char)x % ((char)y | 1);
}
