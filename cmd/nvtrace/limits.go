package main

import (
	"fmt"
	"os"
	"syscall"

	"nvtrace/ptrace/proc"

	"golang.org/x/sys/unix"
)

// threads is how many nvtrace takes, in both of its processes. Go's runtime ends a
// process that gets no thread when it wants one, and with the tracer its program ends.
const threads = 32

// noThreads returns what to say where the limit of the user's processes and threads
// leaves nvtrace too few; "" where it does not. Root has no such limit.
func noThreads() string {
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
