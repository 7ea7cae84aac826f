// build: nvcc13.0 sm_80
// build: nvrtc11.8 sm_35
// Directed rounding intrinsics, single and double.
extern "C" __global__ void rounding32(const float *a, const float *b, float *o)
{
	int i = threadIdx.x;
	float x = a[i], y = b[i], *p = o + 16 * i;
	p[0] = __fadd_rn(x, y); p[1] = __fadd_rz(x, y); p[2] = __fadd_ru(x, y); p[3] = __fadd_rd(x, y);
	p[4] = __fmul_rz(x, y); p[5] = __fmul_ru(x, y); p[6] = __fmaf_rd(x, y, x); p[7] = __fmaf_rz(x, y, y);
	p[8] = __fdiv_rn(x, y); p[9] = __fdiv_ru(x, y); p[10] = __frcp_rz(x); p[11] = __frcp_rd(y);
	p[12] = __fsqrt_rn(x); p[13] = __fsqrt_ru(x); p[14] = __saturatef(x); p[15] = fminf(x, y);
}
extern "C" __global__ void rounding64(const double *a, const double *b, double *o)
{
	int i = threadIdx.x;
	double x = a[i], y = b[i], *p = o + 8 * i;
	p[0] = __dadd_ru(x, y); p[1] = __dmul_rd(x, y); p[2] = __fma_rz(x, y, x); p[3] = __ddiv_rn(x, y);
	p[4] = __drcp_ru(x); p[5] = __dsqrt_rn(x); p[6] = fmax(x, y); p[7] = copysign(x, y);
}
