// Kernels whose properties the tests of package fatbin know.
struct Pair { float a; double b; char c; };

__constant__ int table[16];
__device__ int counter;

// A kernel with four parameters, the last one four bytes long.
extern "C" __global__ void add(const float *x, const float *y, float *z, int n) {
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n) z[i] = x[i] + y[i];
}

namespace shapes {
// A template with a structure by value, static shared memory and a bound.
template <typename T, int N>
__global__ void __launch_bounds__(128) reduce(T *out, const T *in, Pair p) {
	__shared__ T tile[N];
	tile[threadIdx.x % N] = in[threadIdx.x] + T(p.a) + T(p.b) + T(p.c);
	__syncthreads();
	if (threadIdx.x == 0) {
		T sum = 0;
		for (int i = 0; i < N; i++) sum += tile[i] * T(table[i % 16]);
		*out = sum;
		atomicAdd(&counter, 1);
	}
}
template __global__ void reduce<float, 64>(float *, const float *, Pair);
template __global__ void reduce<double, 32>(double *, const double *, Pair);
}  // namespace shapes

// A kernel with a stack: the array is indexed by what only run time knows.
__global__ void stack(int *out, int k) {
	volatile int local[40];
	for (int i = 0; i < 40; i++) local[(i * k) % 40] = i;
	out[threadIdx.x] = local[(k * 7) % 40];
}

// A kernel without parameters.
__global__ void nothing() {}

#ifdef MAIN
#include <cstdio>
int main() { nothing<<<1, 1>>>(); std::puts(cudaGetErrorString(cudaDeviceSynchronize())); }
#endif
