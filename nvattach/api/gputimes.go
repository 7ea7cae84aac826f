package api

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"nvtrace/traces"
)

// Bounds of what GPUTimes keeps.
const (
	maxPending  = 1 << 12 // works that may still be told of out of order
	maxHistory  = 1 << 14 // calls of a thread, to say what it did while a GPU was idle
	maxContexts = 1 << 10
	maxWorkers  = 1 << 8  // threads with a history
	maxReasons  = 1 << 10 // of a context

	maxKernelName = 8 << 10 // bytes; the longest of PyTorch's have some thousand
)

// GPUTime is when the GPU of a context was busy. Times are in nanoseconds.
type GPUTime struct {
	PID     int32  `json:"pid"`
	Context uint64 `json:"context"`
	First   int64  `json:"first"` // when its first work began
	Last    int64  `json:"last"`  // when its last one ended
	Busy    int64  `json:"busy"`  // between these, in which there was at least one
	Works   uint64 `json:"works"`
	Streams int    `json:"streams"`
	Margin  int64  `json:"margin"` // beginnings may be off by so much from the host's clock, at most
	// Device is the number of the GPU's node where it is known in place of the context.
	Device *int32 `json:"device,omitempty"`
	// Called: streams are those of calls; else, where Device is known, they are the GPU's channels.
	Called bool `json:"-"`
	// Idle says what the thread that gave the GPU its next work was doing while it had none, the
	// longest first.
	Idle []IdleTime `json:"idle,omitempty"`
}

// IdleTime is time in which a GPU waited for a thread.
type IdleTime struct {
	In   string `json:"in"` // the outermost library call; "" outside of them
	Time int64  `json:"time"`
}

// WorkTime adds up what GPUs did of one kind: a kernel by its name, as the image has it,
// "(graph)", or what a copying function is called.
type WorkTime struct {
	Name   string `json:"name"`
	Kernel bool   `json:"kernel"`
	// Probe says that a probe in the kernel noted the times. Of a kernel that was timed by events, too,
	// these are left out.
	Probe bool `json:"probe,omitempty"`
	// By is "channel" where the times are those that GPUs write to channels, "tracker" where the calls are known, too, and "look" where looks at the
	// channels were counted in place of works, each of which stands for the time since the one before.
	By    string `json:"by,omitempty"`
	Works uint64 `json:"works"`
	Total int64  `json:"total"`
	Min   int64  `json:"min"`
	Max   int64  `json:"max"`
	Bytes uint64 `json:"bytes,omitempty"` // copied
}

// GPUTimes adds up what GPUs did. It is for one goroutine.
type GPUTimes struct {
	contexts map[contextKey]*gpuContext
	kinds    map[workKey]*WorkTime
	threads  map[threadKey]*history
	last     threadKey // of the latest call
	recent   *history  // its history; nil: there is none
	pending  []pendingWork
}

type contextKey struct {
	pid     int32
	context uint64
}

// workKey is a kind of work. One whose name is not known counts as the others do that found no room.
type workKey struct {
	name string
	by   traces.Witness
}

type gpuContext struct {
	GPUTime
	streams map[uint64]struct{}
	idle    map[string]int64
}

// pendingWork is a work whose place in time among others is not known yet.
type pendingWork struct {
	traces.Work
	pid, tid int32
}

// history is the latest outermost calls of a thread.
type history struct {
	calls []pastCall
	next  int // the oldest, where there are maxHistory
}

type pastCall struct {
	start, end int64
	name       string
}

// NewGPUTimes returns one that has seen nothing yet.
func NewGPUTimes() *GPUTimes {
	return &GPUTimes{contexts: make(map[contextKey]*gpuContext), kinds: make(map[workKey]*WorkTime), threads: make(map[threadKey]*history)}
}

// Describe says what a GPU did, from an event of KindGPU: the name of a kernel, "" where it is not
// known, or what a function that copies is called.
func (t *Tracker) Describe(ev *traces.Event) (name string, kernel bool) {
	switch w := ev.Work(); {
	case w.Kernel != "":
		return w.Kernel[:min(len(w.Kernel), maxKernelName)], true
	case !w.By.Called():
		return "copy", false
	}
	l := t.lookup(ev.Path, ev.Name)
	switch {
	case l.purpose == Launching && strings.Contains(ev.Name, "Graph"):
		return "(graph)", true
	case l.purpose == Launching:
		return t.Names.kernel(ev.PID, ev.Work().Subject), true
	}
	name = strings.TrimSuffix(strings.TrimSuffix(baseName(ev.Name), "_v2"), "Async")
	return name, false
}

// Add takes in an event; t is the Tracker that has just taken it in, and f what it returned.
func (g *GPUTimes) Add(ev *traces.Event, t *Tracker, f *Frame) {
	switch ev.Kind {
	case traces.KindReturn:
		if f != nil && f.Parent == nil && f.End >= 0 {
			g.called(f)
		}
	case traces.KindGPU:
		g.work(ev, t)
	}
}

// called notes an outermost call.
func (g *GPUTimes) called(f *Frame) {
	k, h := threadKey{f.PID, f.TID}, g.recent
	if h == nil || k != g.last {
		if h = g.threads[k]; h == nil {
			if len(g.threads) >= maxWorkers {
				return
			}
			h = new(history)
			g.threads[k] = h
		}
		g.last, g.recent = k, h
	}
	c := pastCall{f.Start, f.End, f.Name}
	if len(h.calls) < maxHistory {
		h.calls = append(h.calls, c)
		return
	}
	h.calls[h.next] = c
	h.next = (h.next + 1) % maxHistory
}

