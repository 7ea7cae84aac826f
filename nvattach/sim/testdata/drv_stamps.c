// What times of kernels by probes must say: launches on several streams at the same time, threads
// that leave early, a graph that is launched again, and many launches. Each of the first kinds of
// kernels notes by itself, by the GPU's timer, when its first thread began and its last one ended;
// the host's clock, before a launch and when it is over, has the times between two others.
//
//	drv_stamps [LAUNCHES]    then as many small launches
//
// It prints a line for each launch that noted its times: the kernel, the thread that launched it, and
// how many nanoseconds it took at least.
#define _GNU_SOURCE
#include "driver.h"
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BLOCKS 67 // more than 32, and no multiple of it
#define THREADS 96
#define STREAMS 4
#define ROUNDS 10

static const char code[] =
	".version 7.0\n.target sm_50\n.address_size 64\n"
	// Of its threads, some leave at once, others in the middle, and the rest at the end; times[0] is
	// when the first one began, times[1] the complement of when the first of those ended that run the
	// loop, which is the most that surely is not later than the end of the last one, and sum counts.
#define TIMED(name)                                                                                    \
	".visible .entry " name "(.param .u64 times, .param .u64 sum, .param .u32 loops)\n{\n"             \
	".reg .pred %p<4>;\n.reg .b32 %r<8>;\n.reg .b64 %d<8>;\n"                                          \
	"mov.u64 %d1, %globaltimer;\n"                                                                     \
	"ld.param.u64 %d2, [times];\nld.param.u64 %d3, [sum];\nld.param.u32 %r1, [loops];\n"               \
	"mov.u32 %r2, %tid.x;\nmov.u32 %r5, %ctaid.x;\nor.b32 %r5, %r5, %r2;\nsetp.eq.u32 %p1, %r5, 0;\n"   \
	"@%p1 st.global.u64 [%d2], %d1;\n"                                                                \
	"and.b32 %r3, %r2, 3;\nsetp.eq.u32 %p1, %r3, 1;\n@%p1 exit;\n"               \
	"red.global.add.u32 [%d3], 1;\n"                                                                   \
	"mov.u32 %r4, 0;\n"                                                                                \
	"again: add.u32 %r4, %r4, 1;\nsetp.lt.u32 %p2, %r4, %r1;\n@%p2 bra again;\n"                       \
	"setp.gt.u32 %p3, %r2, 70;\n@%p3 bra early;\n"                                                     \
	"mov.u64 %d4, %globaltimer;\nnot.b64 %d4, %d4;\nred.global.max.u64 [%d2+8], %d4;\nret;\n"                             \
	"early: mov.u64 %d4, %globaltimer;\nnot.b64 %d4, %d4;\nred.global.max.u64 [%d2+8], %d4;\nexit;\n}\n"
	TIMED("stream0") TIMED("stream1") TIMED("stream2") TIMED("stream3") TIMED("node0") TIMED("node1") TIMED("node2")
	".visible .entry small(.param .u64 sum)\n{\n.reg .b64 %d<2>;\nld.param.u64 %d1, [sum];\nred.global.add.u32 [%d1], 1;\nret;\n}\n";

static CUcontext ctx;
static CUmodule mod;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int launches;

// The threads of a launch that count: those that do not leave at once.
static int counted(void)
{
	int n = 0;
	for (int i = 0; i < THREADS; i++)
		n += i % 4 != 1;
	return n * BLOCKS;
}

static void launch(CUfunction f, CUstream s, CUdeviceptr times, CUdeviceptr sum, int loops)
{
	void *args[] = {&times, &sum, &loops};
	CHECK(cuLaunchKernel(f, BLOCKS, 1, 1, THREADS, 1, 1, 0, s, args, 0));
}

static CUfunction function(const char *name, int i)
{
	CUfunction f;
	char full[16];
	snprintf(full, sizeof full, "%s%d", name, i);
	CHECK(cuModuleGetFunction(&f, mod, full));
	return f;
}

static void show(const char *name, int i, CUdeviceptr times)
{
	unsigned long long t[2];
	CHECK(cuMemcpyDtoH_v2(t, times, sizeof t));
	pthread_mutex_lock(&lock);
	printf("%s%d %ld %lld\n", name, i, syscall(SYS_gettid), (long long)(~t[1] - t[0]));
	launches++;
	pthread_mutex_unlock(&lock);
}

static void *thread(void *arg)
{
	CUstream s;
	CUdeviceptr times, sum;
	int n, number = (int)(long)arg;
	CHECK(cuCtxSetCurrent(ctx));
	CHECK(cuStreamCreate(&s, 1));
	CHECK(cuMemAlloc_v2(&times, 16));
	CHECK(cuMemAlloc_v2(&sum, 4));
	CHECK(cuMemsetD32_v2(sum, 0, 1));
	for (int i = 0; i < ROUNDS; i++) {
		CHECK(cuMemsetD32_v2(times, 0, 4));
		launch(function("stream", number), s, times, sum, 50 * i);
		CHECK(cuStreamSynchronize(s));
		show("stream", number, times);
	}
	CHECK(cuMemcpyDtoH_v2(&n, sum, sizeof n));
	EXPECT(n == ROUNDS * counted());
	return 0;
}

int main(int argc, char **argv)
{
	CUdevice dev;
	CUfunction small;
	CUstream s;
	CUgraph g;
	CUgraphExec x;
	CUdeviceptr times[3], sum;
	pthread_t threads[STREAMS];
	int many = argc > 1 ? atoi(argv[1]) : 0, n;
	loadDriver();
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&dev, 0));
	CHECK(cuCtxCreate_v2(&ctx, 0, dev));
	CHECK(cuModuleLoadData(&mod, code));
	CHECK(cuModuleGetFunction(&small, mod, "small"));
	for (int i = 0; i < STREAMS; i++)
		pthread_create(&threads[i], 0, thread, (void *)(long)i);
	for (int i = 0; i < STREAMS; i++)
		pthread_join(threads[i], 0);
	// A graph of three kernels, one behind the other.
	CHECK(cuStreamCreate(&s, 1));
	CHECK(cuMemAlloc_v2(&sum, 4));
	CHECK(cuMemsetD32_v2(sum, 0, 1));
	for (int i = 0; i < 3; i++)
		CHECK(cuMemAlloc_v2(&times[i], 16));
	CHECK(cuStreamBeginCapture_v2(s, 0));
	for (int i = 0; i < 3; i++)
		launch(function("node", i), s, times[i], sum, 100 * i);
	CHECK(cuStreamEndCapture(s, &g));
	CHECK(cuGraphInstantiateWithFlags(&x, g, 0));
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < 3; i++)
			CHECK(cuMemsetD32_v2(times[i], 0, 4));
		CHECK(cuGraphLaunch(x, s));
		CHECK(cuStreamSynchronize(s));
		for (int i = 0; i < 3; i++)
			show("node", i, times[i]);
	}
	CHECK(cuMemcpyDtoH_v2(&n, sum, sizeof n));
	EXPECT(n == 3 * ROUNDS * counted());
	CHECK(cuMemsetD32_v2(sum, 0, 1));
	for (int i = 0; i < many; i++) {
		void *args[] = {&sum};
		CHECK(cuLaunchKernel(small, 1, 1, 1, 1, 1, 1, 0, s, args, 0));
		if (i % 1000 == 999)
			CHECK(cuStreamSynchronize(s));
	}
	CHECK(cuStreamSynchronize(s));
	CHECK(cuMemcpyDtoH_v2(&n, sum, sizeof n));
	EXPECT(n == many);
	printf("PASSED %d\n", launches);
	return 0;
}
