// build: nvcc13.0 sm_80
// build: nvrtc12.4 sm_60
// build: nvrtc13.5 sm_100 -G
// Recursion: Fibonacci, Ackermann, mutual recursion.
__device__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
__device__ int ack(int m, int n) { return m == 0 ? n + 1 : n == 0 ? ack(m - 1, 1) : ack(m - 1, ack(m, n - 1)); }
__device__ bool odd(unsigned n);
__device__ __noinline__ bool even(unsigned n) { return n == 0 ? true : odd(n - 1); }
__device__ __noinline__ bool odd(unsigned n) { return n == 0 ? false : even(n - 1); }
extern "C" __global__ void recursion(int *out)
{
	int t = threadIdx.x;
	out[3 * t] = fib(t & 15);
	out[3 * t + 1] = ack(t & 1, t & 7);
	out[3 * t + 2] = even(t);
}
