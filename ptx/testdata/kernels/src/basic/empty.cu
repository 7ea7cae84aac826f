// build: nvcc13.0 sm_90
// build: nvrtc11.8 sm_50
// build: clang19 sm_60
// Kernels that do nothing, take nothing, or take much.
extern "C" __global__ void nothing(void) {}
extern "C" __global__ void __launch_bounds__(128, 4) bounded(int *p) { if (p) *p = 1; }
struct Big { int v[64]; };
extern "C" __global__ void bigparam(Big b, int *out) { out[threadIdx.x] = b.v[threadIdx.x & 63]; }
extern "C" __global__ void mixed(char c, short s, int i, long long l, float f, double d, const void *p, double *out)
{
	out[0] = c; out[1] = s; out[2] = i; out[3] = (double)l; out[4] = f; out[5] = d; out[6] = (double)(unsigned long long)p;
}
