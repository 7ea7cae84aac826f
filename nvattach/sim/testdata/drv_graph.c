#include "driver.h"

struct kernelNode {
	CUfunction func;
	unsigned grid[3], block[3], shared;
	void **params, **extra;
	CUkernel kern;
	CUcontext ctx;
};

int main(void)
{
	CUdevice dev;
	CUcontext ctx;
	CUmodule mod;
	CUfunction f;
	CUstream s;
	CUgraph g;
	CUgraphNode a, b;
	CUgraphExec x;
	CUdeviceptr p;
	int h[64], three = 3, seven = 7;
	loadDriver();
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&dev, 0));
	CHECK(cuCtxCreate_v2(&ctx, 0, dev));
	CHECK(cuModuleLoadData(&mod, ptx));
	CHECK(cuModuleGetFunction(&f, mod, "scale"));
	CHECK(cuMemAlloc_v2(&p, sizeof h));
	CHECK(cuMemsetD32_v2(p, 2, 64));
	CHECK(cuStreamCreate(&s, 1));
	void *args[] = {&p, &three};
	struct kernelNode n = {f, {1, 1, 1}, {64, 1, 1}, 0, args, 0, 0, 0};
	CHECK(cuGraphCreate(&g, 0));
	CHECK(cuGraphAddKernelNode_v2(&a, g, 0, 0, &n));
	args[1] = &seven;
	n.block[0] = 32;
	CHECK(cuGraphAddKernelNode_v2(&b, g, &a, 1, &n));
	CHECK(cuGraphInstantiateWithFlags(&x, g, 0));
	seven = 1000; // parameters were copied
	CHECK(cuGraphLaunch(x, s));
	CHECK(cuGraphLaunch(x, s));
	CHECK(cuStreamSynchronize(s));
	CHECK(cuMemcpyDtoH_v2(h, p, sizeof h));
	for (int i = 0; i < 64; i++)
		EXPECT(h[i] == 2 * 9 * (i < 32 ? 49 : 1));
	CHECK(cuStreamDestroy_v2(s));
	printf("PASSED\n");
	return 0;
}
