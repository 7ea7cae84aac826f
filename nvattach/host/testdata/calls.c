// A function with a probe that calls helpers.
#define _GNU_SOURCE
#include <string.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((noinline, noclone)) int called(const char *text, const char *end, long tid, long pid)
{
	__asm__ volatile("" ::: "memory");
	return text[0] + end[0];
}

int main()
{
	char *p = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(p + 4096, 4096);
	strcpy(p + 4088, "at end"); // of what can be read
	memset(p + 100, 'a', 300);
	printf("%d\n", called("hello, world", p + 4088, syscall(SYS_gettid), getpid()));
	return 0;
}
