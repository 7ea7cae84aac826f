// A program that makes system calls in all ways that matter to who reroutes them: by threads,
// in children of fork and of posix_spawn, in signal handlers, interrupted ones, and ones in
// which a thread is cancelled. It checks itself.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static void check(bool ok, const char *what)
{
	if (!ok) {
		printf("%s is wrong\n", what);
		exit(1);
	}
}

static int zero;

static void *work(void *)
{
	char b[64];
	for (int i = 0; i < 2000; i++) {
		check(read(zero, b, 10) == 10, "read");
		getppid();
		errno = 0;
		check(read(-1, b, 10) == -1 && errno == EBADF, "errno");
	}
	return nullptr;
}

static volatile int handled, tells;

static void handler(int)
{
	char b;
	handled += read(zero, &b, 1);
	if (tells)
		check(write(tells, "x", 1) == 1, "write");
}

// asleep waits until a process, or a thread, sleeps in a call.
static void asleep(pid_t p)
{
	char name[64], line[512], *state;
	sprintf(name, "/proc/%d/stat", p);
	for (;; usleep(1000)) {
		int fd = open(name, O_RDONLY);
		ssize_t n = pread(fd, line, sizeof line - 1, 0);
		close(fd);
		line[n < 0 ? 0 : n] = 0;
		if ((state = strrchr(line, ')')) && state[2] == 'S')
			return;
	}
}

static bool cleaned;
struct cleaner {
	~cleaner() { cleaned = true; }
};

static int ends[2];
static volatile pid_t in;

static void *wait_in_read(void *)
{
	cleaner c;
	char b;
	in = syscall(SYS_gettid);
	while (read(ends[0], &b, 1) == 1)
		;
	return nullptr;
}

// Makes the system call itself, with a frame of its own.
extern "C" __attribute__((noinline)) long asks(void)
{
	long r;
	volatile long kept = 0; // so that it has a frame
	__asm__ volatile("mov $104,%%eax\n\tsyscall" : "=a"(r) : : "rcx", "r11", "memory"); // getgid
	return r + kept;
}

extern "C" __attribute__((noinline)) long asked(void)
{
	long r = 0;
	for (int i = 0; i < 3; i++) // the first one stops
		r += asks();
	return r + 1;
}

int main(int argc, char **argv)
{
	asked();
	if (argc > 1) // posix_spawn's
		return getppid() ? 7 : 8;
	zero = open("/dev/zero", O_RDONLY);
	pthread_t t[4];
	for (auto &x : t)
		pthread_create(&x, nullptr, work, nullptr);
	for (auto &x : t)
		pthread_join(x, nullptr);

	pid_t child = fork();
	if (!child) {
		work(nullptr);
		_exit(3);
	}
	int status;
	check(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3, "the child");

	char *args[] = {argv[0], (char *)"spawned", nullptr};
	check(!posix_spawn(&child, argv[0], nullptr, nullptr, args, environ), "posix_spawn");
	check(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7, "what was spawned");

	// A read that a signal interrupts, whose handler reads, too; and one that is restarted.
	check(!pipe(ends), "pipe");
	struct sigaction a = {};
	a.sa_handler = handler;
	sigaction(SIGALRM, &a, nullptr);
	char b;
	pid_t me = getpid();
	if (!(child = fork())) {
		asleep(me);
		_exit(kill(me, SIGALRM) != 0);
	}
	check(read(ends[0], &b, 1) == -1 && errno == EINTR && handled == 1, "an interrupted read");
	check(waitpid(child, &status, 0) == child && status == 0, "who interrupted it");
	a.sa_flags = SA_RESTART;
	sigaction(SIGALRM, &a, nullptr);
	int told[2];
	check(!pipe(told), "pipe");
	tells = told[1];
	if (!(child = fork())) {
		asleep(me);
		kill(me, SIGALRM);
		check(read(told[0], &b, 1) == 1, "the signal's end");
		asleep(me);
		check(write(ends[1], "x", 1) == 1, "write");
		_exit(0);
	}
	check(read(ends[0], &b, 1) == 1 && b == 'x' && handled == 2, "a restarted read");
	check(waitpid(child, &status, 0) == child && status == 0, "who let it go on");

	// A thread that waits in a call and is cancelled: its destructors run.
	pthread_t w;
	pthread_create(&w, nullptr, wait_in_read, nullptr);
	while (!in)
		;
	asleep(in);
	pthread_cancel(w);
	void *result;
	pthread_join(w, &result);
	check(result == PTHREAD_CANCELED && cleaned, "cancelling");

	printf("uid %d, of syscall() %ld\nok\n", getuid(), syscall(SYS_getuid));
	return 0;
}
