package api

import (
	"cmp"
	"slices"
	"strings"

	"nvtrace/traces"
)

// LineTime is time of threads that a line of a program stands for.
type LineTime struct {
	Line  string `json:"line"` // "train.py:35 forward"; "" of calls whose stacks were not recorded
	In    string `json:"in"`   // the function that waits; of time outside of CUDA's libraries, the call that ended it; "": several
	Time  int64  `json:"time"`
	Most  int64  `json:"most"` // at a time
	Count uint64 `json:"count"`
}

// LineTimes adds up, by lines of programs, where threads waited for GPUs, and before which calls they were outside of CUDA's
// libraries, by stacks of calls. It is for one goroutine.
type LineTimes struct {
	own     Allocations // for how it names lines
	threads map[threadKey]*lineThread
	waits   map[lineKey]*LineTime
	outside map[lineKey]*LineTime
	stacks  bool
}

// lineThread is what a thread is at.
type lineThread struct {
	line  string // of the stack that was recorded last
	at    int64  // when the outermost call began that it is of
	free  int64  // since when the thread is in no call; -1: it is in one
	gap   int64  // the time outside before the outermost call that the thread is in
	first string // name of that call
}

type lineKey struct{ line, in string }

// NewLineTimes returns one that has seen nothing yet. demangle, if not nil, names functions for people.
func NewLineTimes(demangle func(string) string) *LineTimes {
	return &LineTimes{
		own: Allocations{Demangle: demangle}, threads: make(map[threadKey]*lineThread), waits: make(map[lineKey]*LineTime), outside: make(map[lineKey]*LineTime),
	}
}

// Add takes in an event; t is the Tracker that has just taken it in, and f what it returned.
func (l *LineTimes) Add(ev *traces.Event, t *Tracker, f *Frame) {
	key := threadKey{ev.PID, ev.TID}
	switch ev.Kind {
	case traces.KindStack:
		if ev.Flags&traces.FlagUnfinished != 0 {
			return
		}
		l.stacks = true
		if x := l.thread(key); x != nil {
			x.line = l.own.ownLine(ev.Stack())
			if x.at = -1; t != nil {
				for c := t.Current(ev.PID, ev.TID); c != nil; c = c.Parent {
					x.at = c.Start
				}
			}
		}
	case traces.KindCall:
		if f == nil || f.Depth > 0 {
			return
		}
		if x := l.thread(key); x != nil {
			x.first, x.gap = f.Name, 0
			if x.free >= 0 {
				x.gap = max(f.Start-x.free, 0)
			}
			x.free = -1
		}
	case traces.KindReturn:
		if f != nil && f.End >= 0 && ev.Flags&traces.FlagUnfinished == 0 {
			l.returned(l.threads[key], f)
		}
	case traces.KindExit, traces.KindExec:
		delete(l.threads, key)
	}
}

func (l *LineTimes) thread(key threadKey) *lineThread {
	x := l.threads[key]
	if x == nil && len(l.threads) < maxThreads {
		x = &lineThread{free: -1, at: -1}
		l.threads[key] = x
	}
	return x
}

func (l *LineTimes) returned(x *lineThread, f *Frame) {
	if x == nil {
		return
	}
	outermost := f
	for outermost.Parent != nil {
		outermost = outermost.Parent
	}
	line := ""
	if x.at == outermost.Start {
		line = x.line
	}
	if f.Purpose() == Waiting {
		add(l.waits, lineKey{line, f.Name}, f.End-f.Start)
	}
	if f.Parent == nil {
		k := lineKey{line, x.first}
		if line == "" {
			k.in = ""
		}
		add(l.outside, k, x.gap)
		x.free, x.gap = f.End, 0
	}
}

func add(to map[lineKey]*LineTime, k lineKey, ns int64) {
	if ns <= 0 {
		return
	}
	x := to[k]
	if x == nil {
		if len(to) >= maxLines {
			k = lineKey{in: "(other lines)"}
		}
		if x = to[k]; x == nil {
			x = &LineTime{Line: k.line, In: k.in}
			to[k] = x
		}
	}
	x.Time, x.Most = x.Time+ns, max(x.Most, ns)
	x.Count++
}

// LineReport is where threads waited, and before which calls they were outside of CUDA's libraries, the longest first.
type LineReport struct {
	Waits   []LineTime `json:"waits"`
	Outside []LineTime `json:"outside"`
}

// Report returns what was seen, nil where no stacks were recorded.
func (l *LineTimes) Report() *LineReport {
	if !l.stacks {
		return nil
	}
	return &LineReport{longest(l.waits), longest(l.outside)}
}

func longest(of map[lineKey]*LineTime) []LineTime {
	list := make([]LineTime, 0, len(of))
	for _, x := range of {
		list = append(list, *x)
	}
	slices.SortFunc(list, func(a, b LineTime) int {
		return cmp.Or(cmp.Compare(b.Time, a.Time), strings.Compare(a.Line, b.Line), strings.Compare(a.In, b.In))
	})
	return list
}
