// What the process gives up before it loads the library: privileges, files,
// the network, other processes. What is left: reading the system's libraries,
// memory, threads, and the three pipes.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

enum {
	NR_read = 0, NR_write, NR_open, NR_close, NR_stat, NR_fstat, NR_lstat, NR_poll, NR_lseek, NR_mmap,
	NR_mprotect, NR_munmap, NR_brk, NR_rt_sigaction, NR_rt_sigprocmask, NR_rt_sigreturn, NR_ioctl, NR_pread64, NR_pwrite64, NR_readv,
	NR_writev, NR_access, NR_sched_yield = 24, NR_mremap, NR_mincore = 27, NR_madvise,
	NR_nanosleep = 35, NR_getpid = 39, NR_clone = 56, NR_exit = 60, NR_uname = 63,
	NR_fcntl = 72, NR_getcwd = 79, NR_readlink = 89, NR_gettimeofday = 96, NR_getrlimit = 97, NR_getrusage, NR_sysinfo, NR_times,
	NR_getuid = 102, NR_getgid = 104, NR_geteuid = 107, NR_getegid, NR_getppid = 110, NR_setgroups = 116, NR_setresuid, NR_setresgid = 119,
	NR_capset = 126, NR_sigaltstack = 131, NR_statfs = 137, NR_fstatfs, NR_prctl = 157, NR_arch_prctl, NR_setrlimit = 160,
	NR_gettid = 186, NR_time = 201, NR_futex, NR_sched_getaffinity = 204, NR_getdents64 = 217, NR_set_tid_address, NR_restart_syscall,
	NR_clock_gettime = 228, NR_clock_getres, NR_clock_nanosleep, NR_exit_group, NR_tgkill = 234, NR_openat = 257, NR_newfstatat = 262,
	NR_readlinkat = 267, NR_faccessat = 269, NR_ppoll = 271, NR_set_robust_list = 273, NR_prlimit64 = 302, NR_getcpu = 309, NR_seccomp = 317,
	NR_getrandom, NR_membarrier = 324, NR_statx = 332, NR_rseq = 334, NR_clone3 = 435, NR_close_range,
	NR_faccessat2 = 439, NR_landlock_create_ruleset = 444, NR_landlock_add_rule, NR_landlock_restrict_self,
};

#define REFUSE(e) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (e))
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define TAKE(nr) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1), ALLOW
// TAKE_IF allows a call if an argument's lower half has these bits of a mask.
#define TAKE_IF(nr, arg, mask, bits)                                                                                           \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 5), BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 16 + 8 * (arg)),                         \
		BPF_STMT(BPF_ALU | BPF_AND | BPF_K, mask), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, bits, 0, 1), ALLOW, REFUSE(1)

enum {
	WRITING = 3 | 0100 | 01000 | 020000000, // of open's flags: O_ACCMODE, O_CREAT, O_TRUNC, O_TMPFILE
	THREAD = 0x10100,                       // of clone's: CLONE_THREAD, CLONE_VM
};

// rules is a list of what may be called. All else fails with EPERM, so that a
// library which asks in vain can go on. The two zeros become our process id.
static struct sock_filter rules[] = {
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
	TAKE(NR_futex), TAKE(NR_read), TAKE(NR_write), TAKE(NR_readv), TAKE(NR_writev), TAKE(NR_pread64), TAKE(NR_lseek), TAKE(NR_close),
	TAKE(NR_mmap), TAKE(NR_munmap), TAKE(NR_mprotect), TAKE(NR_mremap), TAKE(NR_brk), TAKE(NR_madvise), TAKE(NR_mincore),
	TAKE_IF(NR_open, 1, WRITING, 0), TAKE_IF(NR_openat, 2, WRITING, 0),
	TAKE(NR_stat), TAKE(NR_fstat), TAKE(NR_lstat), TAKE(NR_newfstatat), TAKE(NR_statx), TAKE(NR_statfs), TAKE(NR_fstatfs),
	TAKE(NR_access), TAKE(NR_faccessat), TAKE(NR_faccessat2), TAKE(NR_readlink), TAKE(NR_readlinkat), TAKE(NR_getcwd), TAKE(NR_getdents64),
	TAKE(NR_rt_sigaction), TAKE(NR_rt_sigprocmask), TAKE(NR_rt_sigreturn), TAKE(NR_sigaltstack), TAKE(NR_restart_syscall),
	TAKE(NR_clock_gettime), TAKE(NR_clock_getres), TAKE(NR_clock_nanosleep), TAKE(NR_nanosleep), TAKE(NR_gettimeofday), TAKE(NR_time),
	TAKE(NR_times), TAKE(NR_getrusage), TAKE(NR_sysinfo), TAKE(NR_uname), TAKE(NR_getrandom), TAKE(NR_getcpu),
	TAKE(NR_sched_yield), TAKE(NR_sched_getaffinity), TAKE(NR_poll), TAKE(NR_ppoll),
	TAKE(NR_getpid), TAKE(NR_gettid), TAKE(NR_getppid), TAKE(NR_getuid), TAKE(NR_geteuid), TAKE(NR_getgid), TAKE(NR_getegid), TAKE(NR_getrlimit),
	TAKE(NR_arch_prctl), TAKE(NR_set_tid_address), TAKE(NR_set_robust_list), TAKE(NR_rseq), TAKE(NR_membarrier),
	TAKE(NR_exit), TAKE(NR_exit_group),
	TAKE_IF(NR_clone, 0, THREAD, THREAD),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NR_clone3, 0, 1), REFUSE(38), // ENOSYS: the C library then calls clone
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NR_ioctl, 0, 1), REFUSE(25),  // ENOTTY: nothing here is a terminal
	TAKE_IF(NR_fcntl, 1, ~3U, 0),                                     // F_DUPFD, F_GETFD, F_SETFD, F_GETFL
	TAKE_IF(NR_prctl, 0, ~0U, 15),                                    // PR_SET_NAME
	TAKE_IF(NR_prlimit64, 0, ~0U, 0),                                 // this process's limits
	TAKE_IF(NR_tgkill, 0, ~0U, 0),                                    // abort's; the zero is set below
	REFUSE(1),
};

