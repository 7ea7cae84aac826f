// survivor: loads images and makes ioctls on a memory device (see main_test.go),
// writes its process id to the file "ready", and waits for the file "go". Then it
// does the same again many times, and prints what failed. It ends with status 7.
// It calls nothing in the meantime that nvtrace stops at.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

static int (*load)(void **module, const void *image);

static int no_calls(int fd, int n) {
  char arg[32] = {0};
  int failed = 0;
  for (int i = 0; i < n; i++) {
    errno = 0;
    ioctl(fd, _IOWR('F', 0x2a, char[32]), arg);
    failed += errno == ENOSYS;
  }
  return failed;
}

// no_loads loads n images, each another one.
static int no_loads(int n) {
  static int number;
  char image[64];
  void *module;
  int failed = 0;
  for (int i = 0; i < n; i++) {
    snprintf(image, sizeof image, "// PTX %d\n.version 7.0\n.target sm_80\n", number++);
    failed += load(&module, image) != 0;
  }
  return failed;
}

static void on_term(int sig) {
  static const char said[] = "SIGTERM\n";
  if (write(1, said, sizeof said - 1) < 0) _exit(9);
}

int main(void) {
  signal(SIGTERM, on_term);
  setvbuf(stdout, 0, _IOLBF, 0);
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver || !(load = dlsym(driver, "cuModuleLoadData"))) return puts("no driver"), 3;
  int fd = open("/dev/full", O_RDWR);
  no_calls(fd, 20);
  no_loads(3);
  FILE *f = fopen("pid", "w");
  fprintf(f, "%d", getpid());
  fclose(f);
  rename("pid", "ready");
  while (access("go", F_OK)) usleep(2000);
  printf("ioctls that failed: %d\n", no_calls(fd, 50000));
  printf("loads that failed: %d\n", no_loads(100));
  printf("open: %s\n", open("/dev/null", O_RDWR) < 0 ? strerror(errno) : "ok");
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) _exit(no_loads(3));
  int status = -1;
  waitpid(child, &status, 0);
  printf("child: %#x\n", status);
  return 7;
}
