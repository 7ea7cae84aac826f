// Lowers its limit of descriptors or of memory, as its argument says, and has a child call a function of which it
// has not called any itself: in recursion, out of which a jump leads, and in threads. Nothing that takes memory for
// the calls can be had then.
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static jmp_buf out;

__attribute__((noinline)) int p_call(int a, int leave)
{
	volatile int up = a;
	if (leave && !a)
		longjmp(out, 1);
	if (a)
		up += p_call(a - 1, leave);
	return up;
}

static void *thread(void *sum)
{
	for (int i = 0; i < 100; i++)
		*(int *)sum += p_call(3, 0);
	return 0;
}

int main(int argc, char **argv)
{
	int threads = argc > 1 && !strcmp(argv[1], "nofile") ? 8 : 0, sums[8] = {0}, sum = 0, status;
	struct rlimit most = {threads ? 0 : 8 << 20, threads ? 0 : 8 << 20};
	if (setrlimit(threads ? RLIMIT_NOFILE : RLIMIT_AS, &most))
		return 2;
	if (fork()) {
		wait(&status);
		return WEXITSTATUS(status);
	}
	for (volatile int i = 0; i < 2000; i++) // each leaves ten behind that do not return
		if (!setjmp(out))
			p_call(9, 1);
	for (int i = 0; i < 100; i++)
		sum += p_call(9, 0);
	pthread_t list[8];
	for (int i = 0; i < threads; i++)
		if (pthread_create(&list[i], 0, thread, &sums[i]))
			return 3;
	for (int i = 0; i < threads; i++) {
		pthread_join(list[i], 0);
		sum += sums[i];
	}
	printf("%d\n", sum);
	return 0;
}
