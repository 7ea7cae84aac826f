__device__ int shared = 77;
__device__ int other(int x) { return x * 10; }
