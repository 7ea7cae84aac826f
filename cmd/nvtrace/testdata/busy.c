// busy: threads load images and call the driver, and children are forked that do,
// at full speed; nothing is a GPU's. busy LOADS [FILE]: each of the threads loads that many
// images at least, until there is such a file. It writes its process id to the file "ready",
// and waits for the file "go". It prints how many calls there were, and how many failed, and
// ends with status 7.
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, CALLS = 20 };

static int (*load)(void **module, const void *image);
static int (*init)(unsigned flags);
static long least;
static const char *until; // NULL: at once
static atomic_long loads, inits, failed;

static int ended(void) { return !until || !access(until, F_OK); }

static sigset_t mask; // of all threads

static int mask_changed(void) {
  sigset_t now;
  pthread_sigmask(0, 0, &now);
  return memcmp(&now, &mask, 8) != 0;
}

static void *work(void *number) {
  char image[64];
  void *module;
  for (long i = 0; i < least || !ended(); i++) {
    snprintf(image, sizeof image, "// PTX %ld.%ld\n.version 7.0\n.target sm_80\n", (long)number, i);
    failed += load(&module, image) != 0;
    loads++;
    for (int k = 0; k < CALLS; k++) failed += init(0) != 0;
    inits += CALLS;
    failed += mask_changed();
  }
  return 0;
}

int main(int argc, char **argv) {
  void *driver = argc >= 2 ? dlopen("libcuda.so.1", RTLD_NOW) : 0;
  if (!driver || !(load = dlsym(driver, "cuModuleLoadData")) || !(init = dlsym(driver, "cuInit"))) return puts("no driver"), 3;
  FILE *f = fopen("pid", "w");
  fprintf(f, "%d", getpid());
  fclose(f);
  rename("pid", "ready");
  while (access("go", F_OK)) usleep(2000);
  least = atol(argv[1]);
  sigaddset(&mask, SIGUSR2);
  pthread_sigmask(SIG_SETMASK, &mask, 0);
  until = argv[2];
  pthread_t t[THREADS];
  for (long i = 0; i < THREADS; i++) pthread_create(&t[i], 0, work, (void *)i);
  for (int i = 0; i < 10 || !ended(); i++) {
    pid_t child = fork();
    if (child == 0) {
      void *module;
      _exit((load(&module, "// PTX\n.version 7.0\n.target sm_80\n") != 0) + (init(0) != 0));
    }
    int status = -1;
    failed += waitpid(child, &status, 0) != child || status != 0 || mask_changed();
    loads++;
    inits++;
    usleep(1000);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(t[i], 0);
  fprintf(stderr, "loads %ld, inits %ld\n", loads, inits);
  printf("failed: %ld\n", failed);
  return 7;
}
