// build: nvcc13.0 sm_90
// build: nvcc13.0 sm_90 -rdc=true
// build: nvrtc12.4 sm_60 -rdc=true
// Functions that are not inlined, with many parameter kinds.
__device__ __noinline__ int add3(int a, int b, int c) { return a + b * c; }
__device__ __noinline__ double mix(char a, short b, unsigned char c, float d, double e, const int *p) { return a + b - c * d + e + p[0]; }
__device__ __noinline__ void store(int *p, int v) { *p = v; }
__device__ __noinline__ float4 quad(float x) { return make_float4(x, x * 2, x * 3, x * 4); }
extern "C" __global__ void functions(const int *in, int *out, double *dout)
{
	int t = threadIdx.x, v = in[t];
	store(out + t, add3(v, t, 3));
	float4 q = quad((float)v);
	dout[t] = mix((char)v, (short)(v >> 3), (unsigned char)(v >> 5), q.z, q.w, in + t);
}
