// Launches a kernel over and over, and checks what it computes, until stdin ends. With
// "library" its image is loaded as a library, with "memory" from memory, with "later" so when a
// line has come, with "threads" several threads launch, with "graph" a graph does, too. With
// "variable" the kernel adds a variable of its module, which changes; "library variable" is both. With
// "cooperative" all blocks are to run at a time; with "patched" somebody has put code of theirs over the function for that.
#include "../../sim/testdata/driver.h"
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

// A fat binary, as nvcc puts it into programs.
__asm__(".section .nv_fatbin,\"a\"\n.balign 8\nfatbin:\n.incbin \"" FATBIN "\"\n.previous\n");
extern const char fatbin[];

enum { N = 1000 };
static CUcontext ctx;
static void *f;
static volatile int over;
static int cooperative;
static long launches;
static CUdeviceptr bias;

static void *work(void *arg)
{
	CUdeviceptr d[3];
	float a[N], b[N], c[N];
	int n = N;
	CHECK(cuCtxSetCurrent(ctx));
	for (int i = 0; i < 3; i++)
		CHECK(cuMemAlloc_v2(&d[i], sizeof a));
	for (int k = 0; !over; k++) {
		for (int i = 0; i < N; i++)
			a[i] = i + k % 1000, b[i] = 2 * i, c[i] = 0;
		CHECK(cuMemcpyHtoD_v2(d[0], a, sizeof a));
		CHECK(cuMemcpyHtoD_v2(d[1], b, sizeof b));
		float more = bias ? k % 5 : 0;
		if (bias)
			CHECK(cuMemcpyHtoD_v2(bias, &more, sizeof more));
		void *args[] = {&d[0], &d[1], &d[2], &n};
		if (cooperative)
			CHECK(cuLaunchCooperativeKernel(f, 8, 1, 1, 128, 1, 1, 0, 0, args));
		else
			CHECK(cuLaunchKernel(f, 8, 1, 1, 128, 1, 1, 0, 0, args, 0));
		CHECK(cuMemcpyDtoH_v2(c, d[2], sizeof c));
		for (int i = 0; i < N; i++)
			EXPECT(c[i] == a[i] + b[i] + more);
		if (__sync_add_and_fetch(&launches, 1) == 1)
			printf("ready\n"), fflush(stdout);
	}
	return 0;
}

// replay makes a graph of a launch, again and again.
static void *replay(void *arg)
{
	CUdeviceptr d[3];
	CUstream s;
	float c[N];
	int n = N;
	CHECK(cuCtxSetCurrent(ctx));
	CHECK(cuStreamCreate(&s, 1));
	for (int i = 0; i < 3; i++)
		CHECK(cuMemAlloc_v2(&d[i], sizeof c));
	CHECK(cuMemsetD32_v2(d[0], 0x3f800000, N));
	CHECK(cuMemsetD32_v2(d[1], 0x40000000, N));
	void *args[] = {&d[0], &d[1], &d[2], &n};
	CUgraphExec kept = 0;
	while (!over) {
		CUgraph g;
		CUgraphExec x;
		CHECK(cuStreamBeginCapture_v2(s, 2));
		CHECK(cuLaunchKernel(f, 8, 1, 1, 128, 1, 1, 0, s, args, 0));
		CHECK(cuStreamEndCapture(s, &g));
		CHECK(cuGraphInstantiateWithFlags(&x, g, 0));
		if (!kept)
			kept = x;
		for (int i = 0; i < 2; i++) {
			CHECK(cuMemsetD32_v2(d[2], 0, N));
			CHECK(cuGraphLaunch(i ? kept : x, s));
			CHECK(cuStreamSynchronize(s));
			CHECK(cuMemcpyDtoH_v2(c, d[2], sizeof c));
			for (int i = 0; i < N; i++)
				EXPECT(c[i] == 3);
		}
	}
	return 0;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	CUdevice dev;
	pthread_t t[4];
	int n = !strcmp(mode, "threads") ? 4 : 1;
	cooperative = !strcmp(mode, "cooperative");
	loadDriver();
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&dev, 0));
	CHECK(cuDevicePrimaryCtxRetain(&ctx, dev));
	CHECK(cuCtxSetCurrent(ctx));
	if (!strncmp(mode, "library", 7)) {
		CUlibrary lib;
		CHECK(cuLibraryLoadData(&lib, fatbin, 0, 0, 0, 0, 0, 0));
		CHECK(cuLibraryGetKernel((CUkernel *)&f, lib, "vectorAdd"));
		if (strstr(mode, "variable"))
			CHECK(cuLibraryGetGlobal(&bias, 0, lib, "bias"));
	} else {
		CUmodule mod;
		int later = !strcmp(mode, "later");
		if (later)
			printf("ready\n"), fflush(stdout), getchar(), launches++;
		CHECK(cuModuleLoadData(&mod, later || !strcmp(mode, "memory") ? strdup(ptx) : fatbin));
		CHECK(cuModuleGetFunction((CUfunction *)&f, mod, "vectorAdd"));
		if (strstr(mode, "variable"))
			CHECK(cuModuleGetGlobal_v2(&bias, 0, mod, "bias"));
	}
	if (!strcmp(mode, "patched")) {
		char *at = (char *)cuLaunchCooperativeKernel;
		EXPECT(!mprotect((void *)((long)at & -4096), 8192, PROT_READ | PROT_WRITE | PROT_EXEC));
		memset(at, 0x90, 16);
	}
	for (int i = 0; i < n; i++)
		pthread_create(&t[i], 0, work, 0);
	if (!strcmp(mode, "graph"))
		pthread_create(&t[n++], 0, replay, 0);
	while (getchar() != EOF)
		;
	over = 1;
	for (int i = 0; i < n; i++)
		pthread_join(t[i], 0);
	printf("%ld launches\n", launches);
	return 0;
}
