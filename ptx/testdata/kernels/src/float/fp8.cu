// build: nvcc13.0 sm_90
// build: nvcc13.0 sm_100
// 8-bit floats: pair conversions both ways.
#include <cuda_fp8.h>
extern "C" __global__ void fp8(const float2 *in, __nv_fp8x2_storage_t *e4, __nv_fp8x2_storage_t *e5, __half2_raw *back)
{
	int i = threadIdx.x;
	e4[i] = __nv_cvt_float2_to_fp8x2(in[i], __NV_SATFINITE, __NV_E4M3);
	e5[i] = __nv_cvt_float2_to_fp8x2(in[i], __NV_SATFINITE, __NV_E5M2);
	back[i] = __nv_cvt_fp8x2_to_halfraw2(e4[i], __NV_E4M3);
}
