// Four threads that call a function, for TestSanitizers.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((noinline)) long hit(long n)
{
	__asm__ volatile("");
	return n + 1;
}

static void *work(void *result)
{
	long n = 0;
	for (int i = 0; i < 100; i++)
		n = hit(n);
	*(long *)result = n;
	return 0;
}

int main(void)
{
	pthread_t t[4];
	long *results = malloc(sizeof *results * 4), sum = 0;
	for (int i = 0; i < 4; i++)
		pthread_create(&t[i], 0, work, &results[i]);
	for (int i = 0; i < 4; i++) {
		pthread_join(t[i], 0);
		sum += results[i];
	}
	free(results);
	printf("%ld\n", getpid() > 0 ? sum : 0);
	return 0;
}
