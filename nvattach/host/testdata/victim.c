// The program that tests put probes into: what it prints must not change by that.
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noclone))

KEEP int add(int a, int b) { __asm__ volatile(""); return a + b; }
KEEP int fact(int n) { return n <= 1 ? 1 : n * fact(n - 1); }
KEEP void tiny(void) { __asm__ volatile(""); } // one byte
KEEP unsigned long say(const char *s) { __asm__ volatile(""); return strlen(s); }
KEEP int never(void) { __asm__ volatile(""); return 5; }
KEEP int many_one(void) { __asm__ volatile(""); return 1; }
KEEP int many_two(void) { __asm__ volatile(""); return 2; }
KEEP int method(int n) __asm__("_ZN5space6methodEi"); // space::method(int)
KEEP int method(int n) { __asm__ volatile(""); return n; }

static jmp_buf env;

KEEP int leaves(int n)
{
	if (n == 0)
		longjmp(env, 1);
	return leaves(n - 1) + n;
}

static void *work(void *p)
{
	long sum = 0;
	for (int i = 0; i < 300; i++)
		sum += add(i, (int)(long)p);
	return (void *)sum;
}

int main(int argc, char **argv)
{
	long sum = 0;
	for (int i = 0; i < 10; i++)
		sum += add(i, 1);
	printf("%ld %d\n", sum, fact(6));
	for (int i = 0; i < 3; i++)
		tiny();
	for (int i = 0; i < 4; i++)
		if (!setjmp(env))
			sum += leaves(5); // the code behind the call is passed only if it returns
	printf("%lu %d %d %d\n", say("hello, world"), many_one() + many_two(), method(3), add(-3, 4));
	pthread_t t[4];
	for (long i = 0; i < 4; i++)
		pthread_create(&t[i], 0, work, (void *)i);
	for (int i = 0; i < 4; i++) {
		void *r;
		pthread_join(t[i], &r);
		sum += (long)r;
	}
	printf("%ld\n", sum);
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		printf("child %d %d\n", add(40, 2), fact(3));
		exit(3);
	}
	int status;
	waitpid(child, &status, 0);
	if (argc > 1) { // what programs may change
		printf("never %d\n", never());
		printf("parent %ld\n", syscall(SYS_getppid));
	}
	for (int i = 0; i < 5; i++)
		syscall(SYS_getpid);
	printf("end %d\n", WEXITSTATUS(status));
	return 7;
}
