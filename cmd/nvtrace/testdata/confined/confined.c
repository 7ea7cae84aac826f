// A program that confines itself: it starts threads, installs a seccomp filter that allows
// nothing but what it still does, and works. What it prints and how it ends are the same whoever watches.
//
//	confined HOW ACTION THREADS [wait|early|fork|exec]
//
// HOW: prctl, seccomp (the calling thread), thread (another one), tsync (all threads), strict, none; service, docker and loader
// (filters of all threads that allow what such programs usually make, and what it takes to start one); landlock; notsc (of the processor's counter). ACTION, what the filter does with other
// calls: kill, killthread, trap, errno, enosys. With wait it says ready when it is confined, and reads a byte; with early
// it does so before. With fork a child makes the calls of a thread then; with exec a child confines itself, and becomes
// this program.
//
// Each thread calls work, tiny and cuMemAlloc_v2 CALLS times before that, the main thread ROUNDS times after it, the others CALLS
// times; then all call late and late_tiny CALLS times.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 200, CALLS = 20 };

int cuMemAlloc_v2(unsigned long long *p, unsigned long n);

static volatile int ready, go, done;
static volatile long sum;

__attribute__((noipa)) int tiny(int x) { return x; } // too short for a jump with what is behind it
__attribute__((noipa)) int work(int x)
{
	__asm__ volatile("");
	for (volatile int i = 0; i < 10; i++)
		x = x * 3 + i;
	return x;
}

// What is called for the first time when the program has confined itself, with an argument in memory that nobody
// has looked at before.
__attribute__((noipa)) int late_tiny(int x) { return x; }
__attribute__((noipa)) int late(int x, const char *text)
{
	__asm__ volatile("");
	for (volatile int i = 0; i < 10; i++)
		x = x * 3 + i + text[0];
	return x;
}
static char pages[CALLS * 4 * 2][4096];
static volatile int page;

static void lately(void)
{
	long s = 0;
	for (int i = 0; i < CALLS; i++) {
		char *text = pages[__sync_fetch_and_add(&page, 1)];
		strcpy(text, "text");
		s += late(i, text) + late_tiny(i);
	}
	__sync_fetch_and_add(&sum, s);
}

static void wait_for(volatile int *what, int n)
{
	for (int is; (is = *what) < n;)
		syscall(SYS_futex, what, FUTEX_WAIT_PRIVATE, is, &(struct timespec){0, 1000000}, 0, 0);
}

static void all(void)
{
	long s = 0;
	for (int i = 0; i < CALLS; i++)
		s += work(i) + tiny(i) + cuMemAlloc_v2(&(unsigned long long){0}, 256);
	__sync_fetch_and_add(&sum, s);
}

__attribute__((noreturn)) static void *thread(void *arg)
{
	(void)arg;
	all();
	__sync_fetch_and_add(&ready, 1);
	wait_for(&go, 1);
	all();
	lately();
	__sync_fetch_and_add(&done, 1);
	for (;;)
		syscall(SYS_futex, &done, FUTEX_WAIT_PRIVATE, done, &(struct timespec){1, 0}, 0, 0);
}

// refused says that the kernel has not done it.
static void refused(void)
{
	char *m = "refused\n";
	write(1, m, strlen(m));
}

static struct sock_filter filter[2000];
static int length;

static void put(struct sock_filter f) { filter[length++] = f; }
static void load(unsigned at) { put((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at)); }
static void ret(unsigned what) { put((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, what)); }
static void jump(unsigned op, unsigned k, int t, int f) { put((struct sock_filter)BPF_JUMP(BPF_JMP | op | BPF_K, k, t, f)); }

enum { ARG0 = offsetof(struct seccomp_data, args) };

