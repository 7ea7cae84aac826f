// build: nvcc13.0 sm_90
// build: nvrtc12.4 sm_70
// Special registers that differ from run to run.
extern "C" __global__ void timers(unsigned long long *o)
{
	unsigned a, b, c, d;
	unsigned long long g;
	asm volatile("mov.u32 %0, %%smid;" : "=r"(a));
	asm volatile("mov.u32 %0, %%warpid;" : "=r"(b));
	asm volatile("mov.u32 %0, %%nsmid;" : "=r"(c));
	asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(d));
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(g));
	o[0] = clock64(); o[1] = clock(); o[2] = a; o[3] = b; o[4] = c; o[5] = d; o[6] = g;
	__nanosleep(20);
}
