package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"nvtrace/ptrace/proc"

	"golang.org/x/sys/unix"
)

// descriptors is how many nvtrace has at least, in each of its processes: it opens some 30, and some more
// for each process that it traces.
const descriptors = 64

// NoDescriptors returns what to say where the limit of open files leaves nvtrace too few; "" where it does
// not. Where it may, it raises the limit of this process; the program gets the one that there was.
func NoDescriptors() string {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Cur >= descriptors {
		return "" // Go's runtime has raised it to the hard limit
	}
	if unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: descriptors, Max: max(limit.Max, descriptors)}) == nil {
		return ""
	}
	return fmt.Sprintf("only %d files may be open at once (ulimit -n), and nvtrace needs %d: raise the limit", limit.Cur, descriptors)
}

// NoProc returns what to say where /proc is not there, from which almost all is known of processes; "" where it is.
func NoProc() string {
	if _, err := os.Readlink("/proc/self"); err == nil || !errors.Is(err, os.ErrNotExist) {
		return ""
	}
	return "/proc is not mounted here, and nvtrace knows processes by it: mount -t proc proc /proc"
}

// Untraced executes the program as it is, in place of nvtrace, which says why it can't trace it.
func (e *Env) Untraced(why string, command []string) int {
	e.Notice("%s; %s runs untraced", why, command[0])
	return e.Become(command)
}

// Become executes a command in place of nvtrace.
func (e *Env) Become(command []string) int {
	path, err := exec.LookPath(command[0])
	if err == nil || errors.Is(err, exec.ErrDot) {
		err = syscall.Exec(path, command, os.Environ())
	}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return e.Fail(ExitNotFound, "%v", err)
	}
	return e.Fail(ExitNoExec, "%v", err)
}

// threads is how many nvtrace takes, in both of its processes. Go's runtime ends a
// process that gets no thread when it wants one, and with the tracer its program ends.
const threads = 32

// NoThreads returns what to say where the limit of the user's processes and threads
// leaves nvtrace too few; "" where it does not. Root has no such limit.
func NoThreads() string {
	var limit unix.Rlimit
	// A limit that is far away need not be counted against.
	const near = 1 << 13
	if unix.Getrlimit(unix.RLIMIT_NPROC, &limit) != nil || limit.Cur > near || os.Geteuid() == 0 {
		return ""
	}
	return fewThreads(limit.Cur, tasks(os.Getuid()))
}

func fewThreads(limit, used uint64) string {
	if used+threads <= limit {
		return ""
	}
	left := uint64(0)
	if used < limit {
		left = limit - used
	}
	return fmt.Sprintf("of the processes and threads that this user may have (ulimit -u %d) %d are left, and nvtrace takes up to %d: raise the limit", limit, left, threads)
}

// tasks counts the threads of a user that can be seen.
func tasks(uid int) (n uint64) {
	for _, pid := range proc.All() {
		var st syscall.Stat_t
		if syscall.Stat(proc.Path(pid, ""), &st) != nil || int(st.Uid) != uid {
			continue
		}
		k, _ := proc.StatusNumber(pid, "Threads") // none if it has ended
		n += uint64(max(k, 0))
	}
	return n
}
