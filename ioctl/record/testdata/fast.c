// fast: makes ioctls on /dev/full, /dev/random and /dev/zero, which play
// nvidiactl, nvidia-uvm and nvidia0, in the way that argv[1] names. All buffers
// have fixed addresses (-no-pie), so that two runs give the same events.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct control {
	uint32_t client, object, cmd, flags;
	uint64_t params;
	uint32_t size, status;
};
struct alloc {
	uint32_t root, parent, object, class;
	uint64_t params, rights;
	uint32_t size, flags, status, pad;
};

#define CONTROL _IOWR('F', 0x2a, struct control)
#define ALLOC _IOWR('F', 0x2b, struct alloc)

static int ctl, uvm, gpu;
static char params[4096] __attribute__((aligned(64)));
static struct control c;
static struct alloc a;
static char big[20000];

static void control(int fd, uint32_t cmd, uint32_t size)
{
	c = (struct control){1, 2, cmd, 0, (uintptr_t)params, size, 0};
	ioctl(fd, CONTROL, &c);
}

struct lists { // NV0080_CTRL_FIFO_GET_CHANNELLIST_PARAMS
	uint32_t n, pad;
	uint64_t handles, channels;
};

static void nested(uint32_t n, void *handles, void *channels, uint32_t size)
{
	struct lists *l = (struct lists *)params;
	*l = (struct lists){n, 0, (uintptr_t)handles, (uintptr_t)channels};
	control(ctl, 0x80170d, size);
}

static void some(void)
{
	nested(3, params + 64, params + 128, 24);
	nested(3, params + 64, 0, 24);
	nested(0, params + 64, params + 128, 24);
	nested(500, big, big + 2000, 24);
	nested(2048, big, big + 8192, 24); // all that is possible
	nested(2049, big, big + 8192, 24);
	nested(1 << 30, big, big + 8192, 24);
	nested(3, params + 64, (void *)16, 24); // not there
	nested(3, params + 64, params + 128, 23);
	nested(3, params + 64, params + 128, 32);
	for (int i = 0; i < (int)sizeof params; i++)
		params[i] = i * 7;
	control(ctl, 0x20800102, 64);
	control(ctl, 0x20800102, 0);
	control(gpu, 0x20800102, 4096);
	control(ctl, 0x80170d, 24); // with a pointer inside
	c.flags = 4;
	ioctl(ctl, CONTROL, &c);
	c.params = 0;
	ioctl(ctl, CONTROL, &c);
	c.params = 16;
	c.flags = 0;
	ioctl(ctl, CONTROL, &c);
	ioctl(ctl, CONTROL, 0);
	ioctl(ctl, CONTROL, 8);
	control(ctl, 0x20800102, 1 << 30);
	a = (struct alloc){1, 2, 3, 0x80, (uintptr_t)params, 0, 56, 0, 0, 0};
	ioctl(ctl, ALLOC, &a);
	a.class = 0xdead;
	ioctl(ctl, ALLOC, &a);
	a.class = 0x41;
	a.rights = (uintptr_t)params;
	ioctl(ctl, ALLOC, &a);
	ioctl(ctl, _IOWR('F', 0x29, char[16]), params);
	ioctl(ctl, _IOWR('F', 0x29, char[20]), params);
	ioctl(ctl, _IOWR('F', 0xd2, char[72]), params);
	ioctl(gpu, _IOWR('F', 0xc9, char[4]), params);
	ioctl(gpu, _IOWR('F', 0xfe, char[40]), params);
	ioctl(uvm, 0x21, big);
	ioctl(uvm, 0x17, params);
	ioctl(uvm, 0x30000001, params);
	ioctl(uvm, 0xfe, params);
	ioctl(ctl, TIOCGWINSZ, params);
	ioctl(ctl, 0x1234, params);
	ioctl(0, CONTROL, &c);
	ioctl(99, CONTROL, &c);
}

static volatile long made; // by the signal handler, also within signal(), a leaf to the compiler
static long returned;
static sigjmp_buf env;
static int leave;

// The next alarm comes some time after the handler of the last: with a periodic timer, a slow
// machine has one pending whenever siglongjmp unblocks it, which happens on the handler's stack.
static void alarm_again(void)
{
	struct itimerval it = {{0, 0}, {0, 1000}};
	setitimer(ITIMER_REAL, &it, 0);
}

