// reuse: gives the numbers of "device" descriptors other meanings, calls the
// kernel from 32-bit code, and calls execve from a second thread. It prints what
// a recorder must have seen, as fds.c does.
// /dev/full plays nvidiactl, /dev/zero nvidia0.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define REQ _IOWR('F', 0x2a, char[32])

static char arg[32];
static char keep[16], gone[16];

static int say(const char *what, int fd, long ret, const char *how) {
  printf("%d %s %d = %ld%s\n", getpid(), what, fd, ret < 0 ? -(long)errno : ret, how);
  return ret;
}

static int xopen(const char *path, int flags) {
  int fd = open(path, flags);
  return say("open", fd, fd, "");
}

static void xioctl(int fd) { say("ioctl", fd, ioctl(fd, REQ, arg), ""); }

// call32 makes a call as a 32-bit program does, where the kernel lets it.
static int call32(int nr, long a, long b, long c) {
  int ret = -ENOSYS;
#ifdef __x86_64__
  __asm__ volatile("int $0x80" : "=a"(ret) : "a"(nr), "b"(a), "c"(b), "d"(c) : "memory", "r8", "r9", "r10", "r11");
#endif
  return ret;
}

static int has32(void) {
  int st;
  pid_t p = fork();
  if (p == 0) {
    signal(SIGSEGV, SIG_DFL);
    _exit(call32(20, 0, 0, 0) == getpid() ? 0 : 1);  // getpid
  }
  return waitpid(p, &st, 0) == p && st == 0;
}

static void *execer(void *self) {
  execl("/proc/self/exe", self, keep, gone, (char *)0);
  exit(1);
}

int main(int argc, char **argv) {
  setvbuf(stdout, 0, _IOLBF, 0);
  if (argc > 1) {
    xioctl(atoi(argv[1]));
    ioctl(atoi(argv[2]), REQ, arg);  // EBADF
    return 7;
  }
  int null = open("/dev/null", O_RDWR);
  int ctl = xopen("/dev/full", O_RDWR);
  xioctl(ctl);
  // Something else takes the device's place.
  dup2(null, ctl);
  printf("%d close %d = 0 implicit\n", getpid(), ctl);
  ioctl(ctl, REQ, arg);  // not a device any more
  close(ctl);            // nor this
  ctl = xopen("/dev/full", O_RDWR);
  xioctl(ctl);
  say("close", ctl, close(ctl), "");
  if (dup(null) != ctl) return 2;
  ioctl(ctl, REQ, arg);
  close(ctl);

  if (has32()) {
    ctl = xopen("/dev/full", O_RDWR);
    char *low = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    if (low == MAP_FAILED) return 3;
    int r = call32(54, ctl, REQ, (long)low);
    printf("%d ioctl %d = %d compat\n", getpid(), ctl, r);
    r = call32(41, ctl, 0, 0);
    printf("%d dup %d = %d compat\n", getpid(), ctl, r);
    printf("%d close %d = %d compat\n", getpid(), r, call32(6, r, 0, 0));
    r = call32(6, ctl, 0, 0);
    printf("%d close %d = %d compat\n", getpid(), ctl, r);
    if (dup(null) != ctl) return 4;
    ioctl(ctl, REQ, arg);  // not a device any more
    strcpy(low, "/dev/full");
    r = call32(5, (long)low, O_RDWR, 0);
    printf("%d open %d = %d compat\n", getpid(), r, r);
    say("close", r, close(r), "");
  }

  int a = xopen("/dev/zero", O_RDWR), b = xopen("/dev/full", O_RDWR | O_CLOEXEC);
  sprintf(keep, "%d", a);
  sprintf(gone, "%d", b);
  xioctl(a);
  printf("%d close %d = 0 implicit\n", getpid(), b);
  pthread_t t;
  if (pthread_create(&t, 0, execer, argv[0])) return 1;
  pthread_join(t, 0);
  return 1;
}
