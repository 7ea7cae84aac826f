// Launches a kernel, and ends in one of many ways.
#define _GNU_SOURCE
#include "../../sim/testdata/driver.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 1000 };
static CUdevice dev;
static CUcontext ctx;
static CUmodule mod;
static CUfunction f;

static void setup(void)
{
	CHECK(cuCtxCreate_v2(&ctx, 0, dev));
	CHECK(cuModuleLoadData(&mod, ptx));
	CHECK(cuModuleGetFunction(&f, mod, "vectorAdd"));
}

// launch runs 8 blocks of 128 threads, and checks the result.
static void launch(void)
{
	CUdeviceptr d[3];
	static float a[N], b[N], c[N];
	int n = N;
	for (int i = 0; i < N; i++)
		a[i] = i, b[i] = 2 * i, c[i] = 0;
	for (int i = 0; i < 3; i++)
		CHECK(cuMemAlloc_v2(&d[i], sizeof a));
	CHECK(cuMemcpyHtoD_v2(d[0], a, sizeof a));
	CHECK(cuMemcpyHtoD_v2(d[1], b, sizeof b));
	void *args[] = {&d[0], &d[1], &d[2], &n};
	CHECK(cuLaunchKernel(f, 8, 1, 1, 128, 1, 1, 0, 0, args, 0));
	CHECK(cuMemcpyDtoH_v2(c, d[2], sizeof c));
	for (int i = 0; i < N; i++)
		EXPECT(c[i] == 3 * i);
	for (int i = 0; i < 3; i++)
		CHECK(cuMemFree_v2(d[i]));
}

static void done(void)
{
	printf("PASSED\n");
	fflush(stdout);
}

// again has the next signal come. By themselves they could come faster than they are handled,
// on a busy machine, and nothing else would be done.
static void again(int sig) { ualarm(500, 0); }

static void release(void)
{
	cuDevicePrimaryCtxRelease_v2(dev);
}

// primary is setup in the device's primary context.
static void primary(void)
{
	CHECK(cuDevicePrimaryCtxRetain(&ctx, dev));
	CHECK(cuCtxSetCurrent(ctx));
	CHECK(cuModuleLoadData(&mod, ptx));
	CHECK(cuModuleGetFunction(&f, mod, "vectorAdd"));
}

static void twice(void)
{
	launch();
	launch();
}

// unwaited launches in a stream that the default stream does not wait for, and does not
// wait itself.
static void unwaited(void)
{
	CUdeviceptr d = 0;
	CUstream s;
	int n = 0;
	void *args[] = {&d, &d, &d, &n};
	CHECK(cuStreamCreate(&s, 1));
	CHECK(cuLaunchKernel(f, 2000, 1, 1, 128, 1, 1, 0, s, args, 0));
}

static void *leave(void *arg)
{
	exit(3);
}

static void *load(void *arg)
{
	CHECK(cuCtxSetCurrent(ctx));
	CUmodule m;
	for (int i = 0; i < 5; i++) {
		CHECK(cuModuleLoadData(&m, ptx));
		CHECK(cuModuleUnload(m));
	}
	return 0;
}

int main(int argc, char **argv)
{
	const char *mode = argv[1];
	loadDriver();
	if (!strcmp(mode, "late release") || !strcmp(mode, "late launches"))
		atexit(release); // runs when the driver has ended
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&dev, 0));
	if (!strcmp(mode, "signals")) {
		// A timer whose signals interrupt everything; none may be lost or disturb.
		struct sigaction sa = {.sa_handler = again};
		sigaction(SIGALRM, &sa, 0);
		ualarm(500, 0);
	}
	if (strstr(mode, "release") || strstr(mode, "reset") || !strcmp(mode, "late launches"))
		primary();
	else
		setup();
	launch();
	if (!strcmp(mode, "exit")) {
		done();
		exit(4);
	} else if (!strcmp(mode, "_exit")) {
		done();
		_exit(5);
	} else if (!strcmp(mode, "thread")) {
		pthread_t t;
		done();
		pthread_create(&t, 0, leave, 0);
		pause();
	} else if (!strcmp(mode, "exec")) {
		done();
		execl("/bin/true", "true", (char *)0);
	} else if (!strcmp(mode, "killed")) {
		done();
		kill(getpid(), SIGKILL);
	} else if (!strcmp(mode, "destroyed")) {
		CHECK(cuCtxDestroy_v2(ctx));
		setup();
		launch();
		done();
	} else if (!strcmp(mode, "fork")) {
		pid_t p = fork();
		if (p == 0)
			exit(0);
		waitpid(p, 0, 0);
		launch();
		done();
	} else if (!strcmp(mode, "late launches")) {
		atexit(twice);
		done();
	} else if (!strcmp(mode, "unwaited")) {
		unwaited();
		done();
	} else if (!strcmp(mode, "release")) {
		release();
		done();
	} else if (!strcmp(mode, "reset")) {
		CHECK(cuDevicePrimaryCtxReset_v2(dev));
		done();
	} else if (!strcmp(mode, "reset, killed")) {
		CHECK(cuDevicePrimaryCtxReset_v2(dev));
		done();
		kill(getpid(), SIGKILL);
	} else if (!strcmp(mode, "endless")) {
		done();
		for (;;)
			launch();
	} else if (!strcmp(mode, "threads")) {
		pthread_t t[6];
		for (int i = 0; i < 6; i++)
			pthread_create(&t[i], 0, load, 0);
		for (int i = 0; i < 6; i++)
			pthread_join(t[i], 0);
		launch();
		done();
	} else {
		done();
	}
	return 0;
}
