// Package stacks records where calls were made from, at stops of the threads that make them:
// functions of machine code, and functions and lines of Python among them. It does not know which
// calls these are.
package stacks

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/ptrace/python"
	"nvtrace/ptrace/unwind"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// Stacks records where calls were made, at stops of their threads. It is a ptrace.Handler that
// selects no calls.
type Stacks struct {
	recorder *record.Recorder
	native   bool // functions of machine code, too
	pythons  map[int]*pythonOf
	natives  map[int]*unwind.Process
	places   map[placeKey]traces.StackFrame
	second   int64 // of the latest stack
	in       int   // stacks in it
	left     uint64
}

// New returns what records stacks with r, of functions of machine code too if native is set.
func New(r *record.Recorder, native bool) *Stacks {
	return &Stacks{
		recorder: r, native: native,
		pythons: make(map[int]*pythonOf), natives: make(map[int]*unwind.Process), places: make(map[placeKey]traces.StackFrame),
	}
}

// placeKey is an address in a process.
type placeKey struct {
	pid  int
	addr uint64
}

// pythonOf is the interpreter of a process.
type pythonOf struct {
	in    *python.Interpreter // nil: there is none
	asked time.Time
}

// Bounds of what stacks cost: so many a second, and a look for an interpreter so often. And of what is
// remembered.
const (
	stacksPerSecond = 2000
	askAgain        = time.Second
	maxPlaces       = 1 << 16
)

// Enter implements ptrace.Handler.
func (*Stacks) Enter(*ptrace.Task, *ptrace.Syscall) ptrace.Verdict { return ptrace.Skip }

// Exit implements ptrace.Handler.
func (*Stacks) Exit(*ptrace.Task, *ptrace.Syscall) {}

// Task implements ptrace.Handler.
func (s *Stacks) Task(t *ptrace.Task, e *ptrace.TaskEvent) {
	if e.Kind == ptrace.TaskExec || e.Kind == ptrace.TaskExit && t.TID == t.PID {
		delete(s.pythons, t.PID)
		delete(s.natives, t.PID)
		clear(s.places)
	}
}

// Forget forgets what was known of code, as something else may be mapped since.
func (s *Stacks) Forget() {
	clear(s.natives)
	clear(s.places)
}

// Mapped forgets what was known of addresses of a process.
func (s *Stacks) Mapped(t *ptrace.Task, start, end uint64) {
	if p := s.natives[t.PID]; p != nil && p.ChangedAt(start, end) {
		clear(s.places)
	}
}

// Stopped records where a call was made whose thread stands still: before it is made, or when it has
// failed.
func (s *Stacks) Stopped(t *ptrace.Task, r *agent.Record) {
	if !s.room(r.End) {
		return
	}
	regs, err := t.Regs()
	if err != nil || agent.CalledByUs(r.Caller) {
		return // it has ended
	}
	list, entries := s.Frames(t.PID, t, regs.FSBase())
	if s.native {
		list = Merge(s.callers(t, regs, r), list, entries, s.Interpreter(t.PID))
	}
	const after = 1 // ns: it happens in the call
	when := s.recorder.Time(r.Begin) + after
	if r.Kind == agent.KindReturn {
		when = s.recorder.Time(r.End)
	}
	s.emit(t, r.Hook.Name, when, list)
}

// Entered records where a system call was made that a thread has just entered.
func (s *Stacks) Entered(t *ptrace.Task, call string, when int64) {
	if !s.room(when) {
		return
	}
	regs, err := t.Regs()
	if err != nil {
		return // it has ended
	}
	list, entries := s.Frames(t.PID, t, regs.FSBase())
	if s.native {
		walk := func() []traces.StackFrame { return s.Walk(t, unwind.RegsOf(regs), (*unwind.Process).Walk) }
		native := walk()
		if slices.ContainsFunc(native, func(f traces.StackFrame) bool { return f.File == "" }) { // of what may be mapped since
			s.Forget()
			native = walk()
		}
		list = Merge(native, list, entries, s.Interpreter(t.PID))
	}
	s.emit(t, call, when, list)
}

// room reports whether another stack may be recorded.
func (s *Stacks) room(when int64) bool {
	if second := when / 1e9; second != s.second {
		s.second, s.in = second, 0
	}
	if s.in++; s.in > stacksPerSecond {
		s.left++
		return false
	}
	return true
}

