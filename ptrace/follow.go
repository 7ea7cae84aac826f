package ptrace

import (
	"bytes"
	"strconv"

	"golang.org/x/sys/unix"
)

// followEvery is how many stops in a row one task must make before the tracing
// thread looks where it runs, and after which it looks again.
const followEvery = 16

// follower keeps the tracing thread on the processor of the task that stops
// most. Waking a thread on another, idle processor takes longer than all the
// rest of a stop; on the same one it is a plain switch. Only the tracer's own
// affinity changes, never the program's. With tasks that stop in turn the
// thread stays free to run anywhere.
type follower struct {
	task   *Task
	streak int
	pinned int // the processor that the thread is bound to, -1 none
	all    unix.CPUSet
}

func newFollower() *follower {
	f := &follower{pinned: -1}
	if unix.SchedGetaffinity(0, &f.all) != nil || f.all.Count() < 2 {
		return nil // nowhere to go
	}
	return f
}

// stopped notes a stop of t. A nil follower does nothing.
func (f *follower) stopped(t *Task) {
	if f == nil {
		return
	}
	if f.task != t {
		f.task, f.streak = t, 0
		f.free()
		return
	}
	if f.streak++; f.streak%followEvery != 0 {
		return
	}
	cpu := taskCPU(t)
	if cpu == f.pinned || cpu < 0 || !f.all.IsSet(cpu) {
		return
	}
	var one unix.CPUSet
	one.Set(cpu)
	if unix.SchedSetaffinity(0, &one) == nil {
		f.pinned = cpu
	}
}

// free lets the thread run anywhere again.
func (f *follower) free() {
	if f != nil && f.pinned >= 0 {
		_ = unix.SchedSetaffinity(0, &f.all) // it was allowed before
		f.pinned = -1
	}
}

// taskCPU returns the processor that a stopped task ran on last, -1 if unknown.
func taskCPU(t *Task) int {
	fd, err := unix.Open("/proc/"+strconv.Itoa(t.PID)+"/task/"+strconv.Itoa(t.TID)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	defer unix.Close(fd)
	var buf [1024]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return -1
	}
	return statCPU(buf[:n])
}

// statCPU finds the processor in the text of /proc/PID/stat: field 39
// (proc_pid_stat(5)), counted from the command's closing parenthesis, since the
// command may hold anything.
func statCPU(stat []byte) int {
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 {
		return -1
	}
	field := 2 // the command
	for i++; i < len(stat); i++ {
		if stat[i] != ' ' {
			continue
		}
		if field++; field < 39 {
			continue
		}
		cpu := 0
		for _, c := range stat[i+1:] {
			if c < '0' || c > '9' {
				break
			}
			cpu = cpu*10 + int(c-'0')
		}
		return cpu
	}
	return -1
}
