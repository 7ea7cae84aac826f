// build: nvcc13.0 sm_90
// build: nvcc13.0 sm_100a
// build: nvrtc13.5 sm_100a
// Bulk copies, reductions and stores; griddepcontrol; elect; fences of the async proxy.
extern "C" __global__ void tma(const int *in, int *out, const void *map)
{
	__shared__ __align__(128) int s[256];
	__shared__ unsigned long long bar;
	unsigned b = (unsigned)__cvta_generic_to_shared(&bar), d = (unsigned)__cvta_generic_to_shared(s);
	asm volatile("griddepcontrol.wait;" ::: "memory");
	if (threadIdx.x == 0) {
		asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(b) : "memory");
		asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" ::"r"(b) : "memory");
		asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];" ::"r"(d), "l"(in), "r"(b) : "memory");
		asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
	}
	__syncthreads();
	unsigned ok = 0;
	while (!ok)
		asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0, 1000; selp.u32 %0, 1, 0, p; }" : "=r"(ok) : "r"(b) : "memory");
	s[threadIdx.x] *= 2;
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
	__syncthreads();
	unsigned leader;
	asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(leader));
	if (threadIdx.x < 32 && leader) {
		asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 512;" ::"l"(out), "r"(d) : "memory");
		asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], 512;" ::"l"(out + 128), "r"(d + 512) : "memory");
		asm volatile("cp.async.bulk.commit_group;" ::: "memory");
		asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
	}
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
