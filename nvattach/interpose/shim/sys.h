/* System calls, without the C library and without its errno. */
#ifndef NVT_SYS_H
#define NVT_SYS_H

#include "nvt.h"

enum {
	SYS_read = 0, SYS_write = 1, SYS_open = 2, SYS_close = 3, SYS_fstat = 5, SYS_poll = 7, SYS_mmap = 9, SYS_mprotect = 10,
	SYS_munmap = 11, SYS_pread64 = 17, SYS_sendfile = 40, SYS_getpid = 39, SYS_socket = 41, SYS_connect = 42, SYS_sendmsg = 46,
	SYS_recvmsg = 47, SYS_socketpair = 53, SYS_fcntl = 72, SYS_readlink = 89, SYS_getrlimit = 97, SYS_arch_prctl = 158,
	SYS_gettid = 186, SYS_clock_gettime = 228, SYS_process_vm_readv = 310, SYS_memfd_create = 319,
};

enum { EINTR = 4, EAGAIN = 11, ENOSYS = 38, EPERM = 1, EINVAL = 22 };

static inline s64 nvt_sys(s64 nr, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
	s64 ret;
	register u64 r10 __asm__("r10") = d;
	register u64 r8 __asm__("r8") = e;
	register u64 r9 __asm__("r9") = f;
	__asm__ volatile("syscall" : "=a"(ret) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return ret;
}

#define sys1(n, a) nvt_sys(n, (u64)(a), 0, 0, 0, 0, 0)
#define sys2(n, a, b) nvt_sys(n, (u64)(a), (u64)(b), 0, 0, 0, 0)
#define sys3(n, a, b, c) nvt_sys(n, (u64)(a), (u64)(b), (u64)(c), 0, 0, 0)
#define sys4(n, a, b, c, d) nvt_sys(n, (u64)(a), (u64)(b), (u64)(c), (u64)(d), 0, 0)
#define sys6(n, a, b, c, d, e, f) nvt_sys(n, (u64)(a), (u64)(b), (u64)(c), (u64)(d), (u64)(e), (u64)(f))

struct iovec { const void *base; u64 len; };
struct msghdr { void *name; u32 namelen; u32 pad; struct iovec *iov; u64 iovlen; void *control; u64 controllen; u32 flags; u32 pad2; };
struct pollfd { int fd; short events, revents; };
struct stat { u64 dev, ino, nlink; u32 mode, uid, gid, pad; u64 rdev; s64 size; u64 rest[11]; };
struct timespec { s64 sec, nsec; };

#endif
