// unharmed: threads that compute, wait and are interrupted, each with a signal mask of its
// own. What is not as it should be is counted: registers, results of system calls, signal
// masks, signals. When it has gone through everything for a while after a line has come on
// stdin, it prints "bad N" and ends.
//
// unharmed exec: one thread, which does everything once, and executes this program again.
// unharmed load: the main thread loads libcuda.so.1 again and again until the line comes.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#if __has_include(<sys/rseq.h>)
#include <sys/rseq.h>
#endif
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static atomic_long bad;

static void failed(const char *format, ...) {
  va_list list;
  if (++bad > 20) return;
  va_start(list, format);
  vfprintf(stderr, format, list);
  va_end(list);
}

#define CHECK(ok, ...) do { if (!(ok)) failed(__VA_ARGS__); } while (0)

// Registers. The block fills all of them, lets time pass, or makes a system call, and
// counts those that have changed.
static long registers(long spins, long number) {
  long wrong;
  asm volatile(
      "push %%rbp\n push %%rbx\n"
      "mov %[number], %%rax\n"
      "movq %[spins], %%xmm15\n"
      "mov $0x0101010101010101, %%rbx\n movq %%rbx, %%xmm0\n"
      "mov $0x0202020202020202, %%rdx\n movq %%rdx, %%xmm1\n"
      "mov $0x0303030303030303, %%rsi\n movq %%rsi, %%xmm2\n"
      "mov $0x0404040404040404, %%rdi\n movq %%rdi, %%xmm3\n"
      "mov $0x0505050505050505, %%rbp\n"
      "mov $0x0606060606060606, %%r8\n"
      "mov $0x0707070707070707, %%r9\n"
      "mov $0x0808080808080808, %%r10\n"
      "mov $0x0909090909090909, %%r12\n"
      "mov $0x0a0a0a0a0a0a0a0a, %%r13\n"
      "mov $0x0b0b0b0b0b0b0b0b, %%r14\n"
      "mov $0x0c0c0c0c0c0c0c0c, %%r15\n"
      "test %%rax, %%rax\n js 1f\n"
      "syscall\n"
      "cmp $-38, %%rax\n je 9f\n" // no system call of that number: the one that is made
      "jmp 8f\n"
      "1: movq %%xmm15, %%rax\n"
      "mov $0x0d0d0d0d0d0d0d0d, %%rcx\n mov $0x0e0e0e0e0e0e0e0e, %%r11\n"
      "stc\n"
      "2: dec %%rax\n" // leaves the carry flag alone
      "jnc 8f\n"
      "jnz 2b\n"
      "mov $0x0d0d0d0d0d0d0d0d, %%rax\n cmp %%rax, %%rcx\n jne 8f\n"
      "mov $0x0e0e0e0e0e0e0e0e, %%rax\n cmp %%rax, %%r11\n jne 8f\n"
      "9: xor %%ecx, %%ecx\n"
      "mov $0x0101010101010101, %%rax\n cmp %%rax, %%rbx\n jne 8f\n movq %%xmm0, %%r11\n cmp %%rax, %%r11\n jne 8f\n"
      "mov $0x0202020202020202, %%rax\n cmp %%rax, %%rdx\n jne 8f\n movq %%xmm1, %%r11\n cmp %%rax, %%r11\n jne 8f\n"
      "mov $0x0303030303030303, %%rax\n cmp %%rax, %%rsi\n jne 8f\n movq %%xmm2, %%r11\n cmp %%rax, %%r11\n jne 8f\n"
      "mov $0x0404040404040404, %%rax\n cmp %%rax, %%rdi\n jne 8f\n movq %%xmm3, %%r11\n cmp %%rax, %%r11\n jne 8f\n"
      "mov $0x0505050505050505, %%rax\n cmp %%rax, %%rbp\n jne 8f\n"
      "mov $0x0606060606060606, %%rax\n cmp %%rax, %%r8\n jne 8f\n"
      "mov $0x0707070707070707, %%rax\n cmp %%rax, %%r9\n jne 8f\n"
      "mov $0x0808080808080808, %%rax\n cmp %%rax, %%r10\n jne 8f\n"
      "mov $0x0909090909090909, %%rax\n cmp %%rax, %%r12\n jne 8f\n"
      "mov $0x0a0a0a0a0a0a0a0a, %%rax\n cmp %%rax, %%r13\n jne 8f\n"
      "mov $0x0b0b0b0b0b0b0b0b, %%rax\n cmp %%rax, %%r14\n jne 8f\n"
      "mov $0x0c0c0c0c0c0c0c0c, %%rax\n cmp %%rax, %%r15\n jne 8f\n"
      "mov $0, %%eax\n jmp 7f\n"
      "8: mov $1, %%eax\n"
      "7: pop %%rbx\n pop %%rbp\n"
      : "=&a"(wrong)
      : [number] "c"(number), [spins] "r"(spins)
      : "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc",
        "xmm0", "xmm1", "xmm2", "xmm3", "xmm15");
  return wrong;
}

