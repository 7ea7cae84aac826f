// build: nvcc13.0 sm_90
// build: nvrtc12.4 sm_60
// Generic pointers chosen at run time between spaces; isspacep; address conversion.
__device__ int g[32];
__constant__ int c[32] = {5, 6, 7};
__device__ __noinline__ int load(const int *p, int i) { return p[i]; }
extern "C" __global__ void generic(int *out, int which)
{
	__shared__ int s[32];
	int l[4] = {which, which + 1, which + 2, which + 3};
	int t = threadIdx.x;
	s[t] = t * t;
	g[t] = t + 1;
	__syncthreads();
	const int *p = which == 0 ? s : which == 1 ? g : which == 2 ? (const int *)l : (const int *)out;
	int kind = __isShared(p) * 1 + __isGlobal(p) * 2 + __isLocal(p) * 4 + __isConstant(c) * 8;
	int r = load(p, which == 2 ? t & 3 : t);
	__syncthreads();
	out[32 + 2 * t] = kind;
	out[32 + 2 * t + 1] = r + c[t & 1];
}
