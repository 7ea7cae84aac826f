// client: a process that uses a driver and devices, in the order that its first argument says; each
// letter is a step:
//   l  the driver is loaded and launches two kernels
//   d  a device is opened, seven ioctls are made on it, and it is closed
//   p  other files are opened and closed, which soon stops no more
//   f  three forked children at once do the rest
#include "../../../nvattach/sim/testdata/driver.h"
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

static const char nothing[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
			  ".visible .entry k(.param .u64 p) {\n ret;\n}\n";

static void driver(void)
{
	CUdevice dev;
	CUcontext ctx;
	CUmodule mod;
	CUfunction k;
	CUdeviceptr p = 0;
	void *args[] = {&p};
	loadDriver();
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&dev, 0));
	CHECK(cuCtxCreate_v2(&ctx, 0, dev));
	CHECK(cuModuleLoadData(&mod, nothing));
	CHECK(cuModuleGetFunction(&k, mod, "k"));
	for (int i = 0; i < 2; i++)
		CHECK(cuLaunchKernel(k, 1, 1, 1, 32, 1, 1, 0, 0, args, 0));
	CHECK(cuCtxSynchronize());
	CHECK(cuCtxDestroy_v2(ctx));
}

static void device(void)
{
	char arg[16] = {0};
	int fd = open("/dev/full", O_RDWR | O_CLOEXEC);
	for (int i = 0; i < 7; i++)
		ioctl(fd, _IOWR('F', 0x29, char[16]), arg);
	close(fd);
}

int main(int argc, char **argv)
{
	for (const char *s = argv[argc - 1]; *s; s++)
		switch (*s) {
		case 'l':
			driver();
			break;
		case 'd':
			device();
			break;
		case 'p':
			for (int i = 0; i < 9; i++)
				close(open("/etc/passwd", O_RDONLY));
			break;
		case 'f': {
			int go[2], status, bad = 0, children = 0;
			if (pipe(go))
				return 2;
			while (children < 3 && fork())
				children++;
			close(go[1]);
			if (children < 3) {
				char c;
				if (read(go[0], &c, 1))
					return 2;
				break;
			}
			while (wait(&status) > 0)
				bad |= status;
			return !!bad;
		}
		}
	return 0;
}
