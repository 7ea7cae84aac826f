// What times of a GPU must not change: captures of streams, events and contexts of the program's
// own. It prints how often it has had the GPU do what.
#include "driver.h"
#include <pthread.h>

#define N 64
#define ROUNDS 20

static CUcontext ctx;
static CUfunction scale;
static int launches, sets, copies, graphs;

static void launch(CUstream s, CUdeviceptr p, int by)
{
	void *args[] = {&p, &by};
	CHECK(cuLaunchKernel(scale, 1, 1, 1, N, 1, 1, 0, s, args, 0));
	__sync_fetch_and_add(&launches, 1);
}

static void check(CUdeviceptr p, int want)
{
	int h[N];
	CHECK(cuMemcpyDtoH_v2(h, p, sizeof h));
	__sync_fetch_and_add(&copies, 1);
	for (int i = 0; i < N; i++)
		EXPECT(h[i] == want);
}

static void set(CUdeviceptr p, int v)
{
	CHECK(cuMemsetD32_v2(p, v, N));
	__sync_fetch_and_add(&sets, 1);
}

// Launches on a stream of its own, with events between.
static void *thread(void *arg)
{
	CUstream s;
	CUevent a, b;
	CUdeviceptr p;
	float ms = -1;
	int want = 1;
	(void)arg;
	CHECK(cuCtxSetCurrent(ctx));
	CHECK(cuStreamCreate(&s, 0));
	CHECK(cuEventCreate(&a, 0));
	CHECK(cuEventCreate(&b, 0));
	CHECK(cuMemAlloc_v2(&p, N * sizeof(int)));
	set(p, 1);
	CHECK(cuEventRecord(a, s));
	for (int i = 0; i < ROUNDS; i++, want *= 3)
		launch(s, p, 3);
	CHECK(cuEventRecord(b, s));
	CHECK(cuStreamSynchronize(s));
	CHECK(cuEventQuery(b));
	CHECK(cuStreamQuery(s));
	CHECK(cuEventElapsedTime(&ms, a, b));
	EXPECT(ms >= 0);
	check(p, want);
	CHECK(cuMemFree_v2(p));
	CHECK(cuStreamDestroy_v2(s));
	return 0;
}

// A stream is captured in the strictest mode, while nothing may be called that such a mode
// forbids, and the graph is launched.
static void capture(void)
{
	CUstream s, other;
	CUgraph g;
	CUgraphExec x;
	CUdeviceptr p, q;
	int capturing, mode = 0;
	CHECK(cuStreamCreate(&s, 1));
	CHECK(cuStreamCreate(&other, 1));
	CHECK(cuMemAlloc_v2(&p, N * sizeof(int)));
	CHECK(cuMemAlloc_v2(&q, N * sizeof(int)));
	set(p, 1);
	set(q, 1);
	CHECK(cuStreamBeginCapture_v2(s, 0));
	launch(s, p, 5);
	launch(other, q, 7); // on the GPU
	launch(s, p, 2);
	CHECK(cuStreamIsCapturing(s, &capturing));
	EXPECT(capturing == 1);
	CHECK(cuThreadExchangeStreamCaptureMode(&mode));
	EXPECT(mode == 0);
	CHECK(cuStreamEndCapture(s, &g));
	CHECK(cuGraphInstantiateWithFlags(&x, g, 0));
	for (int i = 0; i < 3; i++, graphs++)
		CHECK(cuGraphLaunch(x, s));
	CHECK(cuStreamSynchronize(s));
	CHECK(cuStreamSynchronize(other));
	check(p, 1000);
	check(q, 7);
	CHECK(cuStreamDestroy_v2(s));
	CHECK(cuStreamDestroy_v2(other));
}

int main(void)
{
	CUdevice dev;
	CUmodule mod;
	pthread_t threads[3];
	loadDriver();
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&dev, 0));
	for (int round = 0; round < 2; round++) { // a context that has ended is nobody's any more
		if (round == 0)
			CHECK(cuCtxCreate_v2(&ctx, 0, dev));
		else {
			CHECK(cuDevicePrimaryCtxRetain(&ctx, dev));
			CHECK(cuDevicePrimaryCtxRetain(&ctx, dev));
			CHECK(cuCtxSetCurrent(ctx));
		}
		CHECK(cuModuleLoadData(&mod, ptx));
		CHECK(cuModuleGetFunction(&scale, mod, "scale"));
		for (int i = 0; i < 3; i++)
			pthread_create(&threads[i], 0, thread, 0);
		for (int i = 0; i < 3; i++)
			pthread_join(threads[i], 0);
		if (round == 1)
			CHECK(cuDevicePrimaryCtxRelease_v2(dev)); // there is another holder
		capture();
		EXPECT(cuLaunchKernel(scale, 1, 1, 1, 5000, 1, 1, 0, 0, 0, 0) != 0); // too many threads
		CHECK(cuCtxSynchronize());
		if (round == 0)
			CHECK(cuCtxDestroy_v2(ctx));
		else
			CHECK(cuDevicePrimaryCtxRelease_v2(dev));
	}
	// Without a context nothing that was there may be touched.
	EXPECT(cuCtxSynchronize() != 0);
	printf("%d launches, %d sets, %d copies, %d graphs\nPASSED\n", launches, sets, copies, graphs);
	return 0;
}
