// build: nvcc13.0 sm_90
// build: nvcc13.0 sm_90 -use_fast_math
// Option prices: expf, logf, sqrtf, division, in the precise and the fast library.
__device__ float cnd(float d)
{
	float k = 1.0f / (1.0f + 0.2316419f * fabsf(d));
	float c = 0.39894228f * expf(-0.5f * d * d) *
		(k * (0.31938153f + k * (-0.356563782f + k * (1.781477937f + k * (-1.821255978f + k * 1.330274429f)))));
	return d > 0 ? 1.0f - c : c;
}
extern "C" __global__ void blackscholes(const float *s, const float *x, const float *t, float *call, float *put, float r, float v, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= n)
		return;
	float q = sqrtf(t[i]);
	float d1 = (logf(s[i] / x[i]) + (r + 0.5f * v * v) * t[i]) / (v * q), d2 = d1 - v * q;
	float a = cnd(d1), b = cnd(d2), e = expf(-r * t[i]);
	call[i] = s[i] * a - x[i] * e * b;
	put[i] = x[i] * e * (1.0f - b) - s[i] * (1.0f - a);
}
