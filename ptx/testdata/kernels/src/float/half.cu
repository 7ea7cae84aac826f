// build: nvcc13.0 sm_90
// build: nvrtc12.4 sm_70
// build: nvrtc12.4 sm_53
// build: nvrtc13.5 sm_110
// Half precision: scalar, packed, comparisons, conversions, transcendental.
#include <cuda_fp16.h>
extern "C" __global__ void half_ops(const __half *a, const __half *b, __half *o)
{
	int i = threadIdx.x;
	__half x = a[i], y = b[i];
	__half *p = o + 10 * i;
	p[0] = x + y;
	p[1] = x * y;
	p[2] = x / y;
	p[3] = __hfma(x, y, x);
	p[4] = __hlt(x, y) ? x : y;
	p[5] = hsqrt(x);
	p[6] = hexp2(y);
	p[7] = __float2half(__half2float(x) * 3);
	p[8] = __int2half_rn(__half2int_rz(y));
	p[9] = __hneg(__habs(x));
}
extern "C" __global__ void half2_ops(const __half2 *a, const __half2 *b, __half2 *o)
{
	int i = threadIdx.x;
	__half2 x = a[i], y = b[i];
	o[6 * i] = __hadd2(x, y);
	o[6 * i + 1] = __hmul2(x, y);
	o[6 * i + 2] = __hfma2(x, y, y);
	o[6 * i + 3] = __hgt2(x, y);
	o[6 * i + 4] = __lowhigh2highlow(x);
	o[6 * i + 5] = __hsub2_sat(x, y);
}