static __thread sigset_t own_mask;

static void check_mask(const char *after) {
  sigset_t now;
  pthread_sigmask(0, 0, &now);
  if (memcmp(&now, &own_mask, 8)) {
    failed("signal mask after %s: %lx instead of %lx\n", after, *(long *)&now, *(long *)&own_mask);
    pthread_sigmask(SIG_SETMASK, &own_mask, 0);
  }
}

static void on_signal(int sig) {}

static atomic_long queued, handled;
static void on_queued(int sig, siginfo_t *info, void *context) {
  handled += info->si_value.sival_int == 17;
}

static void do_registers(void) { CHECK(!registers(20000, -1), "registers\n"); }

static void do_number(void) { CHECK(!registers(0, 1000000), "registers after a system call\n"); }

static void do_results(void) {
  static __thread unsigned n;
  static __thread int pipes[2] = {-1, -1};
  if (pipes[0] < 0) CHECK(!pipe2(pipes, O_CLOEXEC), "pipe\n");
  char c = n++, d = ~c;
  long r;
  CHECK((r = write(pipes[1], &c, 1)) == 1, "write: %ld\n", r);
  CHECK((r = read(pipes[0], &d, 1)) == 1 && d == c, "read: %ld\n", r);
  CHECK((r = syscall(SYS_getpid)) == getpid(), "getpid: %ld\n", r);
  CHECK((r = lseek(pipes[0], 0, SEEK_CUR)) == -1 && errno == ESPIPE, "lseek: %ld\n", r);
  void *m = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(m != MAP_FAILED && *(long *)m == 0, "mmap: %p\n", m);
  CHECK((r = munmap(m, 8192)) == 0, "munmap: %ld\n", r);
}

static void do_ioctl(void) { // whose result a tracer that was killed may have spoiled
  static __thread int fd;
  char arg[32];
  if (!fd) fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  errno = 0;
  long r = ioctl(fd, _IOWR('F', 0x2a, char[32]), arg);
  CHECK(r == -1 && (errno == ENOTTY || errno == ENOSYS), "ioctl: %ld, %d\n", r, errno);
}

static void do_child(void) {
  static __thread int n;
  int code = ++n & 63, status = -1;
  pid_t child = fork();
  if (child == 0) {
    sigset_t now;
    sigprocmask(0, 0, &now);
    _exit(memcmp(&now, &own_mask, 8) ? 99 : code);
  }
  if (child < 0) {
    failed("fork: %d\n", errno);
    return;
  }
  pid_t r = waitpid(child, &status, 0);
  CHECK(r == child && WIFEXITED(status) && WEXITSTATUS(status) == code, "waitpid: %d of %d, %#x instead of %d\n", r, child, status, code);
}

static void do_sleep(void) {
  struct timespec t = {0, 300000};
  long r = nanosleep(&t, 0);
  CHECK(r == 0, "nanosleep: %ld, %d\n", r, errno);
}

static atomic_int gate; // a futex

