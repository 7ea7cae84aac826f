package host

import (
	"strconv"

	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
	"nvtrace/ptrace/unwind"
)

// thread is a task as programs see it.
type thread struct {
	task *ptrace.Task
	t    *Tracer
	regs *ptrace.Regs // as programs see them; nil: as they are
}

// Callers implements nvattach.HostThread.
func (t *thread) Callers(n int) []uint64 {
	regs, err := t.regs, error(nil)
	if regs == nil {
		regs, err = t.task.Regs()
	}
	p := t.t.procs[t.task.Proc]
	if err != nil || p == nil {
		return nil // it has died
	}
	if p.stacks == nil {
		p.stacks = unwind.Of(p.pid)
	}
	p.stacks.Return = func(at, addr uint64) uint64 {
		if f := t.t.fast; f != nil {
			return f.agent.ReturnOf(t.task, at, addr)
		}
		return t.task.ReturnOf(at, addr)
	}
	var list []uint64
	for _, f := range p.stacks.Walk(t.task, unwind.RegsOf(regs), n) {
		list = append(list, f.PC)
	}
	return list
}

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

// Write implements nvattach.HostThread.
func (t *thread) Write(addr uint64, buf []byte) int {
	v := proc.NewView(t.task.PID)
	defer v.Close()
	can := 0 // a debugger may write more
	for can < len(buf) {
		m := v.At(addr + uint64(can))
		if m == nil || !m.Write { // or it has died
			break
		}
		can = int(min(uint64(len(buf)), m.End-addr))
	}
	n, _ := t.task.WriteMem(addr, buf[:can])
	return n
}

// Now implements nvattach.HostThread.
func (t *thread) Now() uint64 {
	return uint64(ptrace.Now())
}
