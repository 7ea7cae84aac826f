package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"golang.org/x/arch/x86/x86asm"
	"golang.org/x/sys/unix"

	"nvtrace/ptrace"
	"nvtrace/ptrace/dso"
	"nvtrace/ptrace/proc"
)

// SetCallProbes says what runs at system calls, in processes that the agent is put into from
// now on; SetPrograms must have been called. asked says who else wants calls of a number: all
// of them are to stop for the supervisor as well, if the agent does not record them, or those about
// memory that is to be executed. Calls that stop in a process for which
// [Agent.RunsCalls] is true, and that come from the agent's code, have had their programs run.
// Those that come from an instruction that Process.PatchSite was not called for, or that can't
// be rerouted, stop as before.
func (a *Agent) SetCallProbes(list []CallProbe, asked func(nr uint64) (all, code bool)) {
	a.called, a.asked = make([]*CallProbe, numCalls), asked
	for i := range list {
		if c := &list[i]; c.Nr < numCalls && !slices.Contains(inPlace, c.Nr) {
			a.called[c.Nr] = c
		}
	}
}

// inPlace are system calls that can't be made from elsewhere: they return twice, on another
// stack, in another program, or look at what is on the stack. (fork, vfork, clone, clone3, execve,
// execveat, rt_sigreturn.)
var inPlace = []uint64{57, 58, 56, 435, 59, 322, 15}

// calledAt returns what runs at calls of a number, nil if nothing does.
func (a *Agent) calledAt(nr uint64) *CallProbe {
	if nr >= uint64(len(a.called)) {
		return nil
	}
	return a.called[nr]
}

// RunsCalls reports whether the programs of SetCallProbes run in t's process, at calls that are
// rerouted.
func (a *Agent) RunsCalls(t *ptrace.Task) bool {
	p := a.procs[t.PID]
	if p != nil && p.shares {
		p = p.host
	}
	return p != nil && p.onCalls
}

// passable is Passable in this process.
func (p *Process) passable(nr uint64) bool {
	return p.a.Passable(nr) && (p.onCalls || p.a.calledAt(nr) == nil)
}

// probeCalls sees to it that programs run at system calls that are rerouted.
func (p *Process) probeCalls(t *ptrace.Task) {
	if !slices.ContainsFunc(p.a.called, func(c *CallProbe) bool { return c != nil }) || p.onCalls {
		return
	}
	err := p.Runs(t)
	if err == nil {
		err = p.writeCalls()
	}
	if err != nil {
		p.a.o.Logger.Debug("no programs at system calls", "pid", p.PID, "err", err)
	}
	p.onCalls = err == nil
}

// writeCalls writes the table of them.
func (p *Process) writeCalls() error {
	table := make([]byte, 8*numCalls)
	for nr, c := range p.a.called {
		if c == nil {
			continue
		}
		v := c.Probe
		all, code := p.a.asked(uint64(nr))
		if all {
			v |= callAsked
		}
		if code {
			v |= callCode
		}
		binary.LittleEndian.PutUint64(table[8*nr:], v)
	}
	return p.write(callsAddr, table)
}

var (
	errNoFile  = errors.New("the code there is of no file")
	errGoStack = errors.New("the code is Go's, whose stacks are too small")
)

// fileAt returns what is known of the file that has the code in front of ip, and where in memory
// that begins.
func (p *Process) fileAt(ip uint64) (f *codeFile, base uint64, err error) {
	list, err := proc.Maps(p.PID)
	if err != nil {
		return nil, 0, err
	}
	m := proc.At(list, ip-1)
	if m == nil || m.Inode == 0 || m.Write {
		return nil, 0, errNoFile
	}
	file, key, err := proc.OpenMapped(p.PID, m)
	if err != nil {
		return nil, 0, err
	}
	defer file.Close()
	f = p.a.code[key]
	if f == nil {
		f = readCode(file)
		if p.a.code == nil {
			p.a.code = make(map[proc.FileKey]*codeFile)
		}
		p.a.code[key] = f
	}
	return f, m.Start - m.Offset, f.err
}

