// build: nvcc13.0 sm_90
// build: nvrtc12.4 sm_60
// Volatile and acquire/release accesses.
extern "C" __global__ void volatiles(volatile int *v, volatile double *d, int *out)
{
	__shared__ volatile int s[32];
	s[threadIdx.x] = v[threadIdx.x];
	v[threadIdx.x] = s[threadIdx.x] + 1;
	d[threadIdx.x] = v[threadIdx.x];
	int r;
#if __CUDA_ARCH__ >= 700
	asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(r) : "l"(out) : "memory");
	asm volatile("st.release.sys.global.b32 [%0], %1;" ::"l"(out), "r"(r + 1) : "memory");
	asm volatile("ld.relaxed.cta.global.b32 %0, [%1];" : "=r"(r) : "l"(out) : "memory");
	asm volatile("fence.acq_rel.gpu;" ::: "memory");
	asm volatile("fence.sc.sys;" ::: "memory");
#endif
}
