// build: nvcc13.0 sm_90
// build: nvrtc12.4 sm_60
// Device printf and assert.
extern "C" __device__ void __assertfail(const char *, const char *, unsigned, const char *, size_t);
extern "C" __global__ void hello(int n, float f, const char *s)
{
	if (threadIdx.x < n)
		printf("thread %d of block %u: %f %s %llx %c%%\n", threadIdx.x, blockIdx.x, f, s, (unsigned long long)n << 40, 'x');
	if (n < 0)
		__assertfail("n >= 0", "printf.cu", __LINE__, "hello", 1);
}