static void do_futex(void) {
  int v = gate;
  struct timespec t = {0, 500000};
  long r = syscall(SYS_futex, &gate, 128, v, &t, 0, 0);
  CHECK(r == 0 || errno == EAGAIN || errno == ETIMEDOUT, "futex: %ld, %d\n", r, errno);
}

// Interrupted on purpose: by a signal that is blocked but while the call lasts.
static void do_suspend(void) {
  sigset_t open = own_mask;
  struct timespec t = {1, 0};
  sigdelset(&open, SIGURG);
  pthread_kill(pthread_self(), SIGURG);
  long r = sigsuspend(&open);
  CHECK(r == -1 && errno == EINTR, "sigsuspend: %ld, %d\n", r, errno);
  check_mask("sigsuspend");
  pthread_kill(pthread_self(), SIGURG);
  r = ppoll(0, 0, &t, &open);
  CHECK(r == -1 && errno == EINTR, "ppoll: %ld, %d\n", r, errno);
}

static void do_queue(void) {
  union sigval v = {.sival_int = 17};
  queued++;
  CHECK(!sigqueue(getpid(), SIGRTMIN + 20, v), "sigqueue: %d\n", errno);
  usleep(100);
}

// A function that a tracer may hook or stop at.
__attribute__((noinline)) long call(long (*f)(long), long x) {
  asm volatile("" ::: "memory");
  return f(x) + 1;
}

static long inner(long x) {
  do_sleep();
  return x;
}

static void do_call(void) {
  static __thread long x;
  long r = call(inner, ++x);
  CHECK(r == x + 1, "call: %ld\n", r);
}

// A restartable sequence: whatever interrupts it must lead to its abort handler, and not
// back into it when the kernel has forgotten it.
static void do_sequence(void) {
#if __has_include(<sys/rseq.h>)
  int lost = 0;
  if (!__rseq_size) return;
  char *rseq = (char *)__builtin_thread_pointer() + __rseq_offset;
  asm volatile(
      ".pushsection __rseq_cs, \"aw\"\n .balign 32\n"
      "3: .long 0, 0\n .quad 1f, 2f-1f, 4f\n .popsection\n"
      "lea 3b(%%rip), %%rax\n mov %%rax, 8(%[rseq])\n"
      "1: mov $1000000, %%ecx\n"
      "5: dec %%ecx\n jnz 5b\n"
      "cmpq $0, 8(%[rseq])\n sete %b[lost]\n"
      "2: jmp 6f\n"
      ".byte 0x0f, 0xb9, 0x3d\n .long %c[signature]\n"
      "4: xor %[lost], %[lost]\n"
      "6: movq $0, 8(%[rseq])\n"
      : [lost] "+q"(lost)
      : [rseq] "r"(rseq), [signature] "i"(RSEQ_SIG)
      : "rax", "rcx", "memory", "cc");
  CHECK(!lost, "a restartable sequence went on\n");
#endif
}

static const struct {
  const char *name;
  void (*f)(void);
} all[] = {
    {"registers", do_registers}, {"a system call", do_number}, {"results", do_results}, {"ioctl", do_ioctl},
    {"waitpid", do_child},       {"nanosleep", do_sleep},      {"futex", do_futex},     {"sigsuspend", do_suspend},
    {"sigqueue", do_queue},      {"call", do_call},            {"a sequence", do_sequence},
};
enum { N = sizeof all / sizeof *all };

static atomic_int stop;
static atomic_long rounds[N];

static void set_mask(int i) {
  sigemptyset(&own_mask);
  sigaddset(&own_mask, SIGURG);
  sigaddset(&own_mask, SIGRTMIN + 2 + i);
  if (i < N) sigaddset(&own_mask, SIGRTMIN + 20); // which interrupts sleep
  pthread_sigmask(SIG_SETMASK, &own_mask, 0);
}

static void *work(void *number) {
  long i = (long)number;
  set_mask(i);
  while (!stop) {
    all[i].f();
    check_mask(all[i].name);
    rounds[i]++;
  }
  return 0;
}

