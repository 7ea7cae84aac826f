// Children put keys and drop them until they are killed, in the middle of whatever they do then.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noclone))

KEEP int put(int k) { __asm__ volatile("nop; nop; nop; nop; nop; nop; nop; nop" : "+r"(k)); return k; }
KEEP int drop(int k) { __asm__ volatile("nop; nop; nop; nop; nop; nop; nop; nop" : "+r"(k)); return k; }

int main(int argc, char **argv)
{
	int rounds = atoi(argv[1]);
	for (int i = 0; i < rounds; i++) {
		int ready[2];
		char c;
		pid_t pid;
		if (pipe(ready) || (pid = fork()) < 0)
			return 1;
		if (!pid) {
			for (int first = 1;; first = 0) {
				for (int k = 0; k < 64; k++)
					put(k);
				for (int k = 0; k < 64; k++)
					drop(k);
				if (first && write(ready[1], "x", 1) != 1)
					_exit(1);
			}
		}
		if (read(ready[0], &c, 1) != 1)
			return 2;
		for (volatile int n = i * 977 % 20011; n > 0; n--)
			;
		kill(pid, SIGKILL);
		waitpid(pid, 0, 0);
		close(ready[0]);
		close(ready[1]);
	}
	for (int k = 0; k < 64; k++)
		drop(k);
	for (int k = 0; k < 64; k++)
		put(k);
	puts("done");
	return 0;
}
