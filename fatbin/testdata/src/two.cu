extern __device__ float twice(float);
extern "C" __global__ void use(float *x, int n) { if (n) x[threadIdx.x] = twice(x[threadIdx.x]); }