// How often to look for what must come, a millisecond apart: what does not come in ten minutes
// does not come, however busy the machine is.
enum { LOOKS = 600000 };

// Waits until all signals have been handled that were sent.
static void settle(void) {
  for (int i = 0; i < LOOKS && handled != queued; i++) usleep(1000);
  CHECK(handled == queued, "%ld of %ld signals were handled\n", handled, queued);
}

static int exec_mode(char **argv) {
  sigset_t inherited;
  pthread_sigmask(0, 0, &inherited);
  bad = atol(argv[2]);
  long generation = atol(argv[3]);
  set_mask(N);
  if (generation) CHECK(!memcmp(&inherited, &own_mask, 8), "inherited mask %lx instead of %lx\n", *(long *)&inherited, *(long *)&own_mask);
  for (int i = 0; i < N; i++) {
    all[i].f();
    check_mask(all[i].name);
  }
  settle();
  struct pollfd p = {0, POLLIN};
  if (generation == 0) printf("%d\n", getpid()), fflush(stdout);
  argv[4] = strdup(argv[4]);
  if (argv[4][0] > '0' || poll(&p, 1, 0) > 0) {
    if (argv[4][0]++ == '3') { // some more times
      printf("bad %ld\n", bad);
      return 0;
    }
  }
  char count[32], next[32];
  sprintf(count, "%ld", bad);
  sprintf(next, "%ld", generation + 1);
  execl("/proc/self/exe", argv[0], argv[1], count, next, argv[4], (char *)0);
  failed("execl: %d\n", errno);
  return 1;
}

static void load(void) {
  static int number;
  char image[64];
  void *module, *driver = dlopen("libcuda.so.1", RTLD_NOW);
  int (*init)(unsigned) = driver ? dlsym(driver, "cuInit") : 0;
  int (*load)(void **, const void *) = driver ? dlsym(driver, "cuModuleLoadData") : 0;
  if (!init || !load) {
    failed("dlopen: %s\n", dlerror());
    return;
  }
  for (int i = 0; i < 20; i++) {
    int r = init(0);
    CHECK(r == 0, "cuInit: %d\n", r);
    snprintf(image, sizeof image, "// PTX %d\n.version 7.0\n.target sm_80\n", number++);
    r = load(&module, image);
    CHECK(r == 0, "cuModuleLoadData: %d\n", r);
  }
  check_mask("loading");
  dlclose(driver);
}

int main(int argc, char **argv) {
  struct sigaction sa = {.sa_handler = on_signal}, queue = {.sa_sigaction = on_queued, .sa_flags = SA_SIGINFO | SA_RESTART};
  sigaction(SIGURG, &sa, 0);
  sigfillset(&queue.sa_mask);
  sigaction(SIGRTMIN + 20, &queue, 0);
  if (argc == 5) return exec_mode(argv);
  pthread_t t[N];
  set_mask(N);
  for (long i = 0; i < N; i++) pthread_create(&t[i], 0, work, (void *)i);
  for (int i = 0; i < N; i++)
    while (!rounds[i]) usleep(100);
  printf("%d %p\n", getpid(), call);
  fflush(stdout);
  char line[16];
  long r;
  struct pollfd p = {0, POLLIN};
  while (argc == 2 && poll(&p, 1, 0) != 1) load();
  do r = read(0, line, sizeof line);
  while (r < 0 && errno == EINTR);
  CHECK(r >= 0, "read: %ld, %d\n", r, errno);
  check_mask("read");
  if (argc == 2) load();
  for (int i = 0; i < N; i++) {
    long from = rounds[i];
    for (int k = 0; rounds[i] < from + 3 && k < LOOKS; k++) usleep(1000);
    CHECK(rounds[i] >= from + 3, "the thread of %s hangs\n", all[i].name);
  }
  stop = 1;
  for (int i = 0; i < N; i++) pthread_join(t[i], 0);
  settle();
  printf("bad %ld\n", bad);
  return 0;
}