// What systemd's @system-service names, and what a service's manager allows besides it: to make files in memory.
static const unsigned service[] = {
	// @aio, @basic-io, @io-event
	SYS_io_cancel, SYS_io_destroy, SYS_io_getevents, SYS_io_pgetevents, SYS_io_setup, SYS_io_submit, SYS_io_uring_enter,
	SYS_io_uring_register, SYS_io_uring_setup, SYS_close, SYS_close_range, SYS_dup, SYS_dup2, SYS_dup3, SYS_lseek, SYS_pread64,
	SYS_preadv, SYS_preadv2, SYS_pwrite64, SYS_pwritev, SYS_pwritev2, SYS_read, SYS_readv, SYS_write, SYS_writev,
	SYS_epoll_create, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_epoll_wait, SYS_eventfd,
	SYS_eventfd2, SYS_poll, SYS_ppoll, SYS_pselect6, SYS_select,
	// @default
	SYS_arch_prctl, SYS_brk, SYS_clock_getres, SYS_clock_gettime, SYS_clock_nanosleep, SYS_execve, SYS_exit, SYS_exit_group,
	SYS_futex, SYS_get_robust_list, SYS_get_thread_area, SYS_getegid, SYS_geteuid, SYS_getgid, SYS_getgroups, SYS_getpgid,
	SYS_getpgrp, SYS_getpid, SYS_getppid, SYS_getrandom, SYS_getresgid, SYS_getresuid, SYS_getrlimit, SYS_getsid, SYS_gettid,
	SYS_gettimeofday, SYS_getuid, SYS_membarrier, SYS_mmap, SYS_mprotect, SYS_munmap, SYS_nanosleep, SYS_pause, SYS_prlimit64,
	SYS_restart_syscall, SYS_rseq, SYS_rt_sigreturn, SYS_sched_getaffinity, SYS_sched_yield, SYS_set_robust_list,
	SYS_set_thread_area, SYS_set_tid_address, SYS_time,
	// @file-system, @chown
	SYS_access, SYS_chdir, SYS_chmod, SYS_creat, SYS_faccessat, SYS_faccessat2, SYS_fallocate, SYS_fchdir, SYS_fchmod,
	SYS_fchmodat, SYS_fcntl, SYS_fgetxattr, SYS_flistxattr, SYS_fremovexattr, SYS_fsetxattr, SYS_fstat, SYS_fstatfs, SYS_ftruncate,
	SYS_futimesat, SYS_getcwd, SYS_getdents, SYS_getdents64, SYS_getxattr, SYS_inotify_add_watch, SYS_inotify_init,
	SYS_inotify_init1, SYS_inotify_rm_watch, SYS_lgetxattr, SYS_link, SYS_linkat, SYS_listxattr, SYS_llistxattr, SYS_lremovexattr,
	SYS_lsetxattr, SYS_lstat, SYS_mkdir, SYS_mkdirat, SYS_mknod, SYS_mknodat, SYS_newfstatat, SYS_open, SYS_openat, SYS_openat2,
	SYS_readlink, SYS_readlinkat, SYS_removexattr, SYS_rename, SYS_renameat, SYS_renameat2, SYS_rmdir, SYS_setxattr, SYS_stat,
	SYS_statfs, SYS_statx, SYS_symlink, SYS_symlinkat, SYS_truncate, SYS_unlink, SYS_unlinkat, SYS_utime, SYS_utimensat,
	SYS_utimes, SYS_chown, SYS_fchown, SYS_fchownat, SYS_lchown,
	// @ipc, @keyring, @memlock
	SYS_memfd_create, SYS_mq_getsetattr, SYS_mq_notify, SYS_mq_open, SYS_mq_timedreceive, SYS_mq_timedsend, SYS_mq_unlink,
	SYS_msgctl, SYS_msgget, SYS_msgrcv, SYS_msgsnd, SYS_pipe, SYS_pipe2, SYS_process_madvise, SYS_process_vm_readv,
	SYS_process_vm_writev, SYS_semctl, SYS_semget, SYS_semop, SYS_semtimedop, SYS_shmat, SYS_shmctl, SYS_shmdt, SYS_shmget,
	SYS_add_key, SYS_keyctl, SYS_request_key, SYS_mlock, SYS_mlock2, SYS_mlockall, SYS_munlock, SYS_munlockall,
	// @network-io
	SYS_accept, SYS_accept4, SYS_bind, SYS_connect, SYS_getpeername, SYS_getsockname, SYS_getsockopt, SYS_listen, SYS_recvfrom,
	SYS_recvmmsg, SYS_recvmsg, SYS_sendmmsg, SYS_sendmsg, SYS_sendto, SYS_setsockopt, SYS_shutdown, SYS_socket, SYS_socketpair,
	// @process
	SYS_capget, SYS_capset, SYS_clone, SYS_clone3, SYS_execveat, SYS_fork, SYS_getrusage, SYS_kill, SYS_pidfd_open,
	SYS_pidfd_send_signal, SYS_prctl, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_setns, SYS_tgkill, SYS_times, SYS_tkill,
	SYS_unshare, SYS_vfork, SYS_wait4, SYS_waitid,
	// @resources, @setuid, @signal, @sync, @timer
	SYS_ioprio_set, SYS_mbind, SYS_migrate_pages, SYS_move_pages, SYS_sched_setaffinity, SYS_sched_setattr, SYS_sched_setparam,
	SYS_sched_setscheduler, SYS_set_mempolicy, SYS_setpriority, SYS_setrlimit, SYS_setgid, SYS_setgroups, SYS_setregid,
	SYS_setresgid, SYS_setresuid, SYS_setreuid, SYS_setuid, SYS_rt_sigaction, SYS_rt_sigpending, SYS_rt_sigprocmask,
	SYS_rt_sigsuspend, SYS_rt_sigtimedwait, SYS_sigaltstack, SYS_signalfd, SYS_signalfd4, SYS_fdatasync, SYS_fsync, SYS_msync,
	SYS_sync, SYS_sync_file_range, SYS_syncfs, SYS_alarm, SYS_getitimer, SYS_setitimer, SYS_timer_create, SYS_timer_delete,
	SYS_timer_getoverrun, SYS_timer_gettime, SYS_timer_settime, SYS_timerfd_create, SYS_timerfd_gettime, SYS_timerfd_settime,
	// by itself
	SYS_copy_file_range, SYS_fadvise64, SYS_get_mempolicy, SYS_getcpu, SYS_getpriority, SYS_ioctl, SYS_ioprio_get, SYS_kcmp,
	SYS_madvise, SYS_mremap, SYS_name_to_handle_at, SYS_personality, SYS_readahead, SYS_remap_file_pages,
	SYS_sched_get_priority_max, SYS_sched_get_priority_min, SYS_sched_getattr, SYS_sched_getparam, SYS_sched_getscheduler,
	SYS_sched_rr_get_interval, SYS_sendfile, SYS_setfsgid, SYS_setfsuid, SYS_setpgid, SYS_setsid, SYS_splice, SYS_sysinfo, SYS_tee,
	SYS_umask, SYS_uname, SYS_userfaultfd, SYS_vmsplice,
};

