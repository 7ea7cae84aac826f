// Has its own seccomp filter answer getppid, as its argument says: "errno" or "trap". Everything else passes.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile int traps;

static void trapped(int sig) { traps++; }

int main(int argc, char **argv) {
	int trap = argc > 1 && !strcmp(argv[1], "trap");
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, trap ? SECCOMP_RET_TRAP : SECCOMP_RET_ERRNO | 5),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {sizeof code / sizeof *code, code};
	signal(SIGSYS, trapped);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
		return 2;
	int failed = 0;
	for (int i = 0; i < 10; i++)
		failed += syscall(SYS_getppid) == -1;
	return trap ? traps != 10 : failed != 10;
}
