// hammer: 8 threads make 1000 calls of NV_ESC_RM_CONTROL each on /dev/full, which
// plays nvidiactl. The parameters end where a page does; behind it nothing is
// mapped. Each tenth call has parameters that are not mapped, or half so. Each
// thread prints what must have been recorded: calls, parameters read whole, the
// sum of their first bytes, and calls whose parameters were not there.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static int fd;

static void *run(void *id) {
  unsigned seed = (uintptr_t)id, sum = 0, whole = 0, missing = 0;
  char *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(page + 4096, 4096);
  unsigned char *params = (unsigned char *)page + 4096 - 24;
  for (int i = 0; i < 1000; i++) {
    struct {
      uint32_t client, object, cmd, flags;
      uint64_t params;
      uint32_t size, status;
    } arg = {1, 2, 0x20800102, 0, (uintptr_t)params, 24, 0};
    params[0] = seed = (seed * 1103515245 + 12345) >> 8;
    if (i % 10 == 9) {
      arg.params = i % 20 == 9 ? 8 : (uintptr_t)params + 12;
      missing++;
    } else {
      whole++;
      sum += params[0];
    }
    ioctl(fd, _IOWR('F', 0x2a, char[32]), &arg);
  }
  printf("tid %ld calls 1000 whole %u sum %u missing %u\n", syscall(SYS_gettid), whole, sum, missing);
  return 0;
}

int main(void) {
  pthread_t t[8];
  fd = open("/dev/full", O_RDWR);
  for (long i = 0; i < 8; i++) pthread_create(&t[i], 0, run, (void *)i);
  for (int i = 0; i < 8; i++) pthread_join(t[i], 0);
  return 0;
}
