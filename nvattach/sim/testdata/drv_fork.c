#include "driver.h"
#include <sys/wait.h>
#include <unistd.h>

static int use(void)
{
	CUdevice dev;
	CUcontext ctx;
	CUdeviceptr p;
	unsigned v = 0;
	CUresult r = cuInit(0);
	if (r)
		return 20 + r;
	CHECK(cuDeviceGet(&dev, 0));
	CHECK(cuCtxCreate_v2(&ctx, 0, dev));
	CHECK(cuMemAlloc_v2(&p, 4096));
	CHECK(cuMemsetD32_v2(p, 0x1234, 1024));
	CHECK(cuMemcpyDtoH_v2(&v, p + 4000, 4));
	CHECK(cuCtxDestroy_v2(ctx));
	return v == 0x1234 ? 0 : 1;
}

static int child(void)
{
	int st;
	pid_t p = fork();
	if (p == 0)
		_exit(use());
	waitpid(p, &st, 0);
	return WIFEXITED(st) ? WEXITSTATUS(st) : -1;
}

int main(void)
{
	loadDriver();
	EXPECT(child() == 0);
	EXPECT(use() == 0);
	EXPECT(child() == 23); // CUDA_ERROR_NOT_INITIALIZED: the parent has used it
	EXPECT(use() == 0);
	printf("PASSED\n");
	return 0;
}
