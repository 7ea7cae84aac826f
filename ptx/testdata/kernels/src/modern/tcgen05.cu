// build: nvcc13.0 sm_100a
// build: nvrtc13.5 sm_103a
// Blackwell: tensor memory allocation, a product, a load, deallocation.
extern "C" __global__ void tcgen05(unsigned long long da, unsigned long long db, unsigned idesc, float *out)
{
	__shared__ unsigned base;
	__shared__ unsigned long long bar;
	unsigned a = (unsigned)__cvta_generic_to_shared(&base), b = (unsigned)__cvta_generic_to_shared(&bar);
	if (threadIdx.x < 32) {
		asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 64;" ::"r"(a) : "memory");
		asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
	}
	if (threadIdx.x == 0)
		asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(b) : "memory");
	__syncthreads();
	unsigned t = base;
	if (threadIdx.x == 0) {
		asm volatile("{ .reg .pred p; setp.ne.u32 p, 0, 1; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }" ::"r"(t), "l"(da), "l"(db), "r"(idesc) : "memory");
		asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(b) : "memory");
	}
	unsigned r0, r1, r2, r3;
	asm volatile("tcgen05.ld.sync.aligned.32x32b.x4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(t));
	asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
	out[threadIdx.x] = __uint_as_float(r0 ^ r1 ^ r2 ^ r3);
	__syncthreads();
	if (threadIdx.x < 32)
		asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 64;" ::"r"(t));
}
