package api

import (
	"cmp"
	"maps"
	"path"
	"slices"
	"strings"

	"nvtrace/nvattach/api/cuda"
	"nvtrace/traces"
)

// Bounds of what Allocations keeps.
const (
	maxLines = 1 << 14
	largest  = 10
)

// LineMemory is what a line of a program has allocated on GPUs.
type LineMemory struct {
	Line  string `json:"line"` // "train.py:35 forward"; "" where stacks are not recorded
	Live  uint64 `json:"live"` // bytes: at the first failure for want of memory, else at the end
	Most  uint64 `json:"most"` // at once
	Total uint64 `json:"total"`
	Count uint64 `json:"count"`
}

// LiveMemory is an allocation.
type LiveMemory struct {
	Bytes uint64 `json:"bytes"`
	Time  int64  `json:"time"`
	Line  string `json:"line"`
	Owner string `json:"owner"`
}

// OutOfMemory is a failure for want of memory.
type OutOfMemory struct {
	Time  int64  `json:"time"`
	PID   int32  `json:"pid"`
	Bytes uint64 `json:"bytes"` // that were asked for
	Line  string `json:"line"`
	Live  uint64 `json:"live"` // bytes, of all lines
}

// Allocations follows what lines of programs allocate on GPUs, by stacks of the allocating calls.
// It is for one goroutine.
type Allocations struct {
	// Demangle, if not nil, names functions for people.
	Demangle func(name string) string

	at     map[threadKey]calledAt // where the call was made that a thread is in
	owners map[ownerKey]*OwnerMemory
	owned  []OwnerMemory // as they were when it failed
	live   map[allocation]LiveMemory
	shared map[allocation]struct{} // of live, those of managed memory
	unheld map[int32]uint64        // bytes of these, by process
	lines  map[string]*LineMemory
	bytes  uint64
	failed *OutOfMemory
	then   []LineMemory // as they were when it failed
	top    []LiveMemory
	stacks bool
}

// calledAt is a line, and whose code is on the way from there to the call.
type calledAt struct{ line, owner string }

// NewAllocations returns one that has seen nothing yet.
func NewAllocations() *Allocations {
	return &Allocations{at: make(map[threadKey]calledAt), owners: make(map[ownerKey]*OwnerMemory), live: make(map[allocation]LiveMemory), shared: make(map[allocation]struct{}), unheld: make(map[int32]uint64), lines: make(map[string]*LineMemory)}
}

// OwnLine says which line of a program's own a call comes from, by the functions that led to it; demangle, if not nil, names
// functions for people.
func OwnLine(frames []traces.StackFrame, demangle func(string) string) string {
	return (&Allocations{Demangle: demangle}).ownLine(frames)
}

// ownLine says which line of the program's own a call comes from: the innermost two that are in no
// package and not in Python's library, and, where another is further in, the innermost. Where there
// are no lines of Python, it is the innermost two functions that are in no library of the system or of CUDA.
func (a *Allocations) ownLine(frames []traces.StackFrame) string {
	python := traces.Interpreted(frames)
	if len(python) > 0 {
		frames = python
	}
	if len(frames) == 0 {
		return ""
	}
	const most = 2
	var own []string
	inner := ""
	for i := range frames {
		switch {
		case len(own) == most:
		case !others(&frames[i]):
			own = append(own, frames[i].Text(a.Demangle))
		case i == 0 && len(python) > 0:
			inner = " (in " + frames[0].Text(a.Demangle) + ")"
		}
	}
	if own == nil {
		return frames[0].Text(a.Demangle)
	}
	return strings.Join(own, " < ") + inner
}

// others reports whether a call is not of the program's own code.
func others(f *traces.StackFrame) bool {
	if f.Language != traces.LanguageNative {
		return strings.Contains(f.File, "-packages/") || strings.Contains(f.File, "/lib/python3.") || strings.HasPrefix(f.File, "<")
	}
	for _, dir := range []string{"/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/"} {
		if strings.HasPrefix(f.File, dir) {
			return true
		}
	}
	// A program may have the runtime in it.
	return Match(path.Base(f.File)).Library != Unknown || MatchSymbol(f.Func) == Runtime || f.Func == "_start"
}