static void onalarm(int s)
{
	struct control x = {1, 2, 0x20800102, 0, (uintptr_t)params, 8, 0};
	made++;
	ioctl(uvm, 0x17, params);
	ioctl(ctl, CONTROL, &x);
	alarm_again();
	if (leave && made % 3 == 0)
		siglongjmp(env, 1);
}

static void *hammer(void *n)
{
	struct control x = {1, 2, 0x20800102, 0, (uintptr_t)params, 64, 0};
	for (long i = 0; i < (long)n; i++)
		ioctl(ctl, CONTROL, &x);
	printf("tid %ld calls %ld\n", syscall(SYS_gettid), (long)n);
	return 0;
}

static pthread_barrier_t gate;

static void *together(void *n)
{
	pthread_barrier_wait(&gate);
	return hammer(n);
}

// The C library's open and close are points of cancellation: from glibc 2.41 on, one instruction
// makes the system calls of all of these, whatever their numbers, and the agent leaves it alone.
static int open_here(const char *path)
{
	long fd;
	asm volatile("mov %1, %%eax\n\tsyscall" : "=&a"(fd) : "i"(SYS_openat), "D"(AT_FDCWD), "S"(path), "d"(O_RDWR) : "rcx", "r11", "memory");
	return fd;
}

static void close_here(int fd)
{
	long r;
	asm volatile("mov %1, %%eax\n\tsyscall" : "=&a"(r) : "i"(SYS_close), "D"(fd) : "rcx", "r11", "memory");
}

static void *churn(void *n)
{
	for (int i = 0; i < (long)n; i++) {
		int fd = open_here(i % 2 ? "/dev/full" : "/dev/zero");
		struct control x = {1, 2, i % 2, 0, (uintptr_t)params, 8, 0};
		ioctl(fd, CONTROL, &x);
		if (i % 5 == 0) {
			int d = dup2(ctl, fd);
			x.cmd = 1;
			ioctl(d, CONTROL, &x);
		}
		close_here(fd);
	}
	return 0;
}

