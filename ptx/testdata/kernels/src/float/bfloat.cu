// build: nvcc13.0 sm_90
// build: nvcc13.0 sm_80
// bfloat16, scalar and packed.
#include <cuda_bf16.h>
extern "C" __global__ void bf16_ops(const __nv_bfloat16 *a, const __nv_bfloat16 *b, __nv_bfloat16 *o)
{
	int i = threadIdx.x;
	__nv_bfloat16 x = a[i], y = b[i], *p = o + 6 * i;
	p[0] = x + y;
	p[1] = __hfma(x, y, y);
	p[2] = __hmax(x, y);
	p[3] = __hmin_nan(x, y);
	p[4] = __float2bfloat16(__bfloat162float(x) / 3);
	p[5] = __int2bfloat16_rn(i);
}
extern "C" __global__ void bf162_ops(const __nv_bfloat162 *a, __nv_bfloat162 *o)
{
	__nv_bfloat162 x = a[threadIdx.x];
	o[threadIdx.x] = __hfma2(x, x, __hneg2(x));
}
