// A program that confines itself: it starts threads, installs a seccomp filter that allows
// nothing but what it still does, and works. What it prints and how it ends are the same whoever watches.
//
//	confined HOW ACTION THREADS [wait|fork]
//
// HOW: prctl, seccomp (the calling thread), tsync (all threads), strict, none. ACTION, what the filter does with other
// calls: kill, killthread, trap, errno, enosys. With wait it says ready when it is confined, and reads a byte; with fork a
// child makes the calls of a thread then.
//
// Each thread calls work, tiny and cuMemAlloc_v2 CALLS times before that, the main thread ROUNDS times after it, the others CALLS
// times; then all call late and late_tiny CALLS times.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ROUNDS = 200, CALLS = 20 };

int cuMemAlloc_v2(unsigned long long *p, unsigned long n);

static volatile int ready, go, done;
static volatile long sum;

__attribute__((noipa)) int tiny(int x) { return x; } // too short for a jump with what is behind it
__attribute__((noipa)) int work(int x)
{
	__asm__ volatile("");
	for (volatile int i = 0; i < 10; i++)
		x = x * 3 + i;
	return x;
}

// What is called for the first time when the program has confined itself, with an argument in memory that nobody
// has looked at before.
__attribute__((noipa)) int late_tiny(int x) { return x; }
__attribute__((noipa)) int late(int x, const char *text)
{
	__asm__ volatile("");
	for (volatile int i = 0; i < 10; i++)
		x = x * 3 + i + text[0];
	return x;
}
static char pages[CALLS * 4 * 2][4096];
static volatile int page;

static void lately(void)
{
	long s = 0;
	for (int i = 0; i < CALLS; i++) {
		char *text = pages[__sync_fetch_and_add(&page, 1)];
		strcpy(text, "text");
		s += late(i, text) + late_tiny(i);
	}
	__sync_fetch_and_add(&sum, s);
}

static void wait_for(volatile int *what, int n)
{
	for (int is; (is = *what) < n;)
		syscall(SYS_futex, what, FUTEX_WAIT_PRIVATE, is, &(struct timespec){0, 1000000}, 0, 0);
}

static void all(void)
{
	long s = 0;
	for (int i = 0; i < CALLS; i++)
		s += work(i) + tiny(i) + cuMemAlloc_v2(&(unsigned long long){0}, 256);
	__sync_fetch_and_add(&sum, s);
}

static void *thread(void *arg)
{
	(void)arg;
	all();
	__sync_fetch_and_add(&ready, 1);
	wait_for(&go, 1);
	all();
	lately();
	__sync_fetch_and_add(&done, 1);
	for (;;)
		syscall(SYS_futex, &done, FUTEX_WAIT_PRIVATE, done, &(struct timespec){1, 0}, 0, 0);
}

static void confine(const char *how, const char *action)
{
	unsigned ret = !strcmp(action, "kill") ? SECCOMP_RET_KILL_PROCESS
	    : !strcmp(action, "killthread")	? SECCOMP_RET_KILL_THREAD
	    : !strcmp(action, "trap")		? SECCOMP_RET_TRAP
	    : !strcmp(action, "enosys")		? SECCOMP_RET_ERRNO | ENOSYS
						: SECCOMP_RET_ERRNO | EPERM;
	static const unsigned allowed[] = {SYS_write, SYS_read, SYS_futex, SYS_exit, SYS_exit_group, SYS_clone, SYS_wait4};
	enum { N = sizeof allowed / sizeof *allowed };
	struct sock_filter f[16];
	int n = 0;
	f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (unsigned i = 0; i < N; i++)
		f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], N - i, 0);
	f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, ret);
	f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog p = {n, f};
	int e = 0;
	if (!strcmp(how, "none"))
		return;
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (!strcmp(how, "prctl"))
		e = prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p);
	else if (!strcmp(how, "seccomp"))
		e = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p);
	else if (!strcmp(how, "tsync"))
		e = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &p);
	else
		e = prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
	if (e) {
		char *m = "refused\n";
		write(1, m, strlen(m));
	}
}

int main(int argc, char **argv)
{
	int n = atoi(argv[3]);
	(void)argc;
	for (int i = 0; i < n; i++) {
		pthread_t t;
		if (pthread_create(&t, 0, thread, 0))
			return 3;
	}
	wait_for(&ready, n);
	all();
	confine(argv[1], argv[2]);
	if (argc > 4 && !strcmp(argv[4], "fork")) {
		long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
		if (!child) {
			all();
			syscall(SYS_exit_group, 0);
		}
		syscall(SYS_wait4, child, 0, 0, 0);
	} else if (argc > 4) { // whoever wants to attach can do so
		char c;
		write(1, "ready\n", 6);
		if (read(0, &c, 1) < 0)
			syscall(SYS_exit, 4);
	}
	go = 1;
	for (int i = 0; i < ROUNDS / CALLS; i++)
		all();
	lately();
	wait_for(&done, n);
	char text[64];
	int len = snprintf(text, sizeof text, "sum %ld\n", sum);
	write(1, text, len);
	syscall(strcmp(argv[1], "strict") ? SYS_exit_group : SYS_exit, 7); // strict mode allows the latter alone
}
