// build: nvcc13.0 sm_80
// build: nvcc13.0 sm_80 -use_fast_math
// Library functions (large inlined expansions, slow paths with local arrays).
extern "C" __global__ void libm32(const float *a, float *o)
{
	int i = threadIdx.x;
	float x = a[i], *p = o + 12 * i;
	p[0] = sinf(x); p[1] = cosf(x); p[2] = tanhf(x); p[3] = expf(x); p[4] = logf(x); p[5] = powf(x, 1.5f);
	p[6] = cbrtf(x); p[7] = atan2f(x, 2.f); p[8] = erff(x); p[9] = exp2f(x); p[10] = log2f(x); p[11] = fmodf(x, 3.f);
}
