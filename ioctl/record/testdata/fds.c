// fds: does to descriptors of "devices" what programs do, and prints what a
// recorder must have seen, one line an event: NAME fd [request] = result.
// /dev/full plays nvidiactl, /dev/zero nvidia0, /dev/random nvidia-uvm.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define REQ _IOWR('F', 0x2a, char[32])

static char arg[32];

static void say(const char *what, int fd, long ret) {
  printf("%d %s %d = %ld\n", getpid(), what, fd, ret);
}

static int xopen(const char *path, int flags) {
  int fd = open(path, flags);
  say("open", fd, fd < 0 ? -errno : fd);
  return fd;
}

static void xioctl(int fd) {
  int r = ioctl(fd, REQ, arg);
  say("ioctl", fd, r < 0 ? -errno : r);
}

static void xclose(int fd) {
  int r = close(fd);
  say("close", fd, r < 0 ? -errno : r);
}

static int sendfd(int sock, int fd) {
  char c = 'x', ctl[CMSG_SPACE(sizeof fd)];
  struct iovec iov = {&c, 1};
  struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = sizeof ctl};
  struct cmsghdr *h = CMSG_FIRSTHDR(&m);
  h->cmsg_level = SOL_SOCKET, h->cmsg_type = SCM_RIGHTS, h->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(h), &fd, sizeof fd);
  return sendmsg(sock, &m, 0);
}

static int recvfd(int sock) {
  int fd = -1;
  char c, ctl[CMSG_SPACE(sizeof fd)];
  struct iovec iov = {&c, 1};
  struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = sizeof ctl};
  if (recvmsg(sock, &m, 0) < 0) return -1;
  memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
  return fd;
}

static void *thread(void *p) {
  xioctl((int)(long)p);
  return 0;
}

int main(int argc, char **argv) {
  setvbuf(stdout, 0, _IOLBF, 0);
  if (argc > 1) {  // after exec: argv[1] is a descriptor that stayed, argv[2] one that did not
    xioctl(atoi(argv[1]));
    ioctl(atoi(argv[2]), REQ, arg);  // EBADF on no device: not an event
    return 7;
  }
  ioctl(0, REQ, arg);  // not a device
  int ctl = xopen("/dev/full", O_RDWR);
  xioctl(ctl);
  int gpu = xopen("/dev/zero", O_RDWR | O_CLOEXEC);
  int d = dup(ctl);
  say("dup", ctl, d);
  xioctl(d);
  xclose(ctl);
  xioctl(d);
  int f = fcntl(d, F_DUPFD_CLOEXEC, 40);
  say("dup", d, f);
  // dup2 over an open device ends that descriptor.
  int g = dup2(d, gpu);
  printf("%d close %d = 0 implicit\n", getpid(), gpu);
  say("dup", d, g);
  xioctl(g);
  int zero = xopen("/dev/zero", O_RDWR);
  void *p = mmap(0, 8192, PROT_READ, MAP_PRIVATE, zero, 4096);
  printf("%d mmap %d = 8192 4096 %s\n", getpid(), zero, p == MAP_FAILED ? "failed" : "ok");
  mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pthread_t t;
  pthread_create(&t, 0, thread, (void *)(long)zero);
  pthread_join(t, 0);
  fflush(stdout);

  int sock[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sock)) return 1;
  pid_t child = fork();
  if (child == 0) {
    xclose(d);
    int uvm = xopen("/dev/random", O_RDWR);
    sendfd(sock[1], uvm);
    xclose(uvm);
    _exit(3);
  }
  waitpid(child, 0, 0);
  int got = recvfd(sock[0]);
  printf("%d dup %d = %d implicit\n", getpid(), got, got);
  xioctl(got);
  xioctl(d);  // the child closed its own copy only
#ifdef SYS_close_range
  if (syscall(SYS_close_range, got, got, 0) == 0)
    say("close", got, 0);
  else
    xclose(got);
#endif
  // The exec closes f (close-on-exec) and keeps d.
  char keep[16], gone[16];
  sprintf(keep, "%d", d);
  sprintf(gone, "%d", f);
  printf("%d close %d = 0 implicit\n", getpid(), f);
  execl("/proc/self/exe", argv[0], keep, gone, (char *)0);
  return 1;
}
