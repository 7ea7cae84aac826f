// build: nvcc13.0 sm_90a
// build: nvrtc12.4 sm_90a
// build: nvrtc13.5 sm_90a
// Hopper: a warp-group product, register redistribution, bulk tensor copies.
extern "C" __global__ void __launch_bounds__(256) wgmma(float *out, unsigned long long da, unsigned long long db, const void *map)
{
	__shared__ __align__(128) unsigned char s[16384];
	__shared__ unsigned long long bar;
	unsigned b = (unsigned)__cvta_generic_to_shared(&bar), d = (unsigned)__cvta_generic_to_shared(s);
	if (threadIdx.x == 0) {
		asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(b) : "memory");
		asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
		asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 4096;" ::"r"(b) : "memory");
		asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
			::"r"(d), "l"(map), "r"(0), "r"(0), "r"(b) : "memory");
	}
	__syncthreads();
	asm volatile("{\n\t.reg .pred P1;\n\tLAB_WAIT:\n\tmbarrier.try_wait.parity.shared::cta.b64 P1, [%0], 0;\n\t@P1 bra.uni DONE;\n\tbra.uni LAB_WAIT;\n\tDONE:\n\t}" ::"r"(b) : "memory");
	if (threadIdx.x >= 128) {
		asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
		return;
	}
	asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
	float c[4] = {0, 0, 0, 0};
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
	asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %6, 0;\n\twgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, p, 1, 1, 0, 0;\n\t}"
		: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "l"(da), "l"(db), "r"(1));
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
	asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
	for (int i = 0; i < 4; i++)
		out[threadIdx.x * 4 + i] = c[i];
}
