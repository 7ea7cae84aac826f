// build: nvcc13.0 sm_80
// build: clang19 sm_70
// build: nvrtc12.4 sm_80 -G
// Structures by value in kernel and function parameters and as results.
struct Vec { double x, y, z; };
struct Mix { char c; short s; int i; float f; Vec v; unsigned char tail[5]; };
__device__ __noinline__ Vec cross(Vec a, Vec b) { return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x}; }
__device__ __noinline__ Mix bump(Mix m, int k)
{
	m.c += k;
	m.s -= k;
	m.i *= k;
	m.v = cross(m.v, {1, 2, 3});
	m.tail[k % 5] = (unsigned char)k;
	return m;
}
extern "C" __global__ void structs(Mix m, double *out)
{
	Mix r = bump(m, threadIdx.x);
	double *o = out + 8 * threadIdx.x;
	o[0] = r.c; o[1] = r.s; o[2] = r.i; o[3] = r.f; o[4] = r.v.x; o[5] = r.v.y; o[6] = r.v.z; o[7] = r.tail[2];
}
