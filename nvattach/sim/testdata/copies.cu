#include "test.h"
#include <string.h>

__global__ void bump(char *p, size_t pitch, int w, int h)
{
	int x = threadIdx.x, y = blockIdx.x;
	if (x < w && y < h)
		p[y * pitch + x] += 1;
}

int main()
{
	const int w = 100, h = 40;
	static char a[h][w], b[h][w];
	char *p;
	size_t pitch;
	for (int i = 0; i < w * h; i++)
		a[i / w][i % w] = i % 90;
	CHECK(cudaMallocPitch(&p, &pitch, w, h));
	EXPECT(pitch >= w && pitch % 32 == 0);
	CHECK(cudaMemcpy2D(p, pitch, a, w, w, h, cudaMemcpyHostToDevice));
	bump<<<h, 128>>>(p, pitch, w, h);
	CHECK(cudaMemcpy2D(b, w, p, pitch, w, h, cudaMemcpyDeviceToHost));
	for (int i = 0; i < w * h; i++)
		EXPECT(b[i / w][i % w] == a[i / w][i % w] + 1);
	CHECK(cudaMemset2D(p, pitch, 0x5a, 10, 5));
	CHECK(cudaMemcpy2D(b, w, p, pitch, w, h, cudaMemcpyDeviceToHost));
	EXPECT(b[4][9] == 0x5a && b[4][10] == a[4][10] + 1 && b[5][0] == a[5][0] + 1);

	cudaExtent e = make_cudaExtent(30, 4, 3);
	cudaPitchedPtr q;
	CHECK(cudaMalloc3D(&q, e));
	CHECK(cudaMemset3D(q, 1, e));
	char src[3][4][30], dst[3][4][30];
	for (int i = 0; i < 360; i++)
		((char *)src)[i] = i % 100;
	cudaMemcpy3DParms c = {};
	c.srcPtr = make_cudaPitchedPtr(src, 30, 30, 4);
	c.dstPtr = q;
	c.extent = e;
	c.kind = cudaMemcpyHostToDevice;
	CHECK(cudaMemcpy3D(&c));
	c.srcPtr = q;
	c.dstPtr = make_cudaPitchedPtr(dst, 30, 30, 4);
	c.kind = cudaMemcpyDeviceToHost;
	CHECK(cudaMemcpy3D(&c));
	EXPECT(memcmp(src, dst, sizeof src) == 0);
	size_t before, after, total;
	void *m;
	CHECK(cudaMemGetInfo(&before, &total));
	CHECK(cudaMalloc(&m, 64 << 20));
	CHECK(cudaMemGetInfo(&after, &total));
	EXPECT(before - after >= 64 << 20 && total >= before);
	cudaStream_t s;
	CHECK(cudaStreamCreate(&s));
	int *x;
	CHECK(cudaMallocAsync(&x, 4096, s));
	CHECK(cudaMemsetAsync(x, 0, 4096, s));
	CHECK(cudaFreeAsync(x, s));
	CHECK(cudaStreamSynchronize(s));
	return passed();
}
