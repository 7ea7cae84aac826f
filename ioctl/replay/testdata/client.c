// A client of the driver in miniature, with one behaviour for each test. It
// prints what a test compares; "ok" lines have been checked here.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

// NVOS54_PARAMETERS, NVOS21_PARAMETERS and NVOS00_PARAMETERS.
typedef struct { uint32_t client, object, cmd, flags; uint64_t params; uint32_t size, status; } control_t;
typedef struct { uint32_t root, parent, object, class; uint64_t params; uint32_t size, status; } alloc_t;
typedef struct { uint32_t root, parent, object, status; } free_t;

static int ctl = -1;
static uint32_t client;

static void check(int ok, const char *what) {
	if (!ok) {
		printf("FAILED: %s (errno %d: %s)\n", what, errno, strerror(errno));
		exit(9);
	}
}

static int open_ctl(void) {
	int fd = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
	check(fd >= 0, "open /dev/nvidiactl");
	return fd;
}

// control returns the status, or -errno.
static int control_on(int fd, uint32_t cl, uint32_t object, uint32_t cmd, void *p, uint32_t n) {
	control_t c = {cl, object, cmd, 0, (uint64_t)(uintptr_t)p, n, 0xffffffff};
	if (ioctl(fd, _IOWR('F', 0x2a, control_t), &c) < 0)
		return -errno;
	return (int)c.status;
}

static uint32_t new_client(int fd) {
	alloc_t a = {.class = 0x41, .status = 0xffffffff};
	check(ioctl(fd, _IOWR('F', 0x2b, alloc_t), &a) == 0 && a.status == 0, "allocate a root client");
	return a.object;
}

static uint32_t new_object(int fd, uint32_t cl, uint32_t parent, uint32_t h, uint32_t class, void *p, uint32_t n) {
	alloc_t a = {cl, parent, h, class, (uint64_t)(uintptr_t)p, n, 0xffffffff};
	check(ioctl(fd, _IOWR('F', 0x2b, alloc_t), &a) == 0 && a.status == 0, "allocate an object");
	return a.object;
}

// CMD is a control that no driver has: 32 bytes, the first word in, the second out.
#define CMD 0x00000f02
static int query(int fd, uint32_t cl, uint32_t in, uint32_t *out) {
	uint32_t p[8] = {in};
	int r = control_on(fd, cl, cl, CMD, p, sizeof p);
	*out = p[1];
	return r;
}

static void setup(void) {
	ctl = open_ctl();
	client = new_client(ctl);
}

static int basic(void) {
	setup();
	printf("client %#x\n", client);
	uint32_t v;
	int r = query(ctl, client, 1, &v);
	printf("query 1: %d %u\n", r, v);
	r = query(ctl, client, 2, &v);
	printf("query 2: %d %u\n", r, v);
	r = query(ctl, client, 1, &v);
	printf("query 1: %d %u\n", r, v);
	fflush(stdout);
	return 42;
}