// work counts what a GPU did.
func (g *GPUTimes) work(ev *traces.Event, t *Tracker) {
	w := ev.Work()
	if ev.Flags&traces.FlagUnfinished != 0 {
		return // it may yet come
	}
	if w.Start < 0 || w.Dur < 0 || w.Start+w.Dur < 0 {
		return // no recorder says so
	}
	name, kernel := t.Describe(ev)
	key := workKey{name, w.By}
	k := g.kinds[key]
	if k == nil {
		if len(g.kinds) >= maxCounted {
			key.name = "(other)"
		}
		if k = g.kinds[key]; k == nil {
			k = &WorkTime{Name: key.name, Kernel: kernel, Probe: key.by == traces.ByProbe, Min: w.Dur}
			if key.by.Outside() {
				k.By = key.by.String()
			}
			g.kinds[key] = k
		}
	}
	k.Works++
	k.Total += w.Dur
	k.Min, k.Max = min(k.Min, w.Dur), max(k.Max, w.Dur)
	if !kernel {
		k.Bytes += w.Subject
	}
	g.pending = append(g.pending, pendingWork{w, ev.PID, ev.TID})
	if len(g.pending) == maxPending {
		g.settle(maxPending / 2)
	}
}

// settle puts the first n pending works into their places.
func (g *GPUTimes) settle(n int) {
	slices.SortStableFunc(g.pending, func(a, b pendingWork) int { return cmp.Compare(a.Start, b.Start) })
	for i := range g.pending[:n] {
		g.place(&g.pending[i])
	}
	g.pending = append(g.pending[:0], g.pending[n:]...)
}

func (g *GPUTimes) place(w *pendingWork) {
	key := g.contextOf(w)
	c := g.contexts[key]
	end := w.Start + w.Dur
	if c == nil {
		if len(g.contexts) >= maxContexts {
			return
		}
		c = &gpuContext{GPUTime: GPUTime{PID: w.pid, Context: w.Context, First: w.Start, Last: w.Start}, streams: make(map[uint64]struct{}), idle: make(map[string]int64)}
		if w.By.Outside() {
			c.Device, c.Called = &w.Device, w.By.Called()
		}
		g.contexts[key] = c
	}
	c.Works++
	c.Margin = max(c.Margin, w.Margin)
	if len(c.streams) < maxContexts && w.By != traces.ByProbe {
		c.streams[w.Stream] = struct{}{}
	}
	if w.Start > c.Last {
		if w.By.Called() { // else it is not known who launched it
			g.idle(c, threadKey{w.pid, w.tid}, c.Last, w.Start)
		}
		c.Last = w.Start
	}
	if end > c.Last {
		c.Busy += end - c.Last
		c.Last = end
	}
}

// contextOf returns the context of a work. Where it is not known, it is the only one of the process.
func (g *GPUTimes) contextOf(w *pendingWork) contextKey {
	if w.By.Outside() {
		return contextKey{w.pid, ^uint64(uint32(w.Device))}
	}
	key, unknown := contextKey{w.pid, w.Context}, contextKey{pid: w.pid}
	switch c := g.contexts[unknown]; {
	case w.Context == 0 && c == nil:
		only := 0
		for k := range g.contexts {
			if k.pid == w.pid {
				key = k
				only++
			}
		}
		if only > 1 {
			key = unknown
		}
	case w.Context != 0 && c != nil && g.contexts[key] == nil:
		c.Context = w.Context
		g.contexts[key] = c
		delete(g.contexts, unknown)
	}
	return key
}

// idle says what a thread did from one moment to another.
func (g *GPUTimes) idle(c *gpuContext, key threadKey, from, to int64) {
	left := to - from
	add := func(name string, ns int64) {
		if _, known := c.idle[name]; known || len(c.idle) < maxReasons {
			c.idle[name] += ns
		}
	}
	if h := g.threads[key]; h != nil {
		n := len(h.calls)
		for i := n - 1; i >= 0; i-- {
			p := &h.calls[(h.next+i)%n]
			if p.end <= from {
				break
			}
			if a, b := max(p.start, from), min(p.end, to); b > a {
				add(p.name, b-a)
				left -= b - a
			}
		}
	}
	if left > 0 {
		add("", left)
	}
}

// Report returns what was added up: by context, and by kind with the longest in total first.
// Nothing may be added afterwards.
func (g *GPUTimes) Report() (contexts []GPUTime, kinds []WorkTime) {
	g.settle(len(g.pending))
	for _, c := range g.contexts {
		c.Streams = len(c.streams)
		for _, name := range slices.Sorted(maps.Keys(c.idle)) {
			c.Idle = append(c.Idle, IdleTime{name, c.idle[name]})
		}
		slices.SortStableFunc(c.Idle, func(a, b IdleTime) int { return cmp.Compare(b.Time, a.Time) })
		contexts = append(contexts, c.GPUTime)
	}
	slices.SortFunc(contexts, func(a, b GPUTime) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.First, b.First), cmp.Compare(a.Context, b.Context))
	})
	for key, k := range g.kinds {
		if g.kinds[workKey{key.name, traces.ByProbe}] == nil || key.by != traces.ByEvent || !k.Kernel {
			kinds = append(kinds, *k)
		}
	}
	slices.SortFunc(kinds, func(a, b WorkTime) int { return cmp.Or(cmp.Compare(b.Total, a.Total), strings.Compare(a.Name, b.Name)) })
	return contexts, kinds
}
