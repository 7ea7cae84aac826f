// victim: makes device calls on memory devices (see main_test.go), then ends
// as its arguments say: "exit N", "signal N", "sleep SECONDS".
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

int main(int argc, char **argv) {
  char arg[32] = {0};
  int fd = open("/dev/full", O_RDWR);
  ioctl(fd, _IOWR('F', 0x2a, char[32]), arg);
  ioctl(fd, _IOWR('F', 0x29, char[16]), arg);
  close(fd);
  puts("victim's stdout");
  fflush(stdout);
  if (argc > 2 && !strcmp(argv[1], "exit")) return atoi(argv[2]);
  if (argc > 2 && !strcmp(argv[1], "signal")) kill(getpid(), atoi(argv[2])), sleep(1);
  if (argc > 2 && !strcmp(argv[1], "sleep")) sleep(atoi(argv[2]));
  return 0;
}
