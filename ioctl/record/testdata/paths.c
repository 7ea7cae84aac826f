// paths: opens each path of argv[2...] as argv[1] says, once the agent makes
// opens of others without a stop; makes, closes and maps descriptors of devices
// and of other files.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char file[] = "/proc/self/exe";
static char params[64];

static void descriptors(void)
{
	int dev = open("/dev/zero", O_RDWR), other = open(file, O_RDONLY);
	ioctl(dev, _IOWR('F', 0xc9, char[4]), params);
	for (int i = 0; i < 3; i++) {
		void *m = mmap(0, 4096, PROT_READ, MAP_PRIVATE, other, 0);
		munmap(m, 4096);
		m = mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, other, 0);
		munmap(m, 4096);
		m = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE, dev, 4096);
		munmap(m, 8192);
		m = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE, 99, 0);
		int d = dup(dev), e = dup(other), f = fcntl(dev, F_DUPFD_CLOEXEC, 40), g = fcntl(other, F_DUPFD, 40);
		fcntl(g, F_SETFD, FD_CLOEXEC);
		dup2(other, 60); // dull over nothing
		dup2(dev, 60);   // device over dull
		dup2(other, 60); // dull over device
		dup3(dev, 61, O_CLOEXEC);
		dup2(61, 61);
		ioctl(61, _IOWR('F', 0xc9, char[4]), params);
		close(60), close(61), close(d), close(e), close(f), close(g), close(98);
		if (dup(98) >= 0 || mmap(0, 0, PROT_READ, MAP_PRIVATE, other, 0) != MAP_FAILED)
			abort();
	}
	close(dev), close(other);
}

int main(int argc, char **argv)
{
	if (!strcmp(argv[1], "bench")) { // ns of open and close, and of map and unmap, of a file that is no device's
		struct timespec b, e;
		long n = atol(argv[2]);
		int dev = open("/dev/zero", O_RDWR);
		ioctl(dev, _IOWR('F', 0xc9, char[4]), params);
		for (int what = 0; what < 2; what++) {
			int fd = open(file, O_RDONLY);
			for (long i = 0; i < n + 50; i++) {
				if (i == 50)
					clock_gettime(CLOCK_MONOTONIC, &b);
				if (!what)
					close(open(file, O_RDONLY));
				else
					munmap(mmap(0, 4096, PROT_READ, MAP_PRIVATE, fd, 0), 4096);
			}
			clock_gettime(CLOCK_MONOTONIC, &e);
			printf("%.1f ", ((e.tv_sec - b.tv_sec) * 1e9 + e.tv_nsec - b.tv_nsec) / n);
		}
		return 0;
	}
	for (int i = 0; i < 40; i++)
		close(open(file, O_RDONLY));
	char *end = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(end + 4096, 4096);
	for (int round = 0; round < 2; round++) {
		for (int i = 2; i < argc; i++) {
			close(open(argv[i], O_RDONLY));
			close(openat(AT_FDCWD, argv[i], O_RDONLY));
			char *at = end + 4095 - strlen(argv[i]); // up to the end of memory
			close(open(strcpy(at, argv[i]), O_RDONLY));
			at[strlen(at)] = 'x';
			if (open(at, O_RDONLY) >= 0)
				abort();
		}
		if (open((char *)1, O_RDONLY) >= 0)
			abort();
		descriptors();
		if (!round && !fork()) {
			for (int i = 0; i < 30; i++)
				descriptors();
			_exit(0);
		}
		while (!round && wait(0) < 0)
			;
		if (!round && !vfork()) {
			close(open(file, O_RDONLY));
			close(open("/dev/zero", O_RDONLY));
			_exit(0);
		}
		while (!round && wait(0) < 0)
			;
	}
	return 0;
}
