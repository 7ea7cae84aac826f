// loop: 20,000 calls of NV_ESC_RM_CONTROL with 64 bytes of parameters on
// /dev/full, which plays nvidiactl.
#include <fcntl.h>
#include <stdint.h>
#include <sys/ioctl.h>

int main(void) {
  static char params[64];
  struct {
    uint32_t client, object, cmd, flags;
    uint64_t params;
    uint32_t size, status;
  } arg = {1, 2, 0x20800102, 0, (uintptr_t)params, sizeof params, 0};
  int fd = open("/dev/full", O_RDWR);
  for (int i = 0; i < 20000; i++) ioctl(fd, _IOWR('F', 0x2a, char[32]), &arg);
  return 0;
}