// emit records a stack, if there is one: a thread may have no Python.
func (s *Stacks) emit(t *ptrace.Task, call string, when int64, list []traces.StackFrame) {
	if len(list) == 0 {
		return
	}
	ev := traces.Event{Kind: traces.KindStack, PID: int32(t.PID), TID: int32(t.TID), Time: when, FD: -1, Name: call}
	ev.SetStack(list)
	s.recorder.Emit(&ev)
}

// callers returns the functions that have led to a call.
func (s *Stacks) callers(t *ptrace.Task, regs *ptrace.Regs, r *agent.Record) []traces.StackFrame {
	known := new(unwind.Regs)
	if !r.Unsaved {
		known = unwind.RegsOf(regs).Preserved()
	}
	known.Set(unwind.RSP, r.SP)
	return s.Walk(t, known, (*unwind.Process).Callers)
}

// Walk returns the functions that a thread which stands still is in, as a method of unwind.Process lists them.
func (s *Stacks) Walk(t *ptrace.Task, regs *unwind.Regs, list func(*unwind.Process, unwind.Memory, *unwind.Regs, int) []unwind.Frame) (frames []traces.StackFrame) {
	p := s.natives[t.PID]
	if p == nil {
		p = unwind.Of(t.PID)
		s.natives[t.PID] = p
	}
	p.Return = func(at, addr uint64) uint64 { return s.recorder.Agent().ReturnOf(t, at, addr) }
	const most = 4 * traces.MaxFrames // those of an interpreter go
	for _, f := range list(p, t, regs, most) {
		frames = append(frames, s.place(t, p, f.At()))
	}
	return frames
}

// place says what is at an address.
func (s *Stacks) place(t *ptrace.Task, p *unwind.Process, addr uint64) traces.StackFrame {
	k := placeKey{t.PID, addr}
	f, known := s.places[k]
	if !known {
		at := p.Place(t, addr)
		f = traces.StackFrame{Language: traces.LanguageNative, File: at.File, Func: at.Func, Offset: at.Offset}
		if len(s.places) >= maxPlaces {
			clear(s.places)
		}
		s.places[k] = f
	}
	return f
}

// Interpreter returns the file that a process's is in, "" if it has none.
func (s *Stacks) Interpreter(pid int) string {
	if p := s.pythons[pid]; p != nil && p.in != nil {
		return p.in.File
	}
	return ""
}

// Merge puts the calls of Python where the interpreter's function that makes them is among those of
// machine code, and leaves out what else is the interpreter's. An entry ends the calls of one call of that
// function.
func Merge(native, py []traces.StackFrame, entries []bool, interpreter string) (list []traces.StackFrame) {
	if len(py) == 0 {
		return native
	}
	for i := range native {
		switch f := &native[i]; {
		case f.File != interpreter:
			list = append(list, *f)
		case python.IsEval(f.Func) && len(py) > 0:
			n := 1
			for n < len(py) && !entries[n-1] {
				n++
			}
			list = append(list, py[:n]...)
			py, entries = py[n:], entries[n:]
		}
	}
	return append(list, py...) // whose function was not found
}

// Frames returns the stack of Python of the thread with a thread pointer in process pid, whose
// memory m is, and which of its calls the interpreter was called for; nil: it has none.
func (s *Stacks) Frames(pid int, m python.Memory, threadPointer uint64) (list []traces.StackFrame, entries []bool) {
	p := s.pythons[pid]
	if p == nil || p.in == nil && time.Since(p.asked) > askAgain {
		in, err := python.Find(pid)
		if err != nil {
			in = nil
		}
		p = &pythonOf{in, time.Now()}
		s.pythons[pid] = p
	}
	if p.in == nil {
		return nil, nil
	}
	frames, err := p.in.Stack(m, threadPointer, traces.MaxFrames)
	if errors.Is(err, python.ErrNone) {
		p.in = nil
	}
	for _, f := range frames {
		list = append(list, traces.StackFrame{Language: "python", File: f.File, Func: f.Func, Line: f.Line})
		entries = append(entries, f.Entry)
	}
	return list, entries
}

// Finish says what is missing.
func (s *Stacks) Finish() {
	if s.left > 0 {
		s.recorder.Note(nil, fmt.Sprintf("--stacks: %d calls without their stacks, as there were more than %d a second", s.left, stacksPerSecond))
	}
}
