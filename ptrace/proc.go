package ptrace

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// FD is an open file of a process, as /proc/PID/fd shows it.
type FD struct {
	Num    int
	Target string // what the link points to
}

// FDs lists the open files of a process, in the order of their numbers.
func FDs(pid int) ([]FD, error) {
	dir := procPath(pid, "fd")
	ents, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var fds []FD
	for _, e := range ents {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// A descriptor closed meanwhile is no longer one.
		if target, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil {
			fds = append(fds, FD{n, target})
		}
	}
	slices.SortFunc(fds, func(a, b FD) int { return a.Num - b.Num })
	return fds, nil
}

// Exe returns the file that a process executes.
func Exe(pid int) (string, error) { return os.Readlink(procPath(pid, "exe")) }

// Cmdline returns the arguments of a process.
func Cmdline(pid int) ([]string, error) {
	b, err := os.ReadFile(procPath(pid, "cmdline"))
	if err != nil || len(b) == 0 {
		return nil, err
	}
	var args []string
	for a := range bytes.SplitSeq(bytes.TrimSuffix(b, []byte{0}), []byte{0}) {
		args = append(args, string(a))
	}
	return args, nil
}

func procPath(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }

// statusField returns a number from /proc/PID/status.
func statusField(pid int, name string) (int, error) {
	b, err := os.ReadFile(procPath(pid, "status"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strconv.Atoi(strings.Fields(v + " 0")[0])
		}
	}
	return 0, errNoField
}

// errNoField: this kernel's /proc/PID/status lacks it.
var errNoField = errors.New("no such field")

// tgidOf returns the process that a thread belongs to, itself if that is not
// known.
func tgidOf(tid int) int {
	if pid, err := statusField(tid, "Tgid"); err == nil {
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
	if uid, err := statusField(pid, "Uid"); err == nil && os.Geteuid() != 0 && uid != os.Geteuid() {
		return fmt.Sprintf(" (process %d has become user %d's, use sudo)", pid, uid)
	}
	if why := whyNoPtrace(); why != "" {
		return why
	}
	return fmt.Sprintf(" (process %d has made itself undumpable, as by PR_SET_DUMPABLE, or a security module forbids it; try as root)", pid)
}

// stateOf returns the state in /proc/PID/stat, which stands behind the name in
// parentheses.
func stateOf(stat []byte) byte {
	if i := bytes.LastIndexByte(stat, ')'); i >= 0 && i+2 < len(stat) {
		return stat[i+2]
	}
	return '?'
}

func trimLine(b []byte) string { return strings.TrimSpace(string(b)) }

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