// What docker's default profile allows besides that, without conditions.
static const unsigned docker[] = {
	SYS_landlock_add_rule, SYS_landlock_create_ruleset, SYS_landlock_restrict_self, SYS_memfd_secret, SYS_pidfd_getfd,
	SYS_process_mrelease, SYS_ptrace, SYS_seccomp,
};

// What it takes to start this program, and its threads.
static const unsigned loader[] = {
	SYS_access, SYS_arch_prctl, SYS_brk, SYS_clone, SYS_clone3, SYS_close, SYS_execve, SYS_exit, SYS_exit_group, SYS_fstat, SYS_futex,
	SYS_getrandom, SYS_madvise, SYS_mmap, SYS_mprotect, SYS_munmap, SYS_newfstatat, SYS_openat, SYS_pread64, SYS_prlimit64, SYS_read,
	SYS_rseq, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_set_robust_list, SYS_set_tid_address, SYS_wait4, SYS_write,
};

// Begins a filter as libseccomp does: other machines' calls, and those of x32, are not allowed.
static void begin_list(unsigned action)
{
	load(offsetof(struct seccomp_data, arch));
	jump(BPF_JEQ, 0xc000003e /* AUDIT_ARCH_X86_64 */, 1, 0);
	ret(action);
	load(offsetof(struct seccomp_data, nr));
	jump(BPF_JGE, 0x40000000, 0, 1);
	ret(action);
}

static void allow(const unsigned *list, int n)
{
	for (int i = 0; i < n; i++) {
		jump(BPF_JEQ, list[i], 0, 1);
		ret(SECCOMP_RET_ALLOW);
	}
}

// What docker allows by arguments: personality of five values, clone without CLONE_NEW*, sockets but AF_VSOCK's.
static void docker_conditions(unsigned action)
{
	static const unsigned values[] = {0, 8, 0x20000, 0x20008, 0xffffffff};
	jump(BPF_JEQ, SYS_clone3, 0, 1);
	ret(SECCOMP_RET_ERRNO | ENOSYS);
	jump(BPF_JEQ, SYS_personality, 0, 2 + 2 * 5);
	load(ARG0);
	for (unsigned i = 0; i < 5; i++) {
		jump(BPF_JEQ, values[i], 0, 1);
		ret(SECCOMP_RET_ALLOW);
	}
	ret(action);
	jump(BPF_JEQ, SYS_clone, 0, 5);
	load(ARG0);
	put((struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0x7e020000));
	jump(BPF_JEQ, 0, 0, 1);
	ret(SECCOMP_RET_ALLOW);
	ret(action);
	jump(BPF_JEQ, SYS_socket, 0, 4);
	load(ARG0);
	jump(BPF_JEQ, AF_VSOCK, 1, 0);
	ret(SECCOMP_RET_ALLOW);
	ret(action);
}

