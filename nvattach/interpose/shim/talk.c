/*
 * The connection. Packets go out whole, so that threads need no lock; what can't
 * be sent in time is counted and told later. Once nvtrace is gone, nothing is
 * tried again, here or in children.
 */
#include "elf.h"
#include "sys.h"
#include "zfunctions.h"

enum { CONNS = 64, HELLO_MS = 2000, OBSERVE_MS = 2000 };
enum { NOSIGNAL = 0x4000, DONTWAIT = 0x40, POLLIN = 1, POLLOUT = 4, EBADF = 9, ENOTSOCK = 88, ENOTCONN = 107, ETOOMANYREFS = 109 };

u32 nvt_mode, nvt_flags, nvt_wait;
u32 nvt_lost;

/* A process has one connection, and a new one after a fork or after a daemon closed everything. */
static struct connection { int pid, fd; u64 ino; } conns[CONNS];
static u32 current, used; /* number + 1 of the one in use; how many were made */
static int connecting;	  /* the process that is about to make one */
static u32 stalled;	  /* the last packet could not be sent in time */
static u32 unanswered;	  /* how many verdicts in a row did not come in time */

static void silent(void) { __atomic_store_n(&nvt_state, NVT_SILENT, __ATOMIC_RELEASE); }

static int wait_for(int fd, int events, u64 ms)
{
	u64 end = nvt_now() + ms * 1000000;
	for (;;) {
		struct pollfd p = {fd, (short)events, 0};
		u64 now = nvt_now();
		s64 n = sys3(SYS_poll, &p, 1, now < end ? (end - now + 999999) / 1000000 : 0);
		if (n > 0)
			return 1;
		if (n != -EINTR || now >= end)
			return 0;
	}
}

static u64 inode(int fd)
{
	struct stat st;
	return sys2(SYS_fstat, fd, &st) == 0 && (st.mode & 0170000) == 0140000 ? st.ino : 0;
}

/* Returns a connected socket, first by path, then by the abstract name. */
static int reach(void)
{
	struct { u16 family; char path[108]; } a;
	u64 n = nvt_length(nvt_address, sizeof nvt_address);
	int fd = (int)sys3(SYS_socket, 1, 5 | 02000000 | 04000 /* SOCK_SEQPACKET, CLOEXEC, NONBLOCK */, 0);
	if (fd < 0)
		return -1;
	for (u64 abstract = 0; abstract < 2 && n + 1 < sizeof a.path; abstract++) {
		nvt_zero(&a, sizeof a);
		a.family = 1;
		nvt_copy(a.path + abstract, nvt_address, n);
		s64 r = -EAGAIN;
		for (int ms = 0; r == -EAGAIN && ms < HELLO_MS; ms++)
			if ((r = sys3(SYS_connect, fd, &a, 2 + n + abstract)) == -EAGAIN) /* a full queue */
				sys3(SYS_poll, 0, 0, 1);
		if (r == 0) {
			/* Out of the program's way, which may count on its lowest descriptors. */
			int high = (int)sys3(SYS_fcntl, fd, 1030 /* F_DUPFD_CLOEXEC */, 960);
			if (high < 0)
				return fd;
			sys1(SYS_close, fd);
			return high;
		}
	}
	sys1(SYS_close, fd);
	return -1;
}

/* Says hello, and takes over what nvtrace wants. */
static int greet(int fd)
{
	char path[NVT_MAX_PATH];
	nvt_executable(path, sizeof path);
	u64 len = nvt_length(path, sizeof path);
	struct nvt_hello h = {
		.h = {NVT_MAGIC, NVT_VERSION, NVT_HELLO, (u32)(sizeof h + len), 0},
		.pid = nvt_getpid(), .libc = nvt_libc, .libc_major = (u16)nvt_libc_major, .libc_minor = (u16)nvt_libc_minor,
		.path_len = (u32)len, .born = nvt_born, .table = NVT_TABLE,
	};
	nvt_copy(h.key, nvt_key, sizeof h.key);
	struct nvt_welcome w;
	struct iovec out[2] = {{&h, sizeof h}, {path, len}}, in = {&w, sizeof w};
	struct msghdr m = {.iov = out, .iovlen = len ? 2 : 1};
	if (sys3(SYS_sendmsg, fd, &m, NOSIGNAL) < 0 || !wait_for(fd, POLLIN, HELLO_MS))
		return 0;
	m.iov = &in, m.iovlen = 1;
	if (sys3(SYS_recvmsg, fd, &m, DONTWAIT) != sizeof w || w.h.magic != NVT_MAGIC || w.h.version != NVT_VERSION || w.h.type != NVT_WELCOME)
		return 0;
	if (w.mode != NVT_OBSERVE && w.mode != NVT_CAPTURE)
		return 0;
	nvt_mode = w.mode, nvt_flags = w.flags, nvt_wait = w.wait_ms;
	return 1;
}