// readCode looks into a file.
func readCode(r io.ReaderAt) *codeFile {
	e, err := dso.Read(r)
	if err != nil {
		return &codeFile{err: err}
	}
	f := new(codeFile)
	if e.Section(".gopclntab") != nil {
		f.err = errGoStack
	}
	starts, err := e.Starts()
	if err != nil {
		return f // those that need it are not rerouted
	}
	for _, at := range starts {
		if off, ok := e.Offset(at); ok {
			f.starts = append(f.starts, off)
		}
	}
	slices.Sort(f.starts)
	return f
}

// allowed says whether a call may be made by the agent though only programs want it.
func (p *Process) allowed(t *ptrace.Task, ip, nr uint64) error {
	if p.a.calledAt(nr) == nil {
		return nil
	}
	if nr == unix.SYS_MUNMAP {
		// Of the stack itself, there is nothing to look at the result of.
		var next [2]byte
		if n, _ := t.ReadText(ip, next[:]); n < len(next) || next != [2]byte{0x48, 0x3d} { // cmp $...,%rax
			return errors.New("the system call may unmap its own stack")
		}
	}
	_, _, err := p.fileAt(ip)
	return err
}

// findXor finds the place for a jump in front of a call whose number, 0, is not loaded by a mov: the
// nearest instruction as long as a jump, from which on there is a straight way to the call. code
// is what lies in front of ip. Unlike a mov, that can't be told by looking backwards, so the
// function is read from its beginning.
func (p *Process) findXor(t *ptrace.Task, ip uint64, code []byte) (int, error) {
	f, base, err := p.fileAt(ip)
	if err != nil {
		return 0, err
	}
	i, _ := slices.BinarySearch(f.starts, ip-base)
	if i == 0 {
		return 0, errors.New("the beginning of the function around it is not known")
	}
	const longest = 1 << 14 // of a function, up to there
	from := base + f.starts[i-1]
	if ip-from > longest {
		return 0, errors.New("the function around it is too long")
	}
	body := make([]byte, ip-from)
	if n, _ := t.ReadText(from, body); n < len(body) {
		return 0, errors.New("the function around it can't be read")
	}
	best, zero := -1, false
	for at := 0; at < len(body); {
		in, err := decodeInsn(body[at:])
		if err != nil {
			return 0, fmt.Errorf("the function around it can't be decoded at +%#x", at)
		}
		left := len(body) - at
		switch {
		case left == len(syscallInsn) && in.Op == x86asm.SYSCALL:
			if best < 0 || !zero {
				return 0, errors.New("no instruction before the call is long enough for a jump")
			}
			return best, nil
		case !movable(&in):
			best, zero = -1, false
		case in.Op == x86asm.XOR && in.Args[0] == x86asm.EAX && in.Args[1] == x86asm.EAX:
			zero = true
		case writesAX(&in):
			zero = false
			fallthrough
		default:
			if in.Len >= jumpLen && left <= len(code) {
				best = len(code) - left
			}
		}
		at += in.Len
	}
	return 0, errors.New("no instruction of the function begins there")
}

// movable says whether an instruction, which goes on with the next one or by a jump, can be
// executed elsewhere.
func movable(in *x86asm.Inst) bool {
	switch in.Op {
	case x86asm.MOV, x86asm.LEA, x86asm.XOR, x86asm.MOVSXD, x86asm.NOP, x86asm.CMP, x86asm.TEST,
		x86asm.JE, x86asm.JNE, x86asm.JA, x86asm.JAE, x86asm.JB, x86asm.JBE, x86asm.JG, x86asm.JGE, x86asm.JL, x86asm.JLE:
		return true
	}
	return false
}

// writesAX says whether a movable instruction changes eax.
func writesAX(in *x86asm.Inst) bool {
	if in.Op == x86asm.CMP || in.Op == x86asm.TEST {
		return false
	}
	r, ok := in.Args[0].(x86asm.Reg)
	return ok && isAX(r)
}
