package main

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"

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
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	for _, e := range entries {
		if _, err := strconv.ParseUint(e.Name(), 10, 32); err != nil {
			continue
		}
		var st syscall.Stat_t
		if syscall.Stat("/proc/"+e.Name(), &st) != nil || int(st.Uid) != uid {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/status")
		if err != nil {
			continue // it has ended
		}
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, "Threads:"); ok {
				k, _ := strconv.ParseUint(strings.TrimSpace(v), 10, 32)
				n += min(k, math.MaxUint32)
			}
		}
	}
	return n
}
