// build: nvcc13.0 sm_80
// build: nvrtc12.4 sm_60
// 128-bit arithmetic by the compiler and 256-bit addition by inline assembly carry chains.
typedef unsigned long long u64;
extern "C" __global__ void mul128(const u64 *a, const u64 *b, u64 *out)
{
	int i = threadIdx.x;
	u64 lo = a[i] * b[i], hi = __umul64hi(a[i], b[i]);
	out[4 * i] = lo;
	out[4 * i + 1] = hi;
	out[4 * i + 2] = (u64)__mul64hi((long long)a[i], (long long)b[i]);
	out[4 * i + 3] = b[i] ? a[i] / b[i] ^ a[i] % b[i] : 7;
}
extern "C" __global__ void add256(const u64 *a, const u64 *b, u64 *out)
{
	const u64 *x = a + 4 * threadIdx.x, *y = b + 4 * threadIdx.x;
	u64 *z = out + 4 * threadIdx.x;
	asm("add.cc.u64 %0, %4, %8;\n\taddc.cc.u64 %1, %5, %9;\n\taddc.cc.u64 %2, %6, %10;\n\taddc.u64 %3, %7, %11;"
		: "=l"(z[0]), "=l"(z[1]), "=l"(z[2]), "=l"(z[3])
		: "l"(x[0]), "l"(x[1]), "l"(x[2]), "l"(x[3]), "l"(y[0]), "l"(y[1]), "l"(y[2]), "l"(y[3]));
}
extern "C" __global__ void sub192(const unsigned *a, const unsigned *b, unsigned *out)
{
	const unsigned *x = a + 3 * threadIdx.x, *y = b + 3 * threadIdx.x;
	unsigned *z = out + 3 * threadIdx.x;
	asm("sub.cc.u32 %0, %3, %6;\n\tsubc.cc.u32 %1, %4, %7;\n\tsubc.u32 %2, %5, %8;"
		: "=r"(z[0]), "=r"(z[1]), "=r"(z[2]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(y[0]), "r"(y[1]), "r"(y[2]));
}
