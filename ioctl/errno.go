package ioctl

import "strconv"

// errnoNames are Linux' error numbers (asm-generic/errno-base.h, errno.h), which
// x86 and arm64 share. A recording may be read on another system, whose own
// numbers would mislead.
var errnoNames = [...]string{
	1: "EPERM", 2: "ENOENT", 3: "ESRCH", 4: "EINTR", 5: "EIO", 6: "ENXIO", 7: "E2BIG", 8: "ENOEXEC", 9: "EBADF", 10: "ECHILD",
	11: "EAGAIN", 12: "ENOMEM", 13: "EACCES", 14: "EFAULT", 15: "ENOTBLK", 16: "EBUSY", 17: "EEXIST", 18: "EXDEV", 19: "ENODEV",
	20: "ENOTDIR", 21: "EISDIR", 22: "EINVAL", 23: "ENFILE", 24: "EMFILE", 25: "ENOTTY", 26: "ETXTBSY", 27: "EFBIG", 28: "ENOSPC",
	29: "ESPIPE", 30: "EROFS", 31: "EMLINK", 32: "EPIPE", 33: "EDOM", 34: "ERANGE", 35: "EDEADLK", 36: "ENAMETOOLONG", 37: "ENOLCK",
	38: "ENOSYS", 39: "ENOTEMPTY", 40: "ELOOP", 61: "ENODATA", 62: "ETIME", 71: "EPROTO", 75: "EOVERFLOW", 77: "EBADFD", 84: "EILSEQ",
	85: "ERESTART", 95: "EOPNOTSUPP", 105: "ENOBUFS", 108: "ESHUTDOWN", 110: "ETIMEDOUT", 114: "EALREADY", 115: "EINPROGRESS",
	116: "ESTALE", 121: "EREMOTEIO", 125: "ECANCELED", 130: "EOWNERDEAD", 133: "EHWPOISON",
	512: "ERESTARTSYS", 513: "ERESTARTNOINTR", 514: "ERESTARTNOHAND", 516: "ERESTART_RESTARTBLOCK",
}

// errnoName returns the name of a Linux error number, "errno 123" for one
// without.
func errnoName(e int32) string {
	if e > 0 && int(e) < len(errnoNames) && errnoNames[e] != "" {
		return errnoNames[e]
	}
	return "errno " + strconv.Itoa(int(e))
}

// ErrnoName returns the name of a Linux error number, "errno 123" for one
// without.
func ErrnoName(e int32) string { return errnoName(e) }

// signalNames are Linux' signals (asm-generic/signal.h).
var signalNames = [...]string{
	1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
	10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 16: "SIGSTKFLT", 17: "SIGCHLD",
	18: "SIGCONT", 19: "SIGSTOP", 20: "SIGTSTP", 21: "SIGTTIN", 22: "SIGTTOU", 23: "SIGURG", 24: "SIGXCPU", 25: "SIGXFSZ",
	26: "SIGVTALRM", 27: "SIGPROF", 28: "SIGWINCH", 29: "SIGIO", 30: "SIGPWR", 31: "SIGSYS",
}

// signalName returns the name of a signal, "signal 40" for one without.
func signalName(s int32) string {
	if s > 0 && int(s) < len(signalNames) && signalNames[s] != "" {
		return signalNames[s]
	}
	return "signal " + strconv.Itoa(int(s))
}
