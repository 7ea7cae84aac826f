// build: nvcc13.0 sm_90
// build: nvcc13.0 sm_100
// build: nvrtc11.8 sm_60
// build: nvrtc12.4 sm_70
// build: nvrtc13.5 sm_90
// Every atomic function of CUDA C, device, block and system scope, results used and unused.
extern "C" __global__ void atomics32(unsigned *u, int *s, float *f, unsigned *old)
{
	unsigned i = threadIdx.x;
	old[0] = atomicAdd(&u[0], i);
	old[1] = atomicSub(&u[1], i);
	old[2] = atomicExch(&u[2], i);
	old[3] = atomicMin(&u[3], i);
	old[4] = atomicMax(&u[4], i);
	old[5] = atomicInc(&u[5], 17);
	old[6] = atomicDec(&u[6], 17);
	old[7] = atomicCAS(&u[7], 5, i);
	old[8] = atomicAnd(&u[8], i);
	old[9] = atomicOr(&u[9], i);
	old[10] = atomicXor(&u[10], i);
	atomicAdd(&s[0], -1);
	atomicMin(&s[1], -(int)i);
	atomicMax(&s[2], (int)i);
	atomicAdd(&f[0], 1.5f);
	f[1] = atomicExch(&f[2], 2.0f);
	atomicAdd_block(&u[11], 1);
	atomicAdd_system(&u[12], 1);
	atomicCAS_block(&u[13], 0, i);
	atomicMax_system(&u[14], i);
}
extern "C" __global__ void atomics64(unsigned long long *u, long long *s, double *d)
{
	unsigned long long i = threadIdx.x;
	u[10] = atomicAdd(&u[0], i);
	u[11] = atomicExch(&u[1], i);
	u[12] = atomicCAS(&u[2], 3ull, i);
	atomicMin(&u[3], i);
	atomicMax(&u[4], i);
	atomicAnd(&u[5], i);
	atomicOr(&u[6], i);
	atomicXor(&u[7], i);
	atomicMin(&s[0], -(long long)i);
	atomicMax(&s[1], (long long)i);
	atomicAdd(&d[0], 0.25);
	atomicAdd_block(&d[1], 0.25);
}
extern "C" __global__ void atomics_shared(unsigned *out)
{
	__shared__ unsigned n;
	__shared__ unsigned long long m;
	if (threadIdx.x == 0) {
		n = 0;
		m = 0;
	}
	__syncthreads();
	atomicAdd(&n, threadIdx.x);
	atomicMax(&m, (unsigned long long)threadIdx.x << 33);
	unsigned k;
	do
		k = n;
	while (atomicCAS(&n, k, k * 2 + 1) != k);
	__syncthreads();
	out[threadIdx.x] = n ^ (unsigned)(m >> 32);
}
