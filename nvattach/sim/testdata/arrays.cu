#include "test.h"

int main()
{
	cudaArray_t a, level;
	cudaMipmappedArray_t m;
	size_t before, after, total;
	bool strict = getenv("NVTRACE_SIM") != nullptr; // a simulated GPU has no pages
	auto took = [&](size_t bytes) {
		CHECK(cudaMemGetInfo(&after, &total));
		return !strict || before - after == bytes;
	};
	cudaChannelFormatDesc f2 = cudaCreateChannelDesc<float2>(), s16 = cudaCreateChannelDesc<short>(), u8 = cudaCreateChannelDesc<uchar4>();
	CHECK(cudaMemGetInfo(&before, &total));
	CHECK(cudaMallocArray(&a, &f2, 100, 30));
	EXPECT(took(24000));
	CHECK(cudaFreeArray(a));
	CHECK(cudaMalloc3DArray(&a, &s16, make_cudaExtent(10, 20, 30)));
	EXPECT(took(12000));
	CHECK(cudaFreeArray(a));
	CHECK(cudaMalloc3DArray(&a, &u8, make_cudaExtent(10, 0, 30), cudaArrayLayered));
	EXPECT(took(1200));
	CHECK(cudaFreeArray(a));
	CHECK(cudaMallocMipmappedArray(&m, &u8, make_cudaExtent(16, 16, 0), 2));
	EXPECT(took(4 * (256 + 64)));
	CHECK(cudaGetMipmappedArrayLevel(&level, m, 1));
	CHECK(cudaFreeMipmappedArray(m));
	CHECK(cudaFreeArray(nullptr));
	EXPECT(took(0));
	EXPECT(cudaMallocArray(&a, &f2, 0, 30) == cudaErrorInvalidValue);
	CHECK((cudaGetLastError(), cudaSuccess));
	return passed();
}
