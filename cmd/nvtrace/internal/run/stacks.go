package run

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"strconv"
	"strings"
	"time"

	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/calls"
	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/ptrace/python"
	"nvtrace/ptrace/unwind"
	"nvtrace/traces"
	"nvtrace/traces/record"
)

// stackFlag is --stacks=CALLS,…: a group of calls, or functions by their names, and of how many
// calls one has its stack recorded.
type stackFlag struct {
	list []stackRule
}

// stackRule is one of them.
type stackRule struct {
	what  string // a word of stackGroups, or a pattern; of a program also "alloc:PATTERN" and "free:PATTERN"
	every uint32 // 0: as often as costs little
	each  bool   // of a program of -e: every call counts
}

// The groups of calls that have words. They stand for functions of the driver, in which all calls end;
// but for failures, which are of any library.
var stackGroups = map[string]func(m api.Module, name string) bool{
	"alloc": api.Allocates,
	"free":  api.Frees,
	"sync": func(m api.Module, name string) bool {
		return m.Library == api.Driver && strings.Contains(name, "Synchronize")
	},
	"launch": api.Launches,
	"failed": func(api.Module, string) bool { return true },
}

// String implements flag.Value.
func (f *stackFlag) String() string { return "" }

// Set implements flag.Value.
func (f *stackFlag) Set(list string) error {
	for word := range strings.SplitSeq(list, ",") {
		what, every, divided := strings.Cut(strings.TrimSpace(word), "/")
		r := stackRule{what: what}
		if divided {
			n, err := strconv.ParseUint(every, 10, 32)
			if err != nil || n == 0 || what == "failed" && n > 1 {
				return fmt.Errorf("%q: want how many calls there are for each stack behind the slash, as in launch/1000; of failures each has one", word)
			}
			r.every = uint32(n)
		}
		if _, err := path.Match(what, ""); err != nil || what == "" {
			return fmt.Errorf("%q: want alloc, free, sync, launch, failed, or the name of a function, with * for any part of it", word)
		}
		if stackGroups[what] == nil && !strings.ContainsAny(what, "*?[") && api.MatchSymbol(what) == api.Unknown {
			return fmt.Errorf("%q: CUDA's libraries have no function of that name%s", what, ioctl.Suggest(what, maps.Keys(stackGroups)))
		}
		f.list = append(f.list, r)
	}
	return nil
}

func (f *stackFlag) given() bool { return len(f.list) > 0 }

// libraries returns those whose functions are meant.
func (f *stackFlag) libraries() (s api.Selection) {
	for _, r := range f.list {
		name, _, _ := strings.Cut(r.what, "*")
		switch l := api.MatchSymbol(name); {
		case r.each: // they are the program's
		case stackGroups[r.what] != nil:
			s = s.With(api.Driver)
		case l != api.Unknown:
			s = s.With(l)
		}
	}
	return s
}

// Without a number behind the slash stacks are recorded of so many calls of a function at once, and of so
// many a second in the long run: at up to 100 µs each they cost 2 % of the time at most.
const (
	stackPause = 5 * time.Millisecond
	stackBurst = 2000
)

// wants says at which of a function's calls stacks are recorded.
func (f *stackFlag) wants(m api.Module, name string) (s calls.Stop) {
	for _, r := range f.list {
		what, pattern, divided := strings.Cut(r.what, ":")
		group := stackGroups[what]
		if !divided {
			pattern = what
		}
		if ok, _ := path.Match(pattern, name); !ok && (group == nil || divided) {
			continue
		}
		if group != nil && (!group(m, name) || m.Library == api.Runtime && what != "failed") {
			continue
		}
		rate := agent.Rate{Every: r.every}
		if r.every == 0 && !r.each {
			rate = agent.Rate{Pause: stackPause, Burst: stackBurst}
		}
		switch {
		case r.what == "failed":
			if s.Failed = true; !s.Call {
				s.Rate = rate
			}
		case !s.Call || moreOften(rate, s.Rate):
			s.Call, s.Rate = true, rate
		}
	}
	return s
}

// moreOften reports whether a rate has more stops than another.
func moreOften(a, b agent.Rate) bool {
	if a.Pause == 0 && b.Pause == 0 {
		return a.Every < b.Every
	}
	return a.Pause == 0 && a.Every <= 1
}

