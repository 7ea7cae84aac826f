// build: nvcc13.0 sm_90
// build: clang19 sm_70
// Mangled names: templates, namespaces, lambdas, overloads.
namespace outer { namespace inner {
template <class T, int N> struct Box { T v[N]; __device__ T sum() const { T s = 0; for (int i = 0; i < N; i++) s += v[i]; return s; } };
template <class T, int N> __global__ void boxed(Box<T, N> b, T *out) { out[threadIdx.x] = b.sum() + (T)threadIdx.x; }
template __global__ void boxed<int, 3>(Box<int, 3>, int *);
template __global__ void boxed<double, 5>(Box<double, 5>, double *);
}}
__global__ void over(int *p) { *p = 1; }
__global__ void over(float *p) { *p = 1; }
template <class F> __device__ void each(F f) { f(threadIdx.x); }
extern "C" __global__ void lambda(int *p, int k) { each([=](int i) { p[i] = i * k; }); }
