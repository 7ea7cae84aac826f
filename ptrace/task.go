package ptrace

import (
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Range is a run of a task's memory to be read into Buf.
type Range struct {
	Addr uint64
	Buf  []byte
	N    int // bytes read, from the beginning of Buf
}

func newProcess(pid int) *Process {
	p := &Process{PID: pid, mem: -1}
	p.openMem()
	return p
}

// openMem opens the process's memory. It is done when a program begins, since
// the permission is checked then only: a program that makes itself undumpable
// later can still be read.
func (p *Process) openMem() {
	p.closeMem()
	fd, err := unix.Open("/proc/"+strconv.Itoa(p.PID)+"/mem", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		p.mem = fd
	}
}

// shareMem takes the memory of a process that p shares it with, if p's own can't be opened.
func (p *Process) shareMem(with *Process) {
	if p.mem >= 0 || with.mem < 0 {
		return
	}
	if fd, err := unix.FcntlInt(uintptr(with.mem), unix.F_DUPFD_CLOEXEC, 0); err == nil {
		p.mem = fd
	}
}

func (p *Process) closeMem() {
	if p.mem >= 0 {
		unix.Close(p.mem)
		p.mem = -1
	}
}

// hasThread asks /proc whether tid is one of the process's threads.
func (p *Process) hasThread(tid int) bool {
	b := append(p.path[:0], "/proc/"...)
	b = strconv.AppendInt(b, int64(p.PID), 10)
	b = append(b, "/task/"...)
	b = strconv.AppendInt(b, int64(tid), 10)
	p.path = append(b, 0)
	return exists(p.path)
}

// fork makes the entry of a child process, but for its memory.
func (p *Process) fork(pid int) *Process {
	c := newProcess(pid)
	c.all, c.sets, c.ours = p.all, slices.Clone(p.sets), p.ours
	c.own, c.ownKnown, c.noRestart = slices.Clip(p.own), p.ownKnown, p.noRestart
	return c
}
