// A thread that names itself, one whose name is too long, and can't be read, and one that a filter of its
// own refuses a name.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static void *named(void *name)
{
	pthread_setname_np(pthread_self(), name);
	return 0;
}

static void *odd(void *unused)
{
	prctl(PR_SET_NAME, "a name of more than 15 bytes");
	prctl(PR_SET_NAME, 8);
	prctl(PR_SET_DUMPABLE, 1); // no name
	return unused;
}

static void *refused(void *unused)
{
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {sizeof f / sizeof f[0], f};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog))
		exit(1);
	if (prctl(PR_SET_NAME, "refused") != -1 || errno != EACCES)
		exit(2);
	return unused;
}

int main(void)
{
	pthread_t t;
	pthread_create(&t, 0, named, "worker 1");
	pthread_join(t, 0);
	pthread_create(&t, 0, odd, 0);
	pthread_join(t, 0);
	pthread_create(&t, 0, refused, 0);
	pthread_join(t, 0);
	return 0;
}
