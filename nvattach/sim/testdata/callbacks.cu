#include "test.h"
#include <string.h>

__global__ void fill(int *v, int x) { v[threadIdx.x] = x + threadIdx.x; }

struct Note {
	int calls, sum;
	int *host;
};

static void CUDART_CB onHost(void *arg)
{
	Note *n = (Note *)arg;
	n->calls++;
	for (int i = 0; i < 32; i++)
		n->sum += n->host[i];
}

static void CUDART_CB onStream(cudaStream_t, cudaError_t status, void *arg)
{
	if (status == cudaSuccess)
		((Note *)arg)->calls += 10;
}

int main()
{
	int *h, *d;
	static int mine[2048]; // ordinary memory, registered below
	cudaStream_t s;
	CHECK(cudaStreamCreate(&s));
	CHECK(cudaMallocHost(&h, 128));
	CHECK(cudaMalloc(&d, 128));
	Note note = {0, 0, h};
	for (int k = 0; k < 3; k++) {
		fill<<<1, 32, 0, s>>>(d, k * 100);
		CHECK(cudaMemcpyAsync(h, d, 128, cudaMemcpyDeviceToHost, s));
		CHECK(cudaLaunchHostFunc(s, onHost, &note));
	}
	CHECK(cudaStreamAddCallback(s, onStream, &note, 0));
	CHECK(cudaStreamSynchronize(s));
	EXPECT(note.calls == 13);
	EXPECT(note.sum == 3 * 496 + 32 * 300);

	for (int i = 0; i < 2048; i++)
		mine[i] = i;
	int *dev;
	CHECK(cudaHostRegister(mine, sizeof mine, cudaHostRegisterMapped));
	CHECK(cudaHostGetDevicePointer(&dev, mine, 0));
	fill<<<1, 32, 0, s>>>(dev + 1000, 7);
	CHECK(cudaStreamSynchronize(s));
	EXPECT(mine[999] == 999 && mine[1000] == 7 && mine[1031] == 38 && mine[1032] == 1032);
	CHECK(cudaHostUnregister(mine));
	EXPECT(mine[999] == 999 && mine[1000] == 7 && mine[1031] == 38 && mine[2047] == 2047);
	mine[5] = 6;
	return passed();
}