// Add takes in an event; f is what the Tracker that has just taken it in has returned.
func (a *Allocations) Add(ev *traces.Event, f *Frame) {
	switch {
	case ev.Kind == traces.KindStack && ev.Flags&traces.FlagUnfinished == 0:
		if a.stacks = true; len(a.at) < maxThreads {
			frames := ev.Stack()
			a.at[threadKey{ev.PID, ev.TID}] = calledAt{a.ownLine(frames), stackOwner(frames)}
		}
	case ev.Kind == traces.KindReturn && f != nil:
		if a.returned(ev, f); f.Parent == nil {
			delete(a.at, threadKey{ev.PID, ev.TID}) // the next call is made elsewhere
		}
	}
}

func (a *Allocations) returned(ev *traces.Event, f *Frame) {
	for _, m := range f.Memory() {
		if !m.Host {
			a.change(ev, f, &m)
		}
	}
}

func (a *Allocations) change(ev *traces.Event, f *Frame, m *MemoryChange) {
	const outOfMemory = cuda.CUDA_ERROR_OUT_OF_MEMORY // cudaErrorMemoryAllocation is the same
	if m.Freed {
		a.free(allocation{ev.PID, m.Addr})
		return
	}
	key := threadKey{ev.PID, ev.TID}
	line, by := a.at[key].line, a.at[key].owner
	delete(a.at, key)
	switch {
	case m.Failed:
		if a.failed == nil && int32(ev.Ret) == outOfMemory {
			a.failed = &OutOfMemory{f.Start, ev.PID, m.Size, line, a.bytes}
			a.then, a.top, a.owned = a.list(), a.largest(), a.Now()
		}
	case m.Addr != 0 && len(a.live) < maxLive:
		a.free(allocation{ev.PID, m.Addr}) // its end was not seen
		a.live[allocation{ev.PID, m.Addr}] = LiveMemory{m.Size, f.Start, line, owner(f, by)}
		if allocators[f.Module.Library][stemOf(f.Name)].managed {
			a.shared[allocation{ev.PID, m.Addr}] = struct{}{}
			a.unheld[ev.PID] += m.Size
		}
		o := a.ownerOf(ev.PID, owner(f, by))
		o.Live, o.Count = o.Live+m.Size, o.Count+1
		o.Most = max(o.Most, o.Live)
		l := a.line(line)
		l.Live, l.Total, l.Count = l.Live+m.Size, l.Total+m.Size, l.Count+1
		l.Most = max(l.Most, l.Live)
		a.bytes += m.Size
	}
}

func (a *Allocations) line(line string) *LineMemory {
	l := a.lines[line]
	if l == nil {
		if len(a.lines) >= maxLines {
			line = "(other lines)"
		}
		if l = a.lines[line]; l == nil {
			l = &LineMemory{Line: line}
			a.lines[line] = l
		}
	}
	return l
}

func (a *Allocations) free(k allocation) {
	m, ok := a.live[k]
	if !ok {
		return
	}
	delete(a.live, k)
	if _, is := a.shared[k]; is {
		delete(a.shared, k)
		a.unheld[k.pid] -= m.Bytes
	}
	a.line(m.Line).Live -= m.Bytes
	o := a.ownerOf(k.pid, m.Owner)
	o.Live -= min(m.Bytes, o.Live)
	a.bytes -= m.Bytes
}

// list returns the lines, what has most first.
func (a *Allocations) list() (list []LineMemory) {
	for _, l := range a.lines {
		list = append(list, *l)
	}
	slices.SortFunc(list, func(x, y LineMemory) int {
		return cmp.Or(cmp.Compare(y.Live, x.Live), cmp.Compare(y.Most, x.Most), strings.Compare(x.Line, y.Line))
	})
	return list
}

// largest returns the largest allocations that live.
func (a *Allocations) largest() []LiveMemory {
	list := slices.SortedFunc(maps.Values(a.live), func(x, y LiveMemory) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Time, y.Time))
	})
	return list[:min(len(list), largest)]
}

// MemoryReport is what lines of programs have allocated.
type MemoryReport struct {
	Failed  *OutOfMemory `json:"failed,omitempty"` // the first failure
	Lines   []LineMemory `json:"lines"`            // as they were then, or at the end
	Largest []LiveMemory `json:"largest"`          // that lived then, or at the end
}

// named reports whether a line is known that has allocated something.
func (a *Allocations) named() bool {
	for line := range a.lines {
		if line != "" {
			return true
		}
	}
	return false
}

// Report returns what was seen, nil where no stacks were recorded.
func (a *Allocations) Report() *MemoryReport {
	switch {
	case !a.stacks || a.failed == nil && !a.named():
		return nil
	case a.failed != nil:
		return &MemoryReport{a.failed, a.then, a.top}
	}
	return &MemoryReport{nil, a.list(), a.largest()}
}
