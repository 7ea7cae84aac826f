// dispatched: answers its calls of getpid itself, by syscall user dispatch, and says how many there were. With an
// argument, a reader of its output must write something before it goes on.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif

static volatile char block;
static volatile int answered, others;

__attribute__((noinline)) long hit(long n)
{
	__asm__ volatile("");
	return n + 1;
}

__attribute__((noinline)) void tiny(void) { __asm__ volatile(""); }

static void answer(int signal, siginfo_t *info, void *context)
{
	block = 0; // for the return from here, too
	if (info->si_syscall == SYS_getpid) {
		answered++;
		((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = 4242;
	} else {
		others++;
	}
}

static long id(void)
{
	long r;
	__asm__ volatile("syscall" : "=a"(r) : "a"(SYS_getpid) : "rcx", "r11", "memory");
	return r;
}

int main(int argc, char **argv)
{
	struct sigaction a = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO};
	long n = 0, wrong = 0;
	char c;
	sigaction(SIGSYS, &a, 0);
	if (prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, 0, 0, &block)) {
		printf("no dispatch\n");
		return 0;
	}
	if (argc > 1) {
		printf("ready\n");
		fflush(stdout);
		if (read(0, &c, 1) != 1)
			return 1;
	}
	for (int i = 0; i < 500; i++) {
		block = 1;
		n = hit(n);
		tiny();
		wrong += id() != 4242;
		block = 1;
		n = hit(n) - 1;
		block = 0;
	}
	printf("%ld, %ld wrong, %d answered, %d others\n", n, wrong, answered, others);
	return 5;
}
