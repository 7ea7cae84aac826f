// Kernels that are woven in tests and run on a GPU. All have the same parameters; the
// last is the memory that probes count in, which the kernels themselves leave alone.
// With TRUTH they count their accesses to global memory and sum the addresses, as
// probes at these do; with CALLS only the kernel with a call is there. The accesses are volatile, so that none is left out or joined.
#include <stdint.h>

typedef unsigned long long u64;

#ifdef TRUTH
#define SEEN(p) (atomicAdd(&counters[2], 1ull), atomicAdd(&counters[3], (u64)(p)))
#else
#define SEEN(p) ((void)0)
#endif
#define GET(a, i) (SEEN(&(a)[i]), *(const volatile decltype((a)[0] + 0) *)&(a)[i])
#define PUT(a, i, v) (SEEN(&(a)[i]), *(volatile float *)&(a)[i] = (v))
#define PARAMS const float *x, const int *index, float *y, int n, u64 *counters

#ifndef CALLS
extern "C" __global__ void vadd(PARAMS) {
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n) PUT(y, i, GET(x, i) + GET(x, i + 1));
}

// Lanes of a warp leave at different places, after loops of different length.
extern "C" __global__ void diverge(PARAMS) {
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= n) return;
	int k = GET(index, i);
	float sum = 0;
	for (int j = 0; j < (k & 15); j++) {
		sum += GET(x, (k + j) % n);
		if (sum > 9.0f) {
			PUT(y, i, sum);
			return;
		}
		if ((k + j) % 7 == 3) continue;
		sum *= 0.75f;
	}
	if (k & 64) {
		PUT(y, i, -sum);
		return;
	}
	PUT(y, i, sum + 1);
}

// Shared memory, barriers, and all threads but one leave before the end.
extern "C" __global__ void reduce(PARAMS) {
	__shared__ float tile[256];
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	tile[threadIdx.x] = i < n ? GET(x, i) : 0;
	__syncthreads();
	for (int s = blockDim.x / 2; s > 0; s /= 2) {
		if (threadIdx.x < s) tile[threadIdx.x] += tile[threadIdx.x + s];
		__syncthreads();
	}
	if (threadIdx.x > 0) return;
	PUT(y, blockIdx.x, tile[0]);
}

// Addresses from memory, with offsets before and behind, under conditions.
extern "C" __global__ void gather(PARAMS) {
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= n) return;
	float sum = 0;
	int at = GET(index, i) % (n - 8) + 4;
#pragma unroll 4
	for (int j = 0; j < 8; j++) {
		if (at & (1 << j)) sum += GET(x, at - 4) * GET(x, at + 3);
		at = (at * 5 + j) % (n - 8) + 4;
	}
	PUT(y, i, sum);
}

// Many registers in use at once, double precision, shuffles and votes.
extern "C" __global__ void dense(PARAMS) {
#else
// The same with a division, which is a function of its own in the same section.
extern "C" __global__ void divide(PARAMS) {
#endif
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	double a[12];
	for (int j = 0; j < 12; j++) a[j] = GET(x, (i * 3 + j) % n);
	for (int r = 0; r < 4; r++) {
		for (int j = 0; j < 12; j++) a[j] = a[j] * a[(j + 5) % 12] + 0.5 * a[(j + 1) % 12];
		float f = __shfl_xor_sync(0xffffffff, (float)a[r], 1 << r);
#ifdef CALLS
		if (__ballot_sync(0xffffffff, f > 1.0f) & 1) a[r + 1] += f / (1.0 + a[r] * a[r]);
#else
		if (__ballot_sync(0xffffffff, f > 1.0f) & 1) a[r + 1] += f * a[r];
#endif
	}
	double sum = 0;
	for (int j = 0; j < 12; j++) sum += a[j];
	if (i < n) PUT(y, i, (float)sum);
}