static void sandbox(void)
{
	struct sock_filter f[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
	struct sock_fprog prog = {1, f};
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog))
		abort();
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	const char *how = argv[1];
	setvbuf(stdout, 0, _IOLBF, 0);
	if (!strcmp(how, "taken") && mmap((void *)0x70001000, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		abort();
	if (!strcmp(how, "sandbox"))
		sandbox();
	ctl = open("/dev/full", O_RDWR);
	uvm = open("/dev/random", O_RDWR);
	gpu = open("/dev/zero", O_RDWR);
	if (!strcmp(how, "some") || !strcmp(how, "taken")) {
		for (int i = 0; i < 3; i++)
			some();
	} else if (!strcmp(how, "threads") || !strcmp(how, "storm")) {
		int n = *how == 't' ? 64 : 4, rounds = *how == 't' ? 1 : 200;
		for (int r = 0; r < rounds; r++) {
			pthread_t t[64];
			for (int i = 0; i < n; i++)
				pthread_create(&t[i], 0, hammer, (void *)(long)(*how == 't' ? 3000 : r % 9));
			for (int i = 0; i < n; i++)
				pthread_join(t[i], 0);
		}
	} else if (!strcmp(how, "signals") || !strcmp(how, "longjmp")) {
		struct control x = {1, 2, 0x20800102, 0, (uintptr_t)params, 64, 0};
		volatile long calls = 0, done = 0;
		leave = *how == 'l';
		signal(SIGALRM, onalarm);
		ioctl(ctl, CONTROL, &x);
		if (!sigsetjmp(env, 1))
			alarm_again();
		while (made < 300) {
			calls++;
			ioctl(ctl, CONTROL, &x);
			done++;
		}
		signal(SIGALRM, SIG_IGN);
		printf("calls %ld done %ld made %ld\n", calls + 1, done + 1, made);
	} else if (!strcmp(how, "family")) {
		some();
		pid_t p = fork();
		if (!p) {
			some();
			if (!fork()) {
				control(ctl, 3, 8);
				_exit(0);
			}
			wait(0);
			execl(argv[0], argv[0], "some", (char *)0);
		}
		waitpid(p, 0, 0);
		control(ctl, 4, 8);
		if (!vfork()) {
			ioctl(ctl, CONTROL, &c);
			_exit(0);
		}
		wait(0);
		control(ctl, 5, 8);
		if (!vfork()) {
			ioctl(ctl, CONTROL, &c);
			execl(argv[0], argv[0], "some", (char *)0);
		}
		wait(0);
		control(ctl, 6, 8);
	} else if (!strcmp(how, "churn")) {
		pthread_t t[4];
		for (int i = 0; i < 4; i++)
			pthread_create(&t[i], 0, churn, (void *)300);
		for (int i = 0; i < 4; i++)
			pthread_join(t[i], 0);
	} else if (!strcmp(how, "filter") || !strcmp(how, "sandbox")) { // of its own, once the agent is there, or before
		if (*how == 'f')
			some();
		sandbox();
		some();
		char *text = (char *)((uintptr_t)ioctl & -4096ul);
		mprotect(text, 8192, PROT_READ | PROT_WRITE | PROT_EXEC);
		some();
		mprotect(text, 8192, PROT_READ | PROT_EXEC);
		some();
	} else if (!strcmp(how, "orphan")) { // the tracer dies when we say so
		struct control x = {1, 2, 0x20800102, 0, (uintptr_t)params, 64, 0};
		for (int i = 0; i < 100; i++)
			ioctl(ctl, CONTROL, &x);
		printf("ready %d\n", getpid());
		while (access(argv[2], F_OK))
			usleep(1000);
		for (int i = 0; i < 100000; i++) {
			errno = 0;
			if (ioctl(ctl, i % 3 ? CONTROL : 0x1234, &x) != -1 || errno != ENOTTY) {
				printf("call %d: %s\n", i, strerror(errno));
				return 1;
			}
		}
		printf("went on\n");
	} else if (!strcmp(how, "idle")) {
		for (int i = 0; i < 50; i++) {
			char c;
			control(ctl, 7, 8);
			if (read(0, &c, 1) != 1) // it was seen
				return 1;
		}
	} else if (!strcmp(how, "many")) { // threads at once, of which not all get a ring
		enum { many = 1900 };
		static pthread_t t[many];
		pthread_attr_t at;
		pthread_attr_init(&at);
		pthread_attr_setstacksize(&at, 65536);
		pthread_barrier_init(&gate, 0, many);
		control(ctl, 1, 8);
		for (int i = 0; i < many; i++)
			if (pthread_create(&t[i], &at, together, (void *)10))
				abort();
		for (int i = 0; i < many; i++)
			pthread_join(t[i], 0);
	} else if (!strcmp(how, "garbage")) { // written into the memory that is shared with the tracer
		pthread_t t[4];
		control(ctl, 1, 8);
		for (int i = 0; i < 4; i++)
			pthread_create(&t[i], 0, hammer, (void *)3000);
		unsigned long seed = 1;
		for (int i = 0; i < 400000; i++) {
			seed = seed * 6364136223846793005ul + 1442695040888963407ul;
			unsigned long at = seed >> 40;
			char *p = i % 4 == 0 ? (char *)0x550000000000 + 0x20000 + at % 1024 : i % 4 == 1 ? (char *)0x550000000000 + at % 0x20000 : (char *)0x550000100000 + at % 0x100000;
			if (p >= (char *)0x550000001000 && p < (char *)0x550000001003)
				continue;
			*(volatile unsigned long *)((unsigned long)p & -8ul) = i % 3 ? seed : seed % 100000 * 64;
			if (i % 1000 == 0)
				usleep(10);
		}
		for (int i = 0; i < 4; i++)
			pthread_join(t[i], 0);
	} else if (!strcmp(how, "bench")) { // mean and median, ns, in windows of 50 calls
		long n = atol(argv[2]) / 50;
		double sum = 0, *w = malloc(n * sizeof *w);
		struct timespec b, e;
		control(ctl, 0x20800102, 64);
		for (long i = 0; i < n; i++) {
			clock_gettime(CLOCK_MONOTONIC, &b);
			for (int k = 0; k < 50; k++)
				if (ioctl(ctl, CONTROL, &c) != -1 || errno != ENOTTY)
					return 1;
			clock_gettime(CLOCK_MONOTONIC, &e);
			w[i] = ((e.tv_sec - b.tv_sec) * 1e9 + e.tv_nsec - b.tv_nsec) / 50;
			sum += w[i];
		}
		qsort(w, n, sizeof *w, compare);
		printf("%.1f %.1f\n", sum / n, w[n / 2]);
	}
	return 0;
}