static void make_filter(const char *how, unsigned action)
{
	static const unsigned allowed[] = {SYS_write, SYS_read, SYS_futex, SYS_exit, SYS_exit_group, SYS_clone, SYS_wait4};
	if (!strcmp(how, "service")) {
		begin_list(action);
		allow(service, sizeof service / sizeof *service);
	} else if (!strcmp(how, "loader")) {
		begin_list(action);
		allow(loader, sizeof loader / sizeof *loader);
	} else if (!strcmp(how, "docker")) {
		begin_list(action);
		docker_conditions(action);
		allow(docker, sizeof docker / sizeof *docker);
		allow(service, sizeof service / sizeof *service);
	} else {
		load(offsetof(struct seccomp_data, nr));
		allow(allowed, sizeof allowed / sizeof *allowed);
	}
	ret(action);
}

// Restricts what the calling thread, and what comes from it, does with files; with exec it may read and execute them.
static int landlock(int exec)
{
	// All rights of files that the first version has.
	struct landlock_ruleset_attr all = {.handled_access_fs = (1 << 13) - 1};
	int set = syscall(SYS_landlock_create_ruleset, &all, sizeof all, 0);
	struct landlock_path_beneath_attr root = {
	    .allowed_access = LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR, .parent_fd = -1};
	if (exec) {
		root.parent_fd = open("/", O_PATH | O_CLOEXEC);
		syscall(SYS_landlock_add_rule, set, LANDLOCK_RULE_PATH_BENEATH, &root, 0);
		close(root.parent_fd);
	}
	int e = syscall(SYS_landlock_restrict_self, set, 0);
	close(set);
	return e;
}

static void confine(const char *how, const char *action, int exec)
{
	unsigned other = !strcmp(action, "kill") ? SECCOMP_RET_KILL_PROCESS
	    : !strcmp(action, "killthread")	  ? SECCOMP_RET_KILL_THREAD
	    : !strcmp(action, "trap")		  ? SECCOMP_RET_TRAP
	    : !strcmp(action, "enosys")		  ? SECCOMP_RET_ERRNO | ENOSYS
						  : SECCOMP_RET_ERRNO | EPERM;
	int e = 0;
	if (!strcmp(how, "none"))
		return;
	make_filter(how, other);
	struct sock_fprog p = {length, filter};
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (!strcmp(how, "prctl"))
		e = prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p);
	else if (!strcmp(how, "seccomp") || !strcmp(how, "thread"))
		e = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p);
	else if (!strcmp(how, "strict"))
		e = prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
	else if (!strcmp(how, "landlock"))
		e = landlock(exec);
	else if (!strcmp(how, "notsc"))
		e = prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
	else
		e = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &p);
	if (e)
		refused();
}

// A thread that confines itself, and nobody else.
static void *confines(void *arg)
{
	confine("thread", arg, 0);
	thread(0);
}

static void start(void *(*run)(void *), void *arg)
{
	pthread_t t;
	if (pthread_create(&t, 0, run, arg))
		_exit(3);
}

static void say_ready(void)
{
	char c;
	write(1, "ready\n", 6);
	if (read(0, &c, 1) < 0)
		syscall(SYS_exit, 4);
}

int main(int argc, char **argv)
{
	const char *how = argv[1], *action = argv[2], *more = argc > 4 ? argv[4] : "";
	int n = atoi(argv[3]), one = !strcmp(how, "thread");
	if (!strcmp(more, "exec")) {
		int status, child = fork();
		if (!child) {
			confine(how, action, 1);
			execl("/proc/self/exe", "confined", "none", action, argv[3], (char *)0);
			_exit(5);
		}
		waitpid(child, &status, 0);
		return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
	}
	for (int i = 0; i < n - one; i++)
		start(thread, 0);
	if (one)
		start(confines, argv[2]);
	wait_for(&ready, n);
	all();
	if (!strcmp(more, "early"))
		say_ready();
	if (!one)
		confine(how, action, 0);
	if (!strcmp(more, "fork")) {
		long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
		if (!child) {
			all();
			syscall(SYS_exit_group, 0);
		}
		syscall(SYS_wait4, child, 0, 0, 0);
	} else if (!strcmp(more, "wait")) // whoever wants to attach can do so
		say_ready();
	go = 1;
	for (int i = 0; i < ROUNDS / CALLS; i++)
		all();
	lately();
	wait_for(&done, n);
	char text[64];
	int len = snprintf(text, sizeof text, "sum %ld\n", sum);
	write(1, text, len);
	syscall(strcmp(how, "strict") ? SYS_exit_group : SYS_exit, 7); // strict mode allows the latter alone
}
