// Makes system calls through libc, each of which must do what it says.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define WANT(x) if (!(x)) { printf("line %d: %s\n", __LINE__, #x); return 1; }

int main(int argc, char **argv)
{
	struct stat a, b;
	struct winsize w;

	(void)argc;
	for (int i = 0; i < 50; i++) {
		int fd = open(argv[0], O_RDONLY | O_CLOEXEC);
		WANT(fd >= 0 && fstat(fd, &a) == 0);
		WANT(ioctl(fd, TIOCGWINSZ, &w) < 0); // the first one finds all others
		int two = dup(fd), three = fcntl(fd, F_DUPFD_CLOEXEC, 100), four = dup2(fd, 90), five = dup3(fd, 91, O_CLOEXEC);
		WANT(two >= 0 && three >= 100 && four == 90 && five == 91);
		int all[] = {two, three, four, five};
		for (int j = 0; j < 4; j++) {
			char *m = mmap(0, 4096, PROT_READ, MAP_PRIVATE, all[j], 0);
			WANT(m != MAP_FAILED && memcmp(m, "\177ELF", 4) == 0 && munmap(m, 4096) == 0);
			WANT(fstat(all[j], &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev);
			WANT(close(all[j]) == 0 && fstat(all[j], &b) < 0);
		}
		WANT(fcntl(fd, F_GETFD) == FD_CLOEXEC && close(fd) == 0 && close(fd) < 0);
	}
	puts("ok");
	return 0;
}
