// ending: a thread ends, and then the process, by system calls that are not expected to return. It
// prints its pid, waits for a line, and does so.
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *thread(void *arg) {
  syscall(SYS_exit, 9);
  printf("exit has returned\n");
  return 0;
}

int main(void) {
  char line[8];
  pthread_t t;
  printf("%d\n", getpid());
  fflush(stdout);
  read(0, line, sizeof line);
  pthread_create(&t, 0, thread, 0);
  pthread_join(t, 0);
  fflush(stdout);
  syscall(SYS_exit_group, 7);
  printf("exit_group has returned\n");
  fflush(stdout);
  __builtin_trap();
}
