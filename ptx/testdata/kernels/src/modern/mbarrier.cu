// build: nvcc13.0 sm_80
// build: nvcc13.0 sm_90
// A shared-memory barrier object used for a producer and a consumer half.
extern "C" __global__ void mbarrier(const int *in, int *out)
{
	__shared__ unsigned long long bar;
	__shared__ int s[128];
	unsigned b = (unsigned)__cvta_generic_to_shared(&bar);
	int t = threadIdx.x;
	if (t == 0)
		asm volatile("mbarrier.init.shared.b64 [%0], 128;" ::"r"(b) : "memory");
	__syncthreads();
	for (int k = 0; k < 3; k++) {
		unsigned long long st;
		s[t] = in[k * 128 + t];
		asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(st) : "r"(b) : "memory");
		unsigned ok = 0;
		while (!ok)
			asm volatile("{ .reg .pred p; mbarrier.test_wait.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(ok) : "r"(b), "l"(st) : "memory");
		out[k * 128 + t] = s[127 - t] + k;
		__syncthreads();
	}
	if (t == 0)
		asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(b) : "memory");
}
