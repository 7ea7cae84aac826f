// build: nvcc13.0 sm_80
// build: nvcc13.0 sm_100
// Cache operators: ldg, ldcg, ldcs, ldlu, ldcv, stwb, stcg, stcs, stwt; prefetch and L2 hints in assembly.
extern "C" __global__ void cache_hints(const int *a, int *o)
{
	int i = threadIdx.x, r;
	o[0 + i] = __ldg(a + i);
	__stcg(o + 32 + i, __ldcg(a + i));
	__stcs(o + 64 + i, __ldcs(a + i));
	__stwt(o + 96 + i, __ldlu((int *)a + i));
	__stwb(o + 128 + i, __ldcv(a + i));
	asm volatile("prefetch.global.L2 [%0];" ::"l"(a + i));
	asm volatile("ld.global.L1::no_allocate.L2::128B.b32 %0, [%1];" : "=r"(r) : "l"(a + i));
	o[160 + i] = r;
	asm volatile("{ .reg .b64 p; createpolicy.fractional.L2::evict_first.b64 p, 0.5; ld.global.L2::cache_hint.b32 %0, [%1], p; }" : "=r"(r) : "l"(a + i));
	o[192 + i] = r;
}
