// A kernel for sm_90a: a matrix product by wgmma of matrices that are all ones, so
// that every element of the result is the depth, 16, whatever the layouts are.
#include <cstdio>
#include <cstdlib>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

__device__ unsigned long long descriptor(const void *p)
{
	unsigned long long a = (unsigned long long)__cvta_generic_to_shared(p);
	return (a & 0x3ffff) >> 4 | (128ull >> 4) << 16 | (256ull >> 4) << 32;
}

__global__ void __launch_bounds__(128) product(float *out)
{
	__shared__ alignas(128) __half a[64 * 16], b[16 * 8];
	for (int i = threadIdx.x; i < 64 * 16; i += blockDim.x)
		a[i] = __float2half(1.0f);
	for (int i = threadIdx.x; i < 16 * 8; i += blockDim.x)
		b[i] = __float2half(1.0f);
	asm volatile("fence.proxy.async;" ::: "memory");
	__syncthreads();
	float d[4] = {0, 0, 0, 0};
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
	asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
		     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
		     : "l"(descriptor(a)), "l"(descriptor(b)));
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
	asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
	for (int i = 0; i < 4; i++)
		out[(blockIdx.x * blockDim.x + threadIdx.x) * 4 + i] = d[i];
}

int main()
{
	const int blocks = 6, n = blocks * 128 * 4;
	static float h[n];
	float *d;
	cudaMalloc(&d, sizeof h);
	product<<<blocks, 128>>>(d);
	cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost);
	if (cudaGetLastError() != cudaSuccess) {
		printf("failed\n");
		return 1;
	}
	for (int i = 0; i < n; i++)
		if (h[i] != 16) {
			printf("element %d is %g\n", i, h[i]);
			return 1;
		}
	printf("wgmma launched %d\nPASSED\n", blocks * 128);
	return 0;
}
