// A compiler library that does what the PTX says.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct handle { char *ptx; size_t n; char options[1024]; };

int nvPTXCompilerGetVersion(unsigned *major, unsigned *minor) { *major = 13; *minor = 1; return 0; }

int nvPTXCompilerCreate(struct handle **h, size_t n, const char *ptx)
{
	*h = calloc(1, sizeof **h);
	(*h)->ptx = malloc(n);
	memcpy((*h)->ptx, ptx, n);
	(*h)->n = n;
	return ptx[n - 1] == 0 ? 0 : 5;
}

extern char **environ;
static char info[1024] = "info";

static void *nothing(void *p) { return p; }

// confined tries what a compiler has no need of, and lists what it could do.
static void confined(const char *victim)
{
	char b[8];
	struct iovec v = {b, sizeof b};
	strcpy(info, "could:");
#define COULD(what, yes) do { if (yes) strcat(info, " " what ","); } while (0)
	COULD("make a socket", socket(AF_UNIX, SOCK_STREAM, 0) >= 0);
	COULD("use the network", socket(AF_INET, SOCK_STREAM, 0) >= 0);
	COULD("make a socket pair", socketpair(AF_UNIX, SOCK_STREAM, 0, (int[2]){0}) == 0);
	COULD("signal nvtrace", kill(getppid(), 0) == 0);
	COULD("signal a thread of nvtrace", syscall(SYS_tgkill, getppid(), getppid(), 0) == 0);
	COULD("queue a signal", sigqueue(getppid(), 0, (union sigval){0}) == 0);
	COULD("be told by a signal", fcntl(0, F_SETOWN, getppid()) == 0);
	COULD("trace nvtrace", ptrace(PTRACE_SEIZE, getppid(), 0, 0) == 0);
	COULD("be traced", ptrace(PTRACE_TRACEME, 0, 0, 0) == 0);
	COULD("read nvtrace", process_vm_readv(getppid(), &v, 1, &v, 1, 0) >= 0 || errno != EPERM);
	COULD("reach another process", syscall(SYS_pidfd_open, getppid(), 0) >= 0);
	COULD("limit nvtrace", prlimit(getppid(), RLIMIT_CORE, NULL, &(struct rlimit){0}) == 0);
	COULD("write a file", open(victim, O_WRONLY) >= 0);
	COULD("empty a file", open(victim, O_RDONLY | O_TRUNC) >= 0);
	COULD("make a file", open("/tmp/nvtrace-confined", O_CREAT | O_RDONLY, 0600) >= 0);
	COULD("make a nameless file", open("/tmp", O_TMPFILE | O_RDWR, 0600) >= 0);
	COULD("remove a file", unlink(victim) == 0);
	COULD("rename a file", rename(victim, "/tmp/nvtrace-confined") == 0);
	COULD("change a mode", chmod(victim, 0777) == 0);
	COULD("make a folder", mkdir("/tmp/nvtrace-confined", 0700) == 0);
	COULD("write another way", syscall(SYS_openat2, AT_FDCWD, victim, &(unsigned long[3]){O_WRONLY}, 24) >= 0);
	COULD("make memory that is a file", memfd_create("x", 0) >= 0);
	COULD("use io_uring", syscall(SYS_io_uring_setup, 1, &(char[120]){0}) >= 0);
	COULD("load eBPF", syscall(SYS_bpf, 0, &(char[120]){0}, 120) >= 0);
	COULD("make a namespace", unshare(CLONE_NEWUSER) == 0);
	COULD("regain privileges", setuid(0) == 0 && getuid() != 0);
	COULD("be root", getuid() == 0 || geteuid() == 0);
	COULD("gain privileges", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0);
	COULD("dump core", prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
	COULD("see the environment", getenv("NVTRACE_SECRET") != NULL || environ[0] != NULL);
	COULD("use a descriptor that nvtrace was started with", ({ int fd = 5, found = 0; for (; fd < 256; fd++) found |= fcntl(fd, F_GETFD) >= 0; found; }));
	COULD("read a file", open(victim, O_RDONLY) >= 0);
	COULD("execute a program", ({ pid_t p = vfork(); int s = -1; if (p == 0) { execl("/bin/true", "true", NULL); _exit(1); } if (p > 0) waitpid(p, &s, 0); s == 0; }));
	COULD("fork", ({ pid_t p = fork(); if (p == 0) _exit(0); p > 0; }));
	pthread_t t;
	COULD("NOT make a thread", pthread_create(&t, NULL, nothing, NULL) != 0 || pthread_join(t, NULL) != 0);
	COULD("NOT read a library", open("/usr", O_RDONLY | O_DIRECTORY) < 0);
}

int nvPTXCompilerCompile(struct handle *h, int n, const char *const *options)
{
	for (int i = 0; i < n; i++) {
		strcat(h->options, options[i]);
		strcat(h->options, " ");
	}
	if (strncmp(h->ptx, "confined:", 9) == 0) {
		*strchr(h->ptx + 9, ':') = 0;
		confined(h->ptx + 9);
	}
	if (strstr(h->ptx, "crash"))
		abort();
	if (strstr(h->ptx, "hang"))
		for (;;)
			pause();
	if (strstr(h->ptx, "garbage")) {
		write(1, "garbage", 7);
		_exit(0);
	}
	if (strstr(h->ptx, "memory")) {
		char *p = malloc((size_t)8 << 30);
		if (p == NULL)
			return 2;
		p[0] = 1;
	}
	return strstr(h->ptx, "bad") ? 5 : 0;
}

int nvPTXCompilerGetCompiledProgramSize(struct handle *h, size_t *n) { *n = 7 + strlen(h->options) + strlen(h->ptx); return 0; }
int nvPTXCompilerGetCompiledProgram(struct handle *h, char *b)
{
	char *s = malloc(8 + strlen(h->options) + strlen(h->ptx));
	sprintf(s, "cubin: %s%s", h->options, h->ptx);
	memcpy(b, s, strlen(s));
	return 0;
}
int nvPTXCompilerGetInfoLogSize(struct handle *h, size_t *n) { *n = strlen(info) + 1; return 0; }
int nvPTXCompilerGetInfoLog(struct handle *h, char *b) { memcpy(b, info, strlen(info) + 1); return 0; }
int nvPTXCompilerGetErrorLogSize(struct handle *h, size_t *n) { *n = strstr(h->ptx, "bad") ? 28 : 0; return 0; }
int nvPTXCompilerGetErrorLog(struct handle *h, char *b) { memcpy(b, "line 3; fatal: bad\nmore text", 28); return 0; }
