// ownwork: with -DDRIVER a stand-in for the driver's library, which makes an ioctl within each function, another
// one where events are made; without, a program that launches ten kernels through it.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#ifdef DRIVER
static int device(void)
{
	static int fd = -1;
	if (fd < 0)
		fd = open("/dev/full", O_RDWR | O_CLOEXEC);
	return fd;
}

static int call(unsigned nr)
{
	char arg[16] = {0};
	ioctl(device(), _IOWR('F', nr, char[16]), arg);
	return 0;
}

int cuInit(unsigned flags) { return call(0x2a); }
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **params, void **extra) { return call(0x2a); }
int cuCtxSynchronize(void) { return call(0x2a); }

// What nvtrace calls to time kernels. A descriptor comes and goes there, too.
int cuCtxGetCurrent(void **c) { *c = (void *)8; return 0; }
int cuStreamIsCapturing(void *s, int *is) { *is = 0; return 0; }
int cuThreadExchangeStreamCaptureMode(int *mode) { return 0; }
int cuEventCreate(void **e, unsigned flags)
{
	static uintptr_t next = 16;
	close(dup(device()));
	*e = (void *)next++;
	return call(0x29);
}
int cuEventDestroy_v2(void *e) { return call(0x29); }
int cuEventRecord(void *e, void *s) { return 0; }
int cuEventQuery(void *e) { return 0; }
int cuEventElapsedTime(float *ms, void *a, void *b) { *ms = 0; return 0; }
int cuStreamCreate(void **s, unsigned flags) { *s = (void *)8; return call(0x29); }
int cuDevicePrimaryCtxGetState(int dev, unsigned *flags, int *active) { *active = 1; return 0; }
#else
int cuInit(unsigned), cuCtxSynchronize(void);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

int main(void)
{
	cuInit(0);
	for (int i = 0; i < 10; i++)
		cuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
	cuCtxSynchronize();
	return 0;
}
#endif