enum { TGKILL_PID = sizeof rules / sizeof rules[0] - 4 };

// Landlock's structures, which not every machine's headers have.
struct ruleset {
	uint64_t fs, net, scoped;
};
struct __attribute__((packed)) beneath {
	uint64_t access;
	int32_t fd;
};

enum { READ_FILE = 1 << 2, READ_DIR = 1 << 3 };

static void readable(long rules_fd, long fd, uint64_t access)
{
	struct beneath b = {access, (int32_t)fd};
	syscall6(NR_landlock_add_rule, rules_fd, 1, (long)&b, 0, 0, 0);
}

// read_only leaves of the file system what the loader of libraries and the C
// library read. A kernel without Landlock (before 5.13, or not enabled) leaves
// that to the filter of system calls, which lets nothing be written either.
static void read_only(long library)
{
	static const char *const folders[] = {"/usr", "/lib", "/lib64", "/nix/store", "/gnu/store", "/sys/devices/system/cpu", "/proc/self"};
	static const char *const files[] = {"/etc/ld.so.cache", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/dev/urandom"};
	long abi = syscall6(NR_landlock_create_ruleset, 0, 0, 1, 0, 0, 0);
	if (abi < 1)
		return;
	struct ruleset set = {
		.fs = abi >= 5 ? 0xffff : abi >= 3 ? 0x7fff : abi >= 2 ? 0x3fff : 0x1fff,
		.net = abi >= 4 ? 3 : 0,
		.scoped = abi >= 6 ? 3 : 0,
	};
	long fd = syscall6(NR_landlock_create_ruleset, (long)&set, abi >= 6 ? 24 : abi >= 4 ? 16 : 8, 0, 0, 0, 0);
	if (fd < 0)
		return;
	readable(fd, library, READ_FILE);
	for (size_t i = 0; i < sizeof folders / sizeof folders[0] + sizeof files / sizeof files[0]; i++) {
		int folder = i < sizeof folders / sizeof folders[0];
		const char *name = folder ? folders[i] : files[i - sizeof folders / sizeof folders[0]];
		long at = syscall6(NR_openat, -100, (long)name, 010000000 | 02000000, 0, 0, 0); // O_PATH|O_CLOEXEC
		if (at < 0)
			continue;
		readable(fd, at, folder ? READ_FILE | READ_DIR : READ_FILE);
		syscall6(NR_close, at, 0, 0, 0, 0, 0);
	}
	syscall6(NR_landlock_restrict_self, fd, 0, 0, 0, 0, 0);
	syscall6(NR_close, fd, 0, 0, 0, 0, 0);
}

// limit fails only where a lower limit holds already.
static void limit(int what, uint64_t to)
{
	uint64_t r[2] = {to, to};
	syscall6(NR_setrlimit, what, (long)r, 0, 0, 0, 0);
}

// confine gives up what compiling does not need.
static void confine(long library, uint64_t memory, uint64_t seconds)
{
	enum { NOBODY = 65534 };
	static const struct { uint32_t version; int32_t pid; } header = {0x20080522, 0};
	static const uint32_t none[6];
	syscall6(NR_close, library - 1, 0, 0, 0, 0, 0); // this program's own file
	if (syscall6(NR_close_range, library + 1, ~0U, 0, 0, 0, 0) != 0)
		for (long fd = library + 1; fd < 1024; fd++)
			syscall6(NR_close, fd, 0, 0, 0, 0, 0);
	limit(0, seconds); // RLIMIT_CPU
	limit(1, 0);       // RLIMIT_FSIZE
	limit(4, 0);       // RLIMIT_CORE
	limit(7, 64);      // RLIMIT_NOFILE
	limit(9, memory);  // RLIMIT_AS
	// A namespace of users may lack nobody. Its root then loses its capabilities.
	if (syscall6(NR_geteuid, 0, 0, 0, 0, 0, 0) == 0) {
		syscall6(NR_setgroups, 0, 0, 0, 0, 0, 0);
		syscall6(NR_setresgid, NOBODY, NOBODY, NOBODY, 0, 0, 0);
		syscall6(NR_setresuid, NOBODY, NOBODY, NOBODY, 0, 0, 0);
	}
	if (syscall6(NR_capset, (long)&header, (long)none, 0, 0, 0, 0) != 0)
		fail("the kernel does not let go of capabilities");
	syscall6(NR_prctl, 4, 0, 0, 0, 0, 0); // PR_SET_DUMPABLE: others of this user can't trace us
	if (syscall6(NR_prctl, 38, 1, 0, 0, 0, 0) != 0) // PR_SET_NO_NEW_PRIVS
		fail("the kernel has no no_new_privs: the driver's compiler can't be confined");
	read_only(library);
	rules[TGKILL_PID].k = (uint32_t)syscall6(NR_getpid, 0, 0, 0, 0, 0, 0);
	struct sock_fprog prog = {sizeof rules / sizeof rules[0], rules};
	// Without this flag (4.17), kernels before 5.16 slow the process down: they
	// turn a guess of the processor's off, by which it could only spy on itself.
	if (syscall6(NR_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, (long)&prog, 0, 0, 0) != 0 &&
	    syscall6(NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, (long)&prog, 0, 0, 0) != 0)
		fail("the kernel has no seccomp: the driver's compiler can't be confined");
}
