package ptrace

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"nvtrace/ptrace/proc"

	"golang.org/x/sys/unix"
)

// tgidOf returns the process that a thread belongs to, itself if that is not
// known.
func tgidOf(tid int) int {
	if pid, ok := proc.StatusNumber(tid, "Tgid"); ok {
		return pid
	}
	return tid
}

// whyNoPtrace looks for what forbids tracing on this machine; "" if it finds
// nothing.
func whyNoPtrace() string {
	b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err != nil {
		return ""
	}
	switch scope := strings.TrimSpace(string(b)); scope {
	case "0":
		return ""
	default:
		return fmt.Sprintf(" (kernel.yama.ptrace_scope is %s: %s)", scope, yamaScopes[scope])
	}
}

var yamaScopes = map[string]string{
	"1": "only descendants can be traced; use sudo, or set it to 0",
	"2": "only root can trace",
	"3": "nobody can trace until the next boot",
}

// WhyRefused says, in parentheses, why the kernel most likely refused access to the
// memory of a traced process, and what helps; "" if err is no refusal.
func WhyRefused(pid int, err error) string {
	if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) {
		return ""
	}
	if uid, ok := proc.StatusNumber(pid, "Uid"); ok && os.Geteuid() != 0 && uid != os.Geteuid() {
		return fmt.Sprintf(" (process %d has become user %d's, use sudo)", pid, uid)
	}
	if why := whyNoPtrace(); why != "" {
		return why
	}
	return fmt.Sprintf(" (process %d has made itself undumpable, as by PR_SET_DUMPABLE, or a security module forbids it; try as root)", pid)
}

// sorted sorts ids, first before all others.
func sorted(ids []int, first int) []int {
	slices.SortFunc(ids, func(a, b int) int {
		if a == first || b == first {
			if a == b {
				return 0
			}
			if a == first {
				return -1
			}
			return 1
		}
		return a - b
	})
	return ids
}
