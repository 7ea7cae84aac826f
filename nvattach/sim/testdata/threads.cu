#include "test.h"
#include <thread>
#include <vector>

__global__ void inc(int *v, int by) { atomicAdd(&v[threadIdx.x], by); }

int main()
{
	const int threads = 6, rounds = 20;
	int *d, h[64] = {};
	CHECK(cudaMalloc(&d, sizeof h));
	CHECK(cudaMemset(d, 0, sizeof h));
	CHECK(cudaDeviceSynchronize());
	std::vector<std::thread> all;
	for (int t = 0; t < threads; t++)
		all.emplace_back([=] {
			cudaStream_t s;
			CHECK(cudaSetDevice(0));
			CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
			for (int i = 0; i < rounds; i++)
				inc<<<1, 64, 0, s>>>(d, t + 1);
			CHECK(cudaStreamSynchronize(s));
			// Errors belong to the thread that made them.
			EXPECT(cudaGetLastError() == cudaSuccess);
			EXPECT(cudaSetDevice(1000 + t) == cudaErrorInvalidDevice);
			EXPECT(cudaGetLastError() == cudaErrorInvalidDevice);
			CHECK(cudaStreamDestroy(s));
		});
	for (auto &t : all)
		t.join();
	CHECK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
	for (int i = 0; i < 64; i++)
		EXPECT(h[i] == rounds * threads * (threads + 1) / 2);
	return passed();
}
