// iolog: an LD_PRELOAD library that writes down the ioctls on /dev/nvidia* that
// a program makes through libc: an independent count to hold a recording
// against. Each line: pid tid request(hex) result. The file is named by IOLOG.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int is_nvidia(int fd) {
  char link[64], path[256];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n <= 0) return 0;
  path[n] = 0;
  return strncmp(path, "/dev/nvidia", 11) == 0;
}

int ioctl(int fd, unsigned long request, ...) {
  static int log = -1;
  va_list ap;
  va_start(ap, request);
  void *arg = va_arg(ap, void *);
  va_end(ap);
  int e0 = errno, nv = is_nvidia(fd);
  errno = e0;
  long ret = syscall(SYS_ioctl, fd, request, arg);
  int e1 = errno;
  if (nv) {
    if (log < 0) {
      const char *name = getenv("IOLOG");
      if (name) log = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    }
    char line[128];
    int n = snprintf(line, sizeof line, "%d %ld %lx %ld\n", getpid(), syscall(SYS_gettid), request & 0xffffffff,
                     ret < 0 ? -(long)e1 : ret);
    if (log >= 0 && write(log, line, n) != n) abort();
  }
  errno = e1;
  return ret;
}
