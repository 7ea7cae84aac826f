// build: nvcc13.0 sm_90
// Conversion intrinsics with a rounding mode; rint, floor, ceil, trunc, reinterpretation.
extern "C" __global__ void cvt_modes(const float *f, const double *d, long long *o)
{
	int i = threadIdx.x;
	long long *p = o + 16 * i;
	p[0] = __float2int_rn(f[i]); p[1] = __float2int_rz(f[i]); p[2] = __float2int_ru(f[i]); p[3] = __float2int_rd(f[i]);
	p[4] = __float2uint_rn(f[i]); p[5] = __float2ll_rd(f[i]); p[6] = (long long)__float2ull_ru(f[i]); p[7] = __double2int_rn(d[i]);
	p[8] = __double2ll_rd(d[i]); p[9] = (long long)__double2ull_rz(d[i]); p[10] = __float_as_int(__double2float_ru(d[i])); p[11] = __double_as_longlong(rint(d[i]));
	p[12] = __float_as_int(floorf(f[i])); p[13] = __float_as_int(ceilf(f[i])); p[14] = __float_as_int(__ll2float_rz((long long)d[i])); p[15] = __double_as_longlong(__hiloint2double(i, __double2loint(d[i])));
}
