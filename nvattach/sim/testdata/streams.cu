#include "test.h"

__global__ void scale(int *v, int n, int by)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		v[i] = v[i] * by + i;
}

// Waits until the host says so: needs launches that do not block.
__global__ void waitFor(volatile int *flag, int *out)
{
	while (*flag == 0)
		;
	*out = *flag + 1;
}

int main()
{
	const int n = 5000, streams = 4;
	int *h, *d;
	cudaStream_t s[streams], other;
	cudaEvent_t ready, start, stop;
	CHECK(cudaMallocHost(&h, streams * n * sizeof(int)));
	CHECK(cudaMalloc(&d, streams * n * sizeof(int)));
	CHECK(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
	CHECK(cudaEventCreate(&start));
	CHECK(cudaEventCreate(&stop));
	for (int k = 0; k < streams; k++) {
		CHECK(cudaStreamCreate(&s[k]));
		for (int i = 0; i < n; i++)
			h[k * n + i] = k + i;
	}
	CHECK(cudaEventRecord(start, s[0]));
	for (int k = 0; k < streams; k++) {
		int *hk = h + k * n, *dk = d + k * n;
		CHECK(cudaMemcpyAsync(dk, hk, n * sizeof(int), cudaMemcpyHostToDevice, s[k]));
		scale<<<(n + 255) / 256, 256, 0, s[k]>>>(dk, n, 3);
		CHECK(cudaMemcpyAsync(hk, dk, n * sizeof(int), cudaMemcpyDeviceToHost, s[k]));
	}
	CHECK(cudaEventRecord(stop, s[0]));
	CHECK(cudaEventSynchronize(stop));
	for (int k = 0; k < streams; k++)
		CHECK(cudaStreamSynchronize(s[k]));
	for (int k = 0; k < streams; k++)
		for (int i = 0; i < n; i++)
			EXPECT(h[k * n + i] == (k + i) * 3 + i);
	float ms = -1;
	CHECK(cudaEventElapsedTime(&ms, start, stop));
	EXPECT(ms >= 0 && ms < 60000);

	// A stream waits for another through an event, and the host for neither.
	int *flag, *out, got[2] = {0, 0};
	CHECK(cudaHostAlloc(&flag, sizeof(int), cudaHostAllocMapped));
	CHECK(cudaMalloc(&out, 2 * sizeof(int)));
	CHECK(cudaMemset(out, 0, 2 * sizeof(int)));
	CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
	CHECK(cudaDeviceSynchronize());
	*(volatile int *)flag = 0;
	waitFor<<<1, 1, 0, other>>>(flag, out);
	CHECK(cudaEventRecord(ready, other));
	CHECK(cudaStreamWaitEvent(s[1], ready, 0));
	CHECK(cudaMemcpyAsync(out + 1, out, sizeof(int), cudaMemcpyDeviceToDevice, s[1]));
	EXPECT(cudaStreamQuery(other) == cudaErrorNotReady);
	EXPECT(cudaEventQuery(ready) == cudaErrorNotReady);
	cudaGetLastError();
	*(volatile int *)flag = 41;
	CHECK(cudaStreamSynchronize(s[1]));
	CHECK(cudaEventQuery(ready));
	CHECK(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
	EXPECT(got[0] == 42 && got[1] == 42);

	// The legacy stream waits for the others and they for it.
	scale<<<(n + 255) / 256, 256, 0, s[2]>>>(d, n, 2);
	scale<<<(n + 255) / 256, 256>>>(d, n, 5);
	scale<<<(n + 255) / 256, 256, 0, s[3]>>>(d, n, 7);
	CHECK(cudaMemcpy(h, d, n * sizeof(int), cudaMemcpyDeviceToHost));
	for (int i = 0; i < n; i++)
		EXPECT(h[i] == (((i * 3 + i) * 2 + i) * 5 + i) * 7 + i);
	for (int k = 0; k < streams; k++)
		CHECK(cudaStreamDestroy(s[k]));
	return passed();
}
