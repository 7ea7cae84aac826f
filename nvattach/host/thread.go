package host

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"nvtrace/ptrace"
)

// thread is a task as programs see it.
type thread struct{ task *ptrace.Task }

// IDs implements nvattach.HostThread.
func (t *thread) IDs() (pid, tid int) { return t.task.PID, t.task.TID }

// Comm implements nvattach.HostThread.
func (t *thread) Comm() string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", t.task.TID)) // empty if it has died
	return strings.TrimSuffix(string(b), "\n")
}

// User implements nvattach.HostThread.
func (t *thread) User() (uid, gid uint32) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", t.task.TID))
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "Uid:" && f[0] != "Gid:" {
			continue
		}
		n, _ := strconv.ParseUint(f[1], 10, 32)
		if f[0] == "Uid:" {
			uid = uint32(n)
		} else {
			gid = uint32(n)
		}
	}
	return uid, gid
}

// statCPU is the field of /proc/TID/stat with the CPU, counted from the one behind the
// name.
const statCPU = 36

// CPU implements nvattach.HostThread.
func (t *thread) CPU() int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", t.task.TID))
	_, rest, _ := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
	f := strings.Fields(rest)
	if len(f) <= statCPU {
		return 0
	}
	n, _ := strconv.Atoi(f[statCPU])
	return max(n, 0)
}

// Read implements nvattach.HostThread.
func (t *thread) Read(addr uint64, buf []byte) int {
	n, _ := t.task.ReadText(addr, buf)
	return n
}

// Now implements nvattach.HostThread.
func (t *thread) Now() uint64 {
	return uint64(ptrace.Now())
}