static int existing(int pid)
{
	u32 i = __atomic_load_n(&current, __ATOMIC_ACQUIRE);
	struct connection *c = &conns[(i - 1) % CONNS];
	return i && c->pid == pid && inode(c->fd) == c->ino ? c->fd : -1;
}

/* Returns the process's connection, made at the first need, or -1. */
int nvt_connect(void)
{
	int pid = nvt_getpid(), fd = existing(pid), other = __atomic_load_n(&connecting, __ATOMIC_ACQUIRE);
	if (fd >= 0 || nvt_state != NVT_ON)
		return nvt_state == NVT_ON ? fd : -1;
	for (int i = 0; i < HELLO_MS; i++) {
		if (other != pid && __atomic_compare_exchange_n(&connecting, &other, pid, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			break;
		sys3(SYS_poll, 0, 0, 1); /* another thread is at it */
		if ((fd = existing(pid)) >= 0 || nvt_state != NVT_ON)
			return nvt_state == NVT_ON ? fd : -1;
		other = __atomic_load_n(&connecting, __ATOMIC_ACQUIRE);
	}
	fd = existing(pid); /* made while we came here */
	if (fd < 0 && (fd = reach()) >= 0 && !greet(fd)) {
		sys1(SYS_close, fd);
		fd = -1;
	}
	if (fd >= 0 && existing(pid) != fd) {
		u32 i = __atomic_fetch_add(&used, 1, __ATOMIC_ACQ_REL);
		u32 old = __atomic_load_n(&current, __ATOMIC_ACQUIRE);
		/* A fork's copy of its parent's connection would keep that open. */
		if (old && conns[(old - 1) % CONNS].pid != pid && inode(conns[(old - 1) % CONNS].fd) == conns[(old - 1) % CONNS].ino)
			sys1(SYS_close, conns[(old - 1) % CONNS].fd);
		conns[i % CONNS] = (struct connection){pid, fd, inode(fd)};
		__atomic_store_n(&current, i + 1, __ATOMIC_RELEASE);
	}
	if (fd < 0)
		silent();
	__atomic_store_n(&connecting, 0, __ATOMIC_RELEASE);
	return fd;
}

/* Sends a packet, or counts it as lost. */
static int put(struct msghdr *m, int again)
{
	int fd = nvt_connect();
	u64 ms = stalled ? 0 : nvt_mode == NVT_CAPTURE ? nvt_wait : OBSERVE_MS;
	if (fd < 0)
		return 0;
	for (u64 end = nvt_now() + ms * 1000000;;) {
		s64 r = sys3(SYS_sendmsg, fd, m, NOSIGNAL | DONTWAIT);
		if (r >= 0) {
			stalled = 0;
			return 1;
		}
		if (r == -EINTR)
			continue;
		if (r == -EAGAIN || r == -ETOOMANYREFS) {
			u64 now = nvt_now();
			if (now < end && wait_for(fd, r == -EAGAIN ? POLLOUT : 0, r == -EAGAIN ? (end - now) / 1000000 + 1 : 1) + (r != -EAGAIN))
				continue;
			stalled = 1;
			__atomic_add_fetch(&nvt_lost, 1, __ATOMIC_RELAXED);
			return 0;
		}
		if ((r == -EBADF || r == -ENOTSOCK || r == -ENOTCONN) && again)
			return put(m, 0); /* closed between the look and the call */
		if (r != -14) /* EFAULT: the program's data is gone, not nvtrace */
			silent();
		return 0;
	}
}

static void tell_lost(void)
{
	u32 n = __atomic_load_n(&nvt_lost, __ATOMIC_RELAXED) ? __atomic_exchange_n(&nvt_lost, 0, __ATOMIC_RELAXED) : 0;
	if (!n)
		return;
	struct nvt_gap g = {{NVT_MAGIC, NVT_VERSION, NVT_GAP, sizeof g, 0}, NVT_GAP_LOST, n, 0};
	struct iovec iov = {&g, sizeof g};
	struct msghdr m = {.iov = &iov, .iovlen = 1};
	if (!put(&m, 1))
		__atomic_add_fetch(&nvt_lost, n - 1, __ATOMIC_RELAXED); /* put counted one */
}

void nvt_gap(u32 code, u32 count, s64 detail)
{
	struct nvt_gap g = {{NVT_MAGIC, NVT_VERSION, NVT_GAP, sizeof g, 0}, code, count, detail};
	struct iovec iov = {&g, sizeof g};
	struct msghdr m = {.iov = &iov, .iovlen = 1};
	put(&m, 1);
}

/* Tells a call, or sends its image with the descriptors in fds. data may be the program's memory. */
void nvt_tell(struct nvt_frame *f, const struct nvt_image *im, u16 type, const void *data, u64 n, u16 flags, int *fds, int nfds)
{
	char path[NVT_MAX_PATH];
	struct nvt_elf e;
	struct { u64 len; int level, type; int fds[2]; } control = {16 + 4UL * (u32)nfds, 1, 1 /* SCM_RIGHTS */, {0, 0}};
	u64 now = nvt_now();
	if (nvt_connect() < 0)
		return;
	tell_lost();
	path[0] = 0;
	nvt_elf_at(f->caller, &e, path, sizeof path);
	u64 len = nvt_length(path, sizeof path);
	struct nvt_call c = {
		.h = {NVT_MAGIC, NVT_VERSION, type, (u32)(sizeof c + len + n), f->seq},
		.time = f->start, .dur = type == NVT_CALL ? now - f->start : 0, .tid = nvt_gettid(), .fn = (u16)f->fn,
		.flags = (u16)(flags | im->flags), .caller = f->caller, .target = f->target, .image = im->addr, .size = im->size,
		.hashed = im->hashed, .hash = {im->hash[0], im->hash[1]}, .handle = f->handle,
		.ret = type == NVT_CALL ? (s64)(int)f->ret : 0, .part = im->part, .parts = im->parts,
		.caller_len = (u16)len, .data_len = (u16)n,
	};
	for (int i = 0; i < 6; i++)
		c.args[i] = f->args[i];
	struct iovec iov[3] = {{&c, sizeof c}, {path, len}, {data, n}};
	struct msghdr m = {.iov = iov, .iovlen = n ? 3 : 2};
	if (nfds) {
		for (int i = 0; i < nfds; i++)
			control.fds[i] = fds[i];
		m.control = &control, m.controllen = (u32)(16 + (4 * nfds + 7) / 8 * 8);
	}
	put(&m, 1);
}

/* Waits for what nvtrace says of an image: the size of a replacement and its file, or 0. */
u64 nvt_verdict(int sock, int *fd)
{
	struct nvt_verdict v;
	struct { u64 len; int level, type; int fd, pad; } control = {0, 0, 0, -1, 0};
	struct iovec iov = {&v, sizeof v};
	struct msghdr m = {.iov = &iov, .iovlen = 1, .control = &control, .controllen = sizeof control};
	struct stat st;
	/* Who did not answer is waited for less and less. */
	u32 late = __atomic_load_n(&unanswered, __ATOMIC_RELAXED);
	*fd = -1;
	if (!wait_for(sock, POLLIN, nvt_wait >> (2 * late < 16 ? 2 * late : 16))) {
		__atomic_store_n(&unanswered, late + 1, __ATOMIC_RELAXED);
		nvt_gap(NVT_GAP_TIMEOUT, 1, 0);
		return 0;
	}
	__atomic_store_n(&unanswered, 0, __ATOMIC_RELAXED);
	s64 n = sys3(SYS_recvmsg, sock, &m, DONTWAIT | 0x40000000 /* CMSG_CLOEXEC */);
	if (n >= 0 && m.controllen >= 20 && control.level == 1 && control.type == 1)
		*fd = control.fd;
	if (n == sizeof v && v.h.magic == NVT_MAGIC && v.h.type == NVT_VERDICT && v.size && v.size <= NVT_MAX_IMAGE && *fd >= 0 &&
	    sys2(SYS_fstat, *fd, &st) == 0 && (u64)st.size >= v.size)
		return v.size;
	if (*fd >= 0)
		sys1(SYS_close, *fd);
	*fd = -1;
	return 0;
}
