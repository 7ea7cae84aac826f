#include "sys.h"

void *nvt_copy(void *to, const void *from, u64 n)
{
	void *d = to;
	__asm__ volatile("rep movsb" : "+D"(d), "+S"(from), "+c"(n) : : "memory");
	return to;
}

void nvt_zero(void *p, u64 n)
{
	__asm__ volatile("rep stosb" : "+D"(p), "+c"(n) : "a"(0) : "memory");
}

/* The compiler may ask for these by name. They are hidden: the program's own are not touched. */
void *memcpy(void *to, const void *from, u64 n) { return nvt_copy(to, from, n); }
void *memset(void *p, int c, u64 n)
{
	void *d = p;
	__asm__ volatile("rep stosb" : "+D"(d), "+c"(n) : "a"(c) : "memory");
	return p;
}

u64 nvt_length(const char *s, u64 max)
{
	u64 n = 0;
	while (n < max && s[n])
		n++;
	return n;
}

int nvt_equal(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

u64 nvt_now(void)
{
	struct timespec t = {0, 0};
	sys2(SYS_clock_gettime, 1, &t);
	return (u64)t.sec * 1000000000UL + (u64)t.nsec;
}

int nvt_gettid(void) { return (int)sys1(SYS_gettid, 0); }
int nvt_getpid(void) { return (int)sys1(SYS_getpid, 0); }

/*
 * Reads memory that may not be there, and returns how much of it was: an image
 * can claim any size. Where a sandbox forbids the call for that, a file takes the
 * detour: a write from bad memory ends early, too.
 */
s64 nvt_read_memory(const void *from, void *to, u64 n)
{
	struct iovec local = {to, n}, remote = {from, n};
	s64 got = sys6(SYS_process_vm_readv, nvt_getpid(), &local, 1, &remote, 1, 0);
	if (got == -EPERM || got == -ENOSYS) {
		int fd = (int)sys2(SYS_memfd_create, "nvtrace-read", 1 /* CLOEXEC */);
		got = fd < 0 ? fd : sys3(SYS_write, fd, from, n);
		if (got > 0)
			got = sys4(SYS_pread64, fd, to, got, 0);
		if (fd >= 0)
			sys1(SYS_close, fd);
	}
	return got < 0 ? 0 : got;
}
