// scribble SEED ROUNDS: a program that writes into all memory that it shares with nvtrace, between and during calls
// that are probed: random numbers, and those at which sums and signs go over. It prints how many words of
// how many mappings it has written, and ends with status 3.
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static uint64_t state;
static uint64_t next(void) {
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

__attribute__((noinline)) long hit(long x, const char *text) {
  __asm__ volatile("" : "+r"(x)::"memory");
  if (x > 1 && text[0]) usleep(0);
  return x + text[0];
}

static uint64_t odd(void) {
  static const uint64_t list[] = {0, 1, 4, 0x7fffffff, 0x80000000, 0xffffffff, 1ul << 32, 1ul << 63, ~0ul >> 1, ~0ul, 0xaaaaaaaaaaaaaaaa, 8, 64, 4096};
  uint64_t r = next();
  return r & 1 ? next() : list[(r >> 1) % (sizeof list / sizeof *list)];
}

// Others call meanwhile. They wait where it has locked a map, so there are few calls.
static void *calls(void *arg) {
  int fd = open("/dev/null", O_RDWR);
  char params[32] = "";
  for (int i = 0; i < 4; i++) {
    hit(i * 100, "text");
    ioctl(fd, _IOWR('F', 0x2a, char[32]), params);
  }
  close(fd);
  return 0;
}

int main(int argc, char **argv) {
  struct { uint64_t from, to; } maps[256];
  int n = 0, rounds = atoi(argv[2]);
  char line[512];
  unsigned long words = 0;
  pthread_t t[2];
  state = strtoull(argv[1], 0, 0) * 0x9e3779b97f4a7c15 + 1;
  for (int i = 0; i < 100; i++) hit(i, "some text"); // whatever comes late is mapped
  FILE *f = fopen("/proc/self/maps", "r");
  while (f && fgets(line, sizeof line, f) && n < 256)
    if (strstr(line, " rw-s ") && strstr(line, "nvtrace") && sscanf(line, "%lx-%lx", &maps[n].from, &maps[n].to) == 2) n++;
  fclose(f);
  for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, calls, 0);
  for (int r = 0; r < rounds && n; r++) {
    uint64_t *p = (uint64_t *)maps[next() % n].from, size;
    for (int i = 0; i < n; i++)
      if (maps[i].from == (uint64_t)p) size = (maps[i].to - maps[i].from) / 8;
    switch (next() % 4) {
    case 0: // all words that are not 0, or that are 4
      for (uint64_t i = 0, v = odd(); i < size && i < 1 << 19; i++)
        if (p[i] && (r & 1 || p[i] == 4)) p[i] = v, words++;
      break;
    case 1: // a piece
      for (uint64_t i = next() % size, k = 0; i < size && k < 4096; i++, k++) p[i] = odd(), words++;
      break;
    case 2: // words near the beginning
      for (int k = 0; k < 64; k++) p[next() % (size < 4096 ? size : 4096)] = odd(), words++;
      break;
    default: // or anywhere
      for (int k = 0; k < 256; k++) p[next() % size] = odd(), words++;
    }
    hit(r, "some text");
  }
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
  printf("%lu words of %d mappings\n", words, n);
  fflush(stdout);
  _exit(3);
}
