// Changes what is mapped at addresses of its own choice, between calls of a function: where memory of nvtrace's lies,
// and beside it. It prints how many of these calls failed by ENOMEM, and how many did not do what they were to do.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

static int refused, bad, shm;

__attribute__((noinline)) int p_call(int a)
{
	volatile int up = a;
	return up + 1;
}

static void want(int fails, int failed)
{
	refused += failed && errno == ENOMEM;
	bad += failed && errno != ENOMEM || fails != failed;
	p_call(1);
}

static int map(unsigned long at, unsigned long size, int flags)
{
	return mmap((void *)at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0) == MAP_FAILED;
}

static void tries(int child)
{
	unsigned long ours[] = {0x70000000, 0x70001000, 0x70600000, 0x713ff000, 0x550800000000, 0x550400000000, 0x550000000000};
	for (int i = 0; i < sizeof ours / sizeof *ours - child; i++) { // a child does not have the last, rings, yet
		void *at = (void *)ours[i];
		want(1, map(ours[i], 4096, MAP_FIXED));
		want(1, munmap(at, 4096) != 0);
		want(1, mprotect(at, 4096, PROT_NONE) != 0);
		want(1, madvise(at, 4096, MADV_DONTNEED) != 0);
		int advices[] = {10, 18, 24, 102}; // DONTFORK, WIPEONFORK, DONTNEED_LOCKED, GUARD_INSTALL
		for (int k = 0; k < 4; k++)
			want(1, madvise(at, 4096, advices[k]) != 0);
		bad += madvise(at, 4096, MADV_NORMAL) != 0 || madvise(at, 4096, MADV_DODUMP) != 0; // leave all as it is
		want(1, shmat(shm, at, SHM_REMAP) == (void *)-1);
		void *p = mmap(0, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		want(1, mremap(p, 4096, 4096, MREMAP_FIXED | MREMAP_MAYMOVE, at) == MAP_FAILED);
		want(1, mremap(at, 4096, 8192, MREMAP_MAYMOVE) == MAP_FAILED);
		munmap(p, 8192);
	}
	want(1, map(0x6ffff000, 8192, MAP_FIXED));     // from below
	want(1, map(0x60000000, 0x20000000, MAP_FIXED)); // far below, and long
	want(!child, map(0x54fffffff000, 8192, MAP_FIXED));
	want(1, map(0x400000000000, 0x151000000000, MAP_FIXED));
	// Beside it, and what is the program's own.
	unsigned long free[] = {0x6fff0000, 0x71400000, 0x54fffffff000, 0x551ff0000000, 0x552000000000};
	for (int i = 0; i < sizeof free / sizeof *free; i++) {
		void *at = (void *)free[i];
		want(0, map(free[i], 4096, MAP_FIXED));
		*(volatile int *)at = 1;
		want(0, madvise(at, 4096, MADV_DONTNEED) != 0);
		bad += *(volatile int *)at != 0;
		want(0, mprotect(at, 4096, PROT_READ) != 0);
		want(0, munmap(at, 4096) != 0);
	}
}

int main(void)
{
	int status = 0;
	p_call(1);
	shm = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
	tries(0);
	fflush(stdout);
	if (!fork()) { // which has copies
		tries(1);
		printf("%d refused, %d wrong\n", refused, bad);
		fflush(stdout);
		_exit(7);
	}
	wait(&status);
	shmctl(shm, IPC_RMID, 0);
	return WEXITSTATUS(status);
}
