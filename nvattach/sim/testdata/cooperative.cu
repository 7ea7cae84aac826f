#include "test.h"
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

// Each step, every block reads what another wrote in the step before.
__global__ void rounds(int *v, int steps)
{
	cg::grid_group grid = cg::this_grid();
	int blocks = gridDim.x;
	for (int s = 0; s < steps; s++) {
		int from = (blockIdx.x + 1) % blocks;
		int x = v[(s % 2) * blocks + from];
		if (threadIdx.x == 0)
			v[((s + 1) % 2) * blocks + blockIdx.x] = x + blockIdx.x;
		grid.sync();
	}
}

int main()
{
	const int blocks = 12, steps = 9;
	int dev, coop = 0, per = 0, h[2 * blocks], *d, n = steps;
	CHECK(cudaGetDevice(&dev));
	CHECK(cudaDeviceGetAttribute(&coop, cudaDevAttrCooperativeLaunch, dev));
	EXPECT(coop == 1);
	CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per, rounds, 64, 0));
	EXPECT(per > 0);
	for (int i = 0; i < 2 * blocks; i++)
		h[i] = i < blocks ? i * i : 0;
	CHECK(cudaMalloc(&d, sizeof h));
	CHECK(cudaMemcpy(d, h, sizeof h, cudaMemcpyHostToDevice));
	void *args[] = {&d, &n};
	CHECK(cudaLaunchCooperativeKernel((void *)rounds, dim3(blocks), dim3(64), args, 0, 0));
	int a[blocks], b[blocks];
	for (int i = 0; i < blocks; i++)
		a[i] = i * i;
	for (int s = 0; s < steps; s++) {
		for (int i = 0; i < blocks; i++)
			b[i] = a[(i + 1) % blocks] + i;
		for (int i = 0; i < blocks; i++)
			a[i] = b[i];
	}
	CHECK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
	for (int i = 0; i < blocks; i++)
		EXPECT(h[(steps % 2) * blocks + i] == a[i]);
	EXPECT(cudaLaunchCooperativeKernel((void *)rounds, dim3(1 << 20), dim3(64), args, 0, 0) == cudaErrorCooperativeLaunchTooLarge);
	cudaGetLastError();
	return passed();
}
