// extend: a library function that makes ioctls, for a tracer that hooks it. It is
// told where that is by an ioctl on descriptor -2.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static int ctl;

__attribute__((noinline)) long api(long n, const char *name)
{
	char arg[16] = {n};
	for (long i = 0; i < n; i++)
		ioctl(ctl, _IOWR('F', 0x29, char[16]), arg);
	return n * 2;
}

static void *run(void *x)
{
	for (long i = 1; i < 5; i++)
		api(i, "thread");
	return 0;
}

int main(void)
{
	pthread_t t[4];
	syscall(SYS_ioctl, 0xfffffffeu, 0x4d41524bu, api);
	ctl = open("/dev/full", O_RDWR);
	int gpu = open("/dev/zero", O_RDWR);
	mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, gpu, 0);
	api(3, "main");
	for (int i = 0; i < 4; i++)
		pthread_create(&t[i], 0, run, 0);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], 0);
	api(0, "end");
	return 0;
}
