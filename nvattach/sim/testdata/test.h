// What the test programs share. A program verifies its own result and prints
// PASSED, or says what is wrong and fails; everything is deterministic.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define CHECK(call)                                                                              \
	do {                                                                                     \
		cudaError_t e_ = (call);                                                         \
		if (e_ != cudaSuccess) {                                                         \
			printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(e_)); \
			exit(1);                                                                 \
		}                                                                                \
	} while (0)

#define EXPECT(cond)                                                              \
	do {                                                                      \
		if (!(cond)) {                                                    \
			printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #cond); \
			exit(1);                                                  \
		}                                                                 \
	} while (0)

// A small generator, the same everywhere.
struct Rand {
	unsigned s;
	explicit Rand(unsigned seed) : s(seed) {}
	unsigned next() { return s = s * 1664525u + 1013904223u; }
	unsigned below(unsigned n) { return (next() >> 8) % n; }
};

static inline int passed()
{
	CHECK(cudaGetLastError());
	CHECK(cudaDeviceSynchronize());
	printf("PASSED\n");
	return 0;
}