static int files(void) {
	struct stat st;
	struct statx sx;
	char link[64] = "";
	check(stat("/dev/nvidiactl", &st) == 0 && S_ISCHR(st.st_mode) && major(st.st_rdev) == 195 && minor(st.st_rdev) == 255, "stat");
	check(lstat("/dev/nvidia0", &st) == 0 && S_ISCHR(st.st_mode) && minor(st.st_rdev) == 0, "lstat");
	check(statx(AT_FDCWD, "/dev/nvidia-uvm", 0, STATX_BASIC_STATS, &sx) == 0 && S_ISCHR(sx.stx_mode) && sx.stx_rdev_major == 511, "statx");
	check(access("/dev/nvidiactl", R_OK | W_OK) == 0, "access");
	check(faccessat(AT_FDCWD, "/dev/nvidia0", R_OK, 0) == 0, "faccessat");
	errno = 0;
	check(readlink("/dev/nvidiactl", link, sizeof link) == -1 && errno == EINVAL, "readlink");
	check(mknod("/dev/nvidiactl", S_IFCHR | 0666, makedev(195, 255)) == -1 && errno == EEXIST, "mknod");
	check(chmod("/dev/nvidia0", 0666) == 0, "chmod");
	check(getxattr("/dev/nvidia0", "system.posix_acl_access", link, sizeof link) == -1 && errno == ENODATA, "getxattr");
	check(listxattr("/dev/nvidia0", link, sizeof link) == 0, "listxattr");
	check(stat("/dev/nvidia7", &st) == -1 && errno == ENOENT, "stat of an unrecorded node");
	check(open("/dev/nvidia7", O_RDWR) == -1 && errno == ENOENT, "open of an unrecorded node");
	check(open("/dev/nvidia1", O_RDWR) == -1 && errno == EACCES, "open of a node that was refused");
	check(open("/dev/nvidiactl", O_RDWR | O_DIRECTORY) == -1 && errno == ENOTDIR, "open as a directory");

	int fd = open_ctl();
	check((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0, "close-on-exec");
	check(fstat(fd, &st) == 0 && S_ISCHR(st.st_mode) && minor(st.st_rdev) == 255, "fstat");
	check(fstatat(fd, "", &st, AT_EMPTY_PATH) == 0 && S_ISCHR(st.st_mode), "fstatat of a descriptor");
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(path, link, sizeof link - 1);
	check(n > 0 && (link[n] = 0, strcmp(link, "/dev/nvidiactl") == 0), "readlink of a descriptor");
	check(stat(path, &st) == 0 && S_ISCHR(st.st_mode), "stat of a descriptor's path");
	check(open("/dev/char/195:255", O_RDWR) >= 0, "open by number");
	int dev = open("/dev", O_RDONLY | O_DIRECTORY);
	int rel = openat(dev, "nvidia0", O_RDWR);
	check(dev >= 0 && rel >= 0 && (fcntl(rel, F_GETFD) & FD_CLOEXEC) == 0, "openat below /dev");
	check(chdir("/dev") == 0 && (rel = open("nvidia0", O_RDWR)) >= 0, "open of a relative path");
	check(fstat(rel, &st) == 0 && minor(st.st_rdev) == 0, "fstat of it");

	// Ordinary files are untouched.
	check(fstat(dev, &st) == 0 && S_ISDIR(st.st_mode), "fstat of a directory");
	check(stat("/dev/null", &st) == 0 && major(st.st_rdev) == 1, "stat of /dev/null");
	check(open("/nonexistent", O_RDONLY) == -1 && errno == ENOENT, "open of nothing");
	check(open((char *)8, O_RDONLY) == -1 && errno == EFAULT, "open of a bad pointer");
	check(stat("/dev/nvidiactl", (struct stat *)8) == -1 && errno == EFAULT, "stat into a bad pointer");

	char text[256] = "";
	FILE *f = fopen("/proc/driver/nvidia/version", "r");
	check(f && fgets(text, sizeof text, f) && strstr(text, "580.159.04"), "driver version");
	fclose(f);
	int seen = 0;
	f = fopen("/proc/devices", "r");
	while (f && fgets(text, sizeof text, f))
		seen |= (strcmp(text, "195 nvidia\n") == 0) | (strcmp(text, "511 nvidia-uvm\n") == 0) << 1;
	check(seen == 3, "/proc/devices");
	printf("files ok\n");
	return 0;
}

static int maps(void) {
	int fd = open("/dev/nvidia0", O_RDWR | O_CLOEXEC), uvm = open("/dev/nvidia-uvm", O_RDWR | O_CLOEXEC);
	char *m = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	check(m != MAP_FAILED && m[0] == 0 && m[65535] == 0, "map a GPU's file");
	m[100] = 7;
	check(m[100] == 7, "write to it");
	void *at = (void *)0x200000000;
	char *u = mmap(at, 1 << 21, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, uvm, 0x200000000);
	check(u == at, "map UVM at its address");
	memset(u, 1, 1 << 21);
	struct { uint64_t flags; uint32_t status, pad; } init = {0, 0xffffffff, 0};
	check(ioctl(uvm, 0x30000001, &init) == 0 && init.status == 0, "UVM_INITIALIZE");
	printf("maps ok\n");
	return 0;
}

static int descriptors(void) {
	setup();
	uint32_t v;
	int d = dup(ctl);
	check(query(d, client, 1, &v) == 0 && v == 1001, "control on a dup");
	check(dup2(d, 77) == 77 && query(77, client, 1, &v) == 0, "control on a dup2");
	int old = ctl;
	close(old);
	check(query(old, client, 1, &v) == -EBADF, "control on a closed descriptor");
	int null = open("/dev/null", O_RDWR);
	check(null == old, "number is reused");
	check(query(null, client, 1, &v) == -ENOTTY, "control on another file");
	check(query(d, client, 1, &v) == 0 && v == 1001, "control on the dup after the close");
	check(query(-1, client, 1, &v) == -EBADF, "control on -1");
	control_t *bad = (control_t *)8;
	check(ioctl(d, _IOWR('F', 0x2a, control_t), bad) == -1 && errno == EFAULT, "control with a bad argument");
	control_t c = {client, client, CMD, 0, 8, 32, 0};
	check(ioctl(d, _IOWR('F', 0x2a, control_t), &c) == 0 && c.status == 0x1e, "control with bad parameters");

	void *readonly = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	control_t w = {client, client, CMD, 0, (uint64_t)(uintptr_t)readonly, 32, 0xffffffff};
	check(ioctl(d, _IOWR('F', 0x2a, control_t), &w) == -1 && errno == EFAULT, "control with parameters that can't be written");
	check(w.status == 0xffffffff, "a call that fails writes nothing");
	printf("descriptors ok\n");
	return 0;
}

static void *asker(void *arg) {
	long n = (long)arg;
	uint32_t v;
	for (long i = 0; i < n; i++)
		if (query(ctl, client, 1 + i % 2, &v) != 0 || v != 1001 + i % 2)
			return (void *)1;
	return NULL;
}

static int threads(int n, long calls) {
	setup();
	pthread_t *t = calloc(n, sizeof *t);
	for (int i = 0; i < n; i++)
		check(pthread_create(&t[i], NULL, asker, (void *)calls) == 0, "create a thread");
	for (int i = 0; i < n; i++) {
		void *bad;
		pthread_join(t[i], &bad);
		check(bad == NULL, "answers in a thread");
	}
	printf("threads ok\n");
	return 0;
}

static int forks(void) {
	setup();
	for (int i = 0; i < 8; i++) {
		pid_t p = fork();
		if (p == 0)
			_exit(asker((void *)20) ? 1 : 10 + i);
	}
	int sum = 0, st;
	while (wait(&st) > 0)
		sum += WIFEXITED(st) ? WEXITSTATUS(st) : 1000;
	check(sum == 10 * 8 + 28, "answers in children");
	pid_t p = vfork();
	if (p == 0) {
		uint32_t v;
		_exit(query(ctl, client, 1, &v) == 0 && v == 1001 ? 5 : 6);
	}
	check(waitpid(p, &st, 0) == p && WEXITSTATUS(st) == 5, "answer in a vfork child");
	printf("forks ok\n");
	return 0;
}

static int execs(const char *self) {
	setup();
	int keep = dup(ctl); // without close-on-exec
	char fd[16], cl[16], closed[16];
	snprintf(fd, sizeof fd, "%d", keep);
	snprintf(cl, sizeof cl, "%u", client);
	snprintf(closed, sizeof closed, "%d", ctl);
	execl(self, self, "inherited", fd, cl, closed, NULL);
	return 1;
}

static int inherited(int fd, uint32_t cl, int closed) {
	struct stat st;
	uint32_t v;
	check(fstat(fd, &st) == 0 && S_ISCHR(st.st_mode), "fstat of an inherited descriptor");
	check(query(fd, cl, 1, &v) == 0 && v == 1001, "control on an inherited descriptor");
	check(query(closed, cl, 1, &v) == -EBADF, "a close-on-exec descriptor is gone");
	printf("exec ok\n");
	return 0;
}

static int misses(void) {
	setup();
	uint32_t p[8] = {0};
	printf("unknown control: %d\n", control_on(ctl, client, client, 0x1234, p, sizeof p));
	printf("other size: %d\n", control_on(ctl, client, client, CMD, p, 16));
	int r = ioctl(ctl, _IOWR('F', 0x7f, char[8]), p);
	printf("unknown escape: %d %s\n", r, r ? strerror(errno) : "");
	uint32_t v;
	r = query(ctl, client, 77, &v);
	printf("other input: %d %u\n", r, v);
	for (int i = 0; i < 3; i++)
		control_on(ctl, client, client, 0x1234, p, sizeof p);
	fflush(stdout);
	return 3;
}

// passed hands a descriptor over a socket to a child that closed its own.
static int passed(void) {
	setup();
	int sv[2];
	check(socketpair(AF_UNIX, SOCK_STREAM, 0, sv) == 0, "socketpair");
	char byte = 1, space[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec iov = {&byte, 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
	pid_t p = fork();
	if (p == 0) {
		close(ctl);
		if (recvmsg(sv[1], &msg, 0) != 1)
			_exit(1);
		int fd;
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof fd);
		uint32_t v;
		_exit(query(fd, client, 2, &v) == 0 && v == 1002 ? 7 : 8);
	}
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &ctl, sizeof ctl);
	check(sendmsg(sv[0], &msg, 0) == 1, "sendmsg");
	int st;
	check(waitpid(p, &st, 0) == p && WEXITSTATUS(st) == 7, "answer on a passed descriptor");
	printf("passed ok\n");
	return 0;
}

static int limits(void) {
	struct rlimit r = {16, 16};
	check(setrlimit(RLIMIT_NOFILE, &r) == 0, "setrlimit");
	int n = 0, fd;
	while ((fd = open("/dev/nvidia0", O_RDWR)) >= 0)
		n++;
	check(errno == EMFILE && n > 4 && n <= 16, "open up to the limit");
	struct { uint64_t a, b; } unknown = {1, 2};
	close(15);
	check((fd = open("/dev/nvidia-uvm", O_RDWR)) == 15, "the lowest free number");
	// At the end of a page, where only the argument itself can be read.
	char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	check(munmap(page + 4096, 4096) == 0, "munmap");
	memcpy(page + 4096 - sizeof unknown, &unknown, sizeof unknown);
	check(ioctl(fd, 0x90, page + 4096 - sizeof unknown) == -1 && errno == ENOTTY, "an unknown request of UVM");
	free_t *f = (free_t *)(page + 4096 - 8); // half of it can't be read
	close(14);
	check((fd = open("/dev/nvidiactl", O_RDWR)) == 14, "open nvidiactl");
	check(ioctl(fd, _IOWR('F', 0x29, free_t), f) == -1 && errno == EFAULT, "half an argument");
	struct stat st;
	check(stat("/dev/nvidia-caps", &st) == 0 && S_ISDIR(st.st_mode), "directory of recorded nodes");
	check(stat("/dev/nvidia-caps/nvidia-cap1", &st) == 0 && S_ISCHR(st.st_mode) && minor(st.st_rdev) == 1, "node in it");
	printf("limits ok\n");
	return 0;
}

static volatile sig_atomic_t ticks;
static void tick(int sig) { (void)sig; ticks++; }

static int signals(void) {
	setup();
	struct sigaction sa = {.sa_handler = tick, .sa_flags = SA_RESTART};
	sigaction(SIGALRM, &sa, NULL);
	for (int i = 0; i < 20000 || (ticks < 50 && i < 1000000); i++) {
		// One signal for a call, at most: where handling one takes longer than
		// the time to the next, nothing else would be done.
		struct itimerval it = {{0, 0}, {0, 1 + i % 80}};
		setitimer(ITIMER_REAL, &it, NULL);
		uint32_t v;
		int r = query(ctl, client, 1 + i % 2, &v);
		if (r != 0 || v != 1001u + i % 2) {
			printf("FAILED: call %d under signals: %d %u\n", i, r, v);
			return 9;
		}
		if (i % 100 == 0) {
			int fd = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
			check(fd >= 0, "open under signals");
			uint32_t cl = new_client(fd);
			free_t f = {cl, 0, cl, 0xffffffff};
			check(ioctl(fd, _IOWR('F', 0x29, free_t), &f) == 0 && f.status == 0, "free under signals");
			close(fd);
		}
	}
	printf("signals ok\n");
	return 0;
}

static void *hammer(void *arg) {
	(void)arg;
	uint32_t v;
	for (;;) {
		query(ctl, client, 1, &v);
		int fd = open("/dev/nvidia0", O_RDWR);
		if (fd >= 0)
			close(fd);
	}
	return NULL;
}

// killed runs children that die in the middle of their calls.
static int killed(const char *self) {
	setup();
	for (int i = 0; i < 40; i++) {
		pid_t p = fork();
		if (p == 0) {
			pthread_t t;
			for (int j = 0; j < 3; j++)
				pthread_create(&t, NULL, hammer, NULL);
			struct timespec ts = {0, (i * 7919) % 2000000};
			nanosleep(&ts, NULL);
			switch (i % 4) {
			case 0: kill(getpid(), SIGKILL); break;
			case 1: _exit(1);
			case 2: execl(self, self, "true", NULL); break;
			case 3: abort();
			}
		}
		int st;
		check(p > 0 && waitpid(p, &st, 0) == p, "wait for a child");
		int ok = i % 4 == 0 ? WIFSIGNALED(st) && WTERMSIG(st) == SIGKILL
			: i % 4 == 1 ? WIFEXITED(st) && WEXITSTATUS(st) == 1
			: i % 4 == 2 ? WIFEXITED(st) && WEXITSTATUS(st) == 0
			: WIFSIGNALED(st) && WTERMSIG(st) == SIGABRT;
		if (!ok) {
			printf("FAILED: child %d has status %#x\n", i, st);
			return 9;
		}
	}
	uint32_t v;
	check(query(ctl, client, 1, &v) == 0 && v == 1001, "answers after all that");
	printf("killed ok\n");
	return 0;
}

static int objects(void) {
	setup();
	uint32_t params[14] = {0, client};
	uint32_t sub[1] = {0};
	// Handles of our own, other than the recorded ones.
	uint32_t dev = new_object(ctl, client, client, 0x11110001, 0x80, params, sizeof params);
	uint32_t s = new_object(ctl, client, dev, 0x11110002, 0x2080, sub, sizeof sub);
	check(dev == 0x11110001 && s == 0x11110002, "our own handles stay");
	uint32_t chosen = new_object(ctl, client, dev, 0, 0x2081, NULL, 0);
	printf("chosen %#x\n", chosen);
	uint32_t p[8] = {dev, s};
	int r = control_on(ctl, client, s, 0x20800999, p, sizeof p);
	printf("control: %d %#x %#x %u\n", r, p[2], p[3], p[4]);
	// A second client, alive at the same time, gets another handle.
	int fd = open_ctl();
	uint32_t second = new_client(fd);
	check(second != client, "two clients have two handles");
	free_t f = {client, dev, s, 0xffffffff};
	check(ioctl(ctl, _IOWR('F', 0x29, free_t), &f) == 0 && f.status == 0, "free");
	printf("objects ok\n");
	return 0;
}

// pairs asks two open files of one node, the second first.
static int pairs(void) {
	uint64_t b = 0, a = 0; // an answer has what the driver wrote, no more
	int first = open_ctl(), second = open_ctl();
	check(ioctl(second, _IOWR('F', 0xd6, uint64_t), &b) == 0 && ioctl(first, _IOWR('F', 0xd6, uint64_t), &a) == 0, "NV_ESC_SYS_PARAMS");
	printf("first %llu, second %llu\n", (unsigned long long)a, (unsigned long long)b);
	return 0;
}

static int bench(long n) {
	setup();
	uint32_t v;
	struct timespec a, b;
	clock_gettime(CLOCK_MONOTONIC, &a);
	for (long i = 0; i < n; i++)
		check(query(ctl, client, 1, &v) == 0 && v == 1001, "control");
	clock_gettime(CLOCK_MONOTONIC, &b);
	printf("%.0f\n", ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / n);
	return 0;
}

int main(int argc, char **argv) {
	const char *what = argc > 1 ? argv[1] : "basic";
	long n = argc > 2 ? atol(argv[2]) : 1;
	if (!strcmp(what, "basic")) return basic();
	if (!strcmp(what, "files")) return files();
	if (!strcmp(what, "maps")) return maps();
	if (!strcmp(what, "descriptors")) return descriptors();
	if (!strcmp(what, "threads")) return threads(8, 200);
	if (!strcmp(what, "forks")) return forks();
	if (!strcmp(what, "passed")) return passed();
	if (!strcmp(what, "limits")) return limits();
	if (!strcmp(what, "exec")) return execs(argv[0]);
	if (!strcmp(what, "inherited")) return inherited(n, strtoul(argv[3], NULL, 10), atoi(argv[4]));
	if (!strcmp(what, "misses")) return misses();
	if (!strcmp(what, "signals")) return signals();
	if (!strcmp(what, "killed")) return killed(argv[0]);
	if (!strcmp(what, "objects")) return objects();
	if (!strcmp(what, "pairs")) return pairs();
	if (!strcmp(what, "bench")) return bench(n);
	if (!strcmp(what, "true")) return 0;
	if (!strcmp(what, "sleep")) { setup(); printf("ready\n"); fflush(stdout); for (;;) pause(); }
	if (!strcmp(what, "orphan")) {
		setup();
		if (fork() == 0) { usleep(200000); uint32_t v; printf("orphan: %d\n", query(ctl, client, 1, &v)); fflush(stdout); }
		return 0;
	}
	if (!strcmp(what, "crash")) { setup(); raise(SIGSEGV); }
	fprintf(stderr, "unknown behaviour %s\n", what);
	return 2;
}
