// many: processes that use devices, with a tracer that hooks a function of theirs at different
// moments. Each letter of the argument is a step:
//   h  the hook is asked for, by an ioctl on descriptor -2
//   d  a device is opened, used and closed
//   k  a device is opened and kept; u uses what is kept
//   c  what is kept is closed
//   p  other files are opened and closed, which soon stops no more
//   a  the function is called, which makes ioctls on a device of its own
//   s  three programs, one after the other, do the rest
//   x  three programs at once do the rest
//   f  three forked children at once do the rest
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int kept = -1;

static void use(int fd, int n)
{
	char arg[16] = {0};
	for (int i = 0; i < n; i++)
		ioctl(fd, _IOWR('F', 0x29, char[16]), arg);
}

__attribute__((noinline)) long api(long n, const char *name)
{
	int fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
	use(fd, n);
	close(fd);
	return n * 2;
}

static void device(void)
{
	int fd = open("/dev/full", O_RDWR | O_CLOEXEC);
	use(fd, 3);
	int other = dup(fd);
	use(other, 2);
	close(fd);
	use(other, 2);
	close(other);
}

static void step(char what)
{
	switch (what) {
	case 'h':
		syscall(SYS_ioctl, 0xfffffffeu, 0x4d41524bu, api);
		break;
	case 'a':
		api(4, "many");
		break;
	case 'd':
		device();
		break;
	case 'p':
		for (int i = 0; i < 9; i++)
			close(open("/etc/passwd", O_RDONLY));
		break;
	case 'k':
		kept = open("/dev/zero", O_RDWR);
		/* fall through */
	case 'u':
		use(kept, 5);
		break;
	case 'c':
		close(kept);
		kept = open("/etc/passwd", O_RDONLY); // the same number
		use(kept, 2);
		close(kept);
		kept = -1;
	}
}

// Three others do the rest.
static void others(char how, const char *rest)
{
	char number[16] = {'0' + kept / 10 % 10, '0' + kept % 10}, gate[2];
	int go[2], status, bad = 0;
	if (pipe2(go, O_CLOEXEC))
		exit(2);
	for (int i = 0; i < 3; i++) {
		if (fork()) {
			if (how == 's') {
				wait(&status);
				bad |= status;
			}
			continue;
		}
		close(go[1]);
		if (how != 's' && read(go[0], gate, 1) != 0)
			_exit(2);
		close(go[0]);
		if (how != 'f') {
			execl("/proc/self/exe", "many", rest, kept < 0 ? (char *)0 : number, (char *)0);
			_exit(2);
		}
		while (*rest)
			step(*rest++);
		_exit(0);
	}
	close(go[0]);
	close(go[1]);
	while (wait(&status) > 0)
		bad |= status;
	exit(!!bad);
}

int main(int argc, char **argv)
{
	if (argc > 2)
		kept = atoi(argv[2]);
	for (const char *s = argv[1]; *s; s++) {
		if (*s == 's' || *s == 'x' || *s == 'f')
			others(*s, s + 1);
		step(*s);
	}
	return 0;
}