// stacks records where calls were made, at stops of their threads. It is a ptrace.Handler that
// selects no calls.
type stacks struct {
	recorder *record.Recorder
	native   bool // functions of machine code, too
	pythons  map[int]*pythonOf
	natives  map[int]*unwind.Process
	places   map[placeKey]traces.StackFrame
	second   int64 // of the latest stack
	in       int   // stacks in it
	left     uint64
}

func newStacks(r *record.Recorder, native bool) *stacks {
	return &stacks{
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
func (*stacks) Enter(*ptrace.Task, *ptrace.Syscall) ptrace.Verdict { return ptrace.Skip }

// Exit implements ptrace.Handler.
func (*stacks) Exit(*ptrace.Task, *ptrace.Syscall) {}

// Task implements ptrace.Handler.
func (s *stacks) Task(t *ptrace.Task, e *ptrace.TaskEvent) {
	if e.Kind == ptrace.TaskExec || e.Kind == ptrace.TaskExit && t.TID == t.PID {
		delete(s.pythons, t.PID)
		delete(s.natives, t.PID)
		clear(s.places)
	}
}

// mapped forgets what was known of addresses of a process.
func (s *stacks) mapped(t *ptrace.Task, start, end uint64) {
	if p := s.natives[t.PID]; p != nil && p.ChangedAt(start, end) {
		clear(s.places)
	}
}

// stopped records where a call was made whose thread stands still: before it is made, or when it has
// failed.
func (s *stacks) stopped(t *ptrace.Task, r *agent.Record) {
	if second := r.End / 1e9; second != s.second {
		s.second, s.in = second, 0
	}
	if s.in++; s.in > stacksPerSecond {
		s.left++
		return
	}
	regs, err := t.Regs()
	if err != nil || agent.CalledByUs(r.Caller) {
		return // it has ended
	}
	list, entries := s.frames(t.PID, t, regs.FSBase())
	if s.native {
		list = merged(s.callers(t, regs, r), list, entries, s.interpreter(t.PID))
	}
	if len(list) == 0 {
		return // a thread without Python
	}
	const after = 1 // ns: it happens in the call
	ev := traces.Event{Kind: traces.KindStack, PID: int32(t.PID), TID: int32(t.TID), Time: s.recorder.Time(r.Begin) + after, FD: -1, Name: r.Hook.Name}
	if r.Kind == agent.KindReturn {
		ev.Time = s.recorder.Time(r.End)
	}
	ev.SetStack(list)
	s.recorder.Emit(&ev)
}

// callers returns the functions that have led to a call.
func (s *stacks) callers(t *ptrace.Task, regs *ptrace.Regs, r *agent.Record) []traces.StackFrame {
	known := new(unwind.Regs)
	if !r.Unsaved {
		known = unwind.RegsOf(regs).Preserved()
	}
	known.Set(unwind.RSP, r.SP)
	return s.walk(t, known, (*unwind.Process).Callers)
}

// walk returns the functions that a thread which stands still is in, as a method of unwind.Process lists them.
func (s *stacks) walk(t *ptrace.Task, regs *unwind.Regs, list func(*unwind.Process, unwind.Memory, *unwind.Regs, int) []unwind.Frame) (frames []traces.StackFrame) {
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
func (s *stacks) place(t *ptrace.Task, p *unwind.Process, addr uint64) traces.StackFrame {
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

// interpreter returns the file that a process's is in, "" if it has none.
func (s *stacks) interpreter(pid int) string {
	if p := s.pythons[pid]; p != nil && p.in != nil {
		return p.in.File
	}
	return ""
}

// merged puts the calls of Python where the interpreter's function that makes them is among those of
// machine code, and leaves out what else is the interpreter's. An entry ends the calls of one call of that
// function.
func merged(native, py []traces.StackFrame, entries []bool, interpreter string) (list []traces.StackFrame) {
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

// frames returns the stack of Python of the thread with a thread pointer in process pid, whose
// memory m is, and which of its calls the interpreter was called for; nil: it has none.
func (s *stacks) frames(pid int, m python.Memory, threadPointer uint64) (list []traces.StackFrame, entries []bool) {
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
func (s *stacks) Finish() {
	if s.left > 0 {
		s.recorder.Note(nil, fmt.Sprintf("--stacks: %d calls without their stacks, as there were more than %d a second", s.left, stacksPerSecond))
	}
}
