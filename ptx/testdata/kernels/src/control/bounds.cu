// build: nvcc13.0 sm_90
// build: nvcc13.0 sm_100
// Launch bounds in every form, register limits, cluster limits, grid constants, no return.
struct Big { int a[16]; };
extern "C" __global__ void __launch_bounds__(256) lb1(int *p) { p[threadIdx.x] = 1; }
extern "C" __global__ void __launch_bounds__(256, 2) lb2(int *p) { p[threadIdx.x] = 2; }
extern "C" __global__ void __launch_bounds__(128, 1, 4) lb3(int *p) { p[threadIdx.x] = 3; }
extern "C" __global__ void __maxnreg__(40) lb4(int *p) { p[threadIdx.x] = 4; }
extern "C" __global__ void __cluster_dims__(4, 2, 1) lb5(int *p) { p[threadIdx.x] = 5; }
extern "C" __global__ void gridconst(const __grid_constant__ Big b, int *p)
{
	const int *q = b.a;
	asm volatile("" : "+l"(q));
	p[threadIdx.x] = q[threadIdx.x & 15];
}
extern "C" __global__ void dies(int *p)
{
	if (*p)
		__trap();
	__brkpt();
	asm volatile("exit;");
}
