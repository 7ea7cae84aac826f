package main

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"nvtrace/nvattach/api"
	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/ptrace/python"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// stackFlag is --stacks=WHAT,…: allocations, waits, or functions by their names.
type stackFlag struct {
	alloc, sync bool
	names       []string // patterns
}

// String implements flag.Value.
func (f *stackFlag) String() string { return "" }

// Set implements flag.Value.
func (f *stackFlag) Set(list string) error {
	for word := range strings.SplitSeq(list, ",") {
		switch word = strings.TrimSpace(word); word {
		case "alloc":
			f.alloc = true
		case "sync":
			f.sync = true
		default:
			if _, err := path.Match(word, ""); err != nil || word == "" {
				return fmt.Errorf("%q: want alloc, sync, or the name of a function, with * for any part of it", word)
			}
			f.names = append(f.names, word)
		}
	}
	return nil
}

func (f *stackFlag) given() bool { return f.alloc || f.sync || len(f.names) > 0 }

// wants reports whether stacks are recorded at a function's calls. The words stand for functions
// of the driver, in which all calls end.
func (f *stackFlag) wants(m api.Module, name string) bool {
	if f.alloc && api.Allocates(m, name) || f.sync && m.Library == api.Driver && strings.Contains(name, "Synchronize") {
		return true
	}
	for _, pattern := range f.names {
		if ok, _ := path.Match(pattern, name); ok {
			return true
		}
	}
	return false
}

// stacks records where calls were made, at stops of their threads. It is a ptrace.Handler that
// selects no calls.
type stacks struct {
	recorder *record.Recorder
	pythons  map[int]*pythonOf
	second   int64 // of the latest stack
	in       int   // stacks in it
	left     uint64
}

// pythonOf is the interpreter of a process.
type pythonOf struct {
	in    *python.Interpreter // nil: there is none
	asked time.Time
}

// Bounds of what stacks cost: so many a second, and a look for an interpreter so often.
const (
	stacksPerSecond = 2000
	askAgain        = time.Second
)

// Enter implements ptrace.Handler.
func (*stacks) Enter(*ptrace.Task, *ptrace.Syscall) ptrace.Verdict { return ptrace.Skip }

// Exit implements ptrace.Handler.
func (*stacks) Exit(*ptrace.Task, *ptrace.Syscall) {}

// Task implements ptrace.Handler.
func (s *stacks) Task(t *ptrace.Task, e *ptrace.TaskEvent) {
	if e.Kind == ptrace.TaskExec || e.Kind == ptrace.TaskExit && t.TID == t.PID {
		delete(s.pythons, t.PID)
	}
}

// stopped records where a call was made whose thread stands still.
func (s *stacks) stopped(t *ptrace.Task, r *agent.Record) {
	if second := r.Begin / 1e9; second != s.second {
		s.second, s.in = second, 0
	}
	if s.in++; s.in > stacksPerSecond {
		s.left++
		return
	}
	regs, err := t.Regs()
	if err != nil {
		return // it has ended
	}
	list := s.frames(t.PID, t, regs.FSBase())
	if len(list) == 0 {
		return // a thread without Python
	}
	const after = 1 // ns: it happens in the call
	ev := traces.Event{Kind: traces.KindStack, PID: int32(t.PID), TID: int32(t.TID), Time: s.recorder.Time(r.Begin) + after, FD: -1, Name: r.Hook.Name}
	ev.SetStack(list)
	s.recorder.Emit(&ev)
}

// frames returns the stack of Python of the thread with a thread pointer in process pid, whose
// memory m is; nil: it has none.
func (s *stacks) frames(pid int, m python.Memory, threadPointer uint64) []traces.StackFrame {
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
		return nil
	}
	frames, err := p.in.Stack(m, threadPointer, traces.MaxFrames)
	if errors.Is(err, python.ErrNone) {
		p.in = nil
	}
	list := make([]traces.StackFrame, len(frames))
	for i, f := range frames {
		list[i] = traces.StackFrame{Language: "python", File: f.File, Func: f.Func, Line: f.Line}
	}
	return list
}

// finish says what is missing.
func (s *stacks) finish() {
	if s.left > 0 {
		s.recorder.Note(nil, fmt.Sprintf("--stacks: %d calls without their stacks, as there were more than %d a second", s.left, stacksPerSecond))
	}
}
