// The part of CUDA C++ that the sources need when clang compiles them without a toolkit: written for this corpus.
#pragma once
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))

typedef __SIZE_TYPE__ size_t;

// Special registers read like members: threadIdx.x calls the getter of a property.
#define NVT_SREG(var, reg)                                                                                           \
	struct var##_t {                                                                                             \
		__declspec(property(get = get_x)) unsigned x;                                                        \
		__declspec(property(get = get_y)) unsigned y;                                                        \
		__declspec(property(get = get_z)) unsigned z;                                                        \
		static __device__ unsigned get_x() { return __nvvm_read_ptx_sreg_##reg##_x(); }                      \
		static __device__ unsigned get_y() { return __nvvm_read_ptx_sreg_##reg##_y(); }                      \
		static __device__ unsigned get_z() { return __nvvm_read_ptx_sreg_##reg##_z(); }                      \
	};                                                                                                           \
	extern const __device__ __attribute__((weak)) var##_t var;
NVT_SREG(threadIdx, tid)
NVT_SREG(blockIdx, ctaid)
NVT_SREG(blockDim, ntid)
NVT_SREG(gridDim, nctaid)
#undef NVT_SREG

static inline __device__ int __popc(unsigned x) { return __builtin_popcount(x); }
static inline __device__ int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline __device__ int atomicAdd(int *p, int v) { return __nvvm_atom_add_gen_i(p, v); }
static inline __device__ unsigned atomicAdd(unsigned *p, unsigned v) { return __nvvm_atom_add_gen_i((int *)p, (int)v); }
static inline __device__ unsigned long long atomicAdd(unsigned long long *p, unsigned long long v)
{
	return __nvvm_atom_add_gen_ll((long long *)p, (long long)v);
}
static inline __device__ void __trap() { __builtin_trap(); }

#define NVT_VEC(name, T, a)                                                                                          \
	struct __align__(2 * a) name##2 { T x, y; };                                                                 \
	struct __align__(4 * a > 16 ? 16 : 4 * a) name##4 { T x, y, z, w; };                                         \
	static inline __device__ name##2 make_##name##2(T x, T y) { return {x, y}; }                                 \
	static inline __device__ name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
NVT_VEC(char, signed char, 1)
NVT_VEC(uchar, unsigned char, 1)
NVT_VEC(short, short, 2)
NVT_VEC(int, int, 4)
NVT_VEC(float, float, 4)
NVT_VEC(double, double, 8)
#undef NVT_VEC
