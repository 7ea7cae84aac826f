package host

import (
	"strconv"

	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
)

// thread is a task as programs see it.
type thread struct{ task *ptrace.Task }

// IDs implements nvattach.HostThread.
func (t *thread) IDs() (pid, tid int) { return t.task.PID, t.task.TID }

// Comm implements nvattach.HostThread.
func (t *thread) Comm() string {
	return proc.Comm(t.task.TID)
}

// User implements nvattach.HostThread.
func (t *thread) User() (uid, gid uint32) {
	user, _ := proc.StatusNumber(t.task.TID, "Uid") // 0 if it has died
	group, _ := proc.StatusNumber(t.task.TID, "Gid")
	return uint32(user), uint32(group)
}

// CPU implements nvattach.HostThread.
func (t *thread) CPU() int {
	n, _ := strconv.Atoi(proc.Stat(t.task.PID, t.task.TID, proc.StatCPU)) // 0 if it has died
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
