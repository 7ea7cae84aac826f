// Which system calls the agent makes by itself.
//
//	own record COMMAND...: runs a command, and prints which system calls are made by instructions of a page of it,
//	0x70000000, one a line: the address behind the instruction, the number, the first argument's low half.
//	own work: a program in which the agent has something to do.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int cuMemAlloc_v2(unsigned long long *p, unsigned long n);

__attribute__((noipa)) int work(int x)
{
	__asm__ volatile("");
	for (volatile int i = 0; i < 10; i++)
		x = x * 3 + i;
	return x;
}

__attribute__((noipa)) void say(const char *text) { write(-1, text, 1); }

static void *thread(void *arg)
{
	(void)arg;
	for (int i = 0; i < 20000; i++)
		work(i);
	return 0;
}

static int do_work(void)
{
	pthread_t t[4];
	int null = open("/dev/null", O_RDWR), status;
	for (int i = 0; i < 100; i++) {
		char request[32] = {0};
		unsigned long long *p = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); // nobody has looked there
		int fd = open("/dev/nvidia0", O_RDWR);
		ioctl(null, 0xc020462a, request);
		cuMemAlloc_v2(p, 256);
		if (fd >= 0)
			close(fd);
		close(dup(null));
	}
	for (int i = 0; i < 10; i++)
		say("text");
	for (int i = 0; i < 4; i++)
		pthread_create(&t[i], 0, thread, 0);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], 0);
	pid_t child = fork();
	if (!child) {
		thread(0);
		_exit(0);
	}
	return waitpid(child, &status, 0) != child || status;
}

static int confined(void)
{
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer)),
		BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xfffff000),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x70000000, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
	};
	struct sock_fprog p = {sizeof f / sizeof *f, f};
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &p);
}

static int record(char **command)
{
	static struct seen {
		unsigned long ip;
		unsigned nr, arg;
	} seen[1000];
	volatile int *listener = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int n = 0, status = 0, child = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0); // the listener is this one's, too
	if (!child) {
		*listener = confined();
		if (*listener > 0)
			execvp(command[0], command);
		_exit(120);
	}
	for (int ended = 0; !ended;) {
		struct seccomp_notif got = {0};
		struct seccomp_notif_resp go = {.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
		struct pollfd p = {*listener > 0 ? *listener : -1, POLLIN, 0}; // poll ignores -1
		if (poll(&p, 1, 20) <= 0 || !(p.revents & POLLIN)) {
			ended = waitpid(child, &status, WNOHANG) == child;
			continue;
		}
		if (ioctl(*listener, SECCOMP_IOCTL_NOTIF_RECV, &got))
			continue; // whoever made it has been killed, or interrupted
		struct seen s = {got.data.instruction_pointer, got.data.nr, got.data.args[0]};
		int i = 0;
		while (i < n && memcmp(&seen[i], &s, sizeof s))
			i++;
		if (i == n && n < 1000) {
			seen[n++] = s;
			printf("%#lx %u %#x\n", s.ip, s.nr, s.arg);
		}
		go.id = got.id;
		ioctl(*listener, SECCOMP_IOCTL_NOTIF_SEND, &go);
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 121;
}

int main(int argc, char **argv)
{
	return argc > 2 && !strcmp(argv[1], "record") ? record(argv + 2) : do_work();
}
