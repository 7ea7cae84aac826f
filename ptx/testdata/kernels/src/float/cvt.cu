// build: nvcc13.0 sm_80
// build: nvrtc12.4 sm_50
// build: clang19 sm_70
// Conversions between every pair of basic types, C rules and intrinsics.
template <class A, class B> __device__ void put(const A *a, B *b) { b[threadIdx.x] = (B)a[threadIdx.x]; }
#define CVT(an, A, bn, B) extern "C" __global__ void cvt_##an##_##bn(const A *a, B *b) { put(a, b); }
CVT(s8, signed char, s32, int) CVT(u8, unsigned char, f32, float) CVT(s16, short, s64, long long) CVT(u16, unsigned short, u32, unsigned)
CVT(s32, int, f32, float) CVT(u32, unsigned, f64, double) CVT(s64, long long, f32, float) CVT(u64, unsigned long long, f64, double)
CVT(f32, float, s32, int) CVT(f32, float, u64, unsigned long long) CVT(f64, double, s32, int) CVT(f64, double, f32, float)
CVT(f32, float, f64, double) CVT(s64, long long, s8, signed char) CVT(f32, float, u8, unsigned char) CVT(u32, unsigned, s16, short)
