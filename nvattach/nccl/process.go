package nccl

import (
	"cmp"
	"slices"
	"strings"

	"nvtrace/nvattach/api"
	"nvtrace/traces"
)

// A Purpose is what a process does between operations.
type Purpose int

// Purposes.
const (
	Compute  Purpose = iota // kernels, but NCCL's, run
	Copying                 // only copies and sets run on the GPU
	Driving                 // the GPU has nothing, and the thread is in the driver: ioctls, memory, code
	Hosting                 // likewise, and the thread is elsewhere
	Purposes                // how many there are
)

// Done is an operation of which no more will be known, with what its process did before it. Times are in nanoseconds since
// the recording's start.
type Done struct {
	Op
	Arrived int64 // when the process came to it
	Over    int64 // when it was over; -1: not known
	Dur     int64 // in the operation; -1: not known
	Exposed int64 // of Dur, in which the GPU did nothing else: what the process lost
	// Window is from the end of the collective before it, of a send or receive that of the operation, to its arrival, without the
	// time in sends and receives.
	Window int64
	Spent  [Purposes]int64
	// Repeated says that it is of the group of the one before, of whose times it would only have a copy.
	Repeated bool
}

// Progress is how far a process has come in a communicator.
type Progress struct {
	Comm
	Entered uint64 // the last collective that it came to; 0: none
	Enter   int64  // when
	Known   bool   // whether that is over is known, or that it was not when that was looked at last
	// Over is the last that was seen to be over. First is the first behind it that was not, 0 for none, and Since when
	// the process came to it. InCall says that its call has not returned; else the GPU was not seen to be through with it,
	// which is not looked at while a program makes no calls.
	Over   uint64
	First  uint64
	Since  int64
	InCall bool
	What   Op // First, or else Entered: what it was called with
}

// come takes in the next collective.
func (p *Progress) come(d *Done) {
	p.Enter, p.Entered = d.Enter, d.Seq
	p.Known = d.Over >= 0 || d.NotOver || d.Exit < 0 // one that was captured into a graph has no times
	switch {
	case d.Over >= 0:
		p.Over, p.First, p.InCall = d.Seq, 0, false
	case p.Known && p.First == 0:
		p.First, p.Since, p.InCall = d.Seq, d.Enter, d.Exit < 0
	default:
		if p.First != 0 {
			return
		}
	}
	p.What = d.Op
}

// span is a time in which something was so.
type span struct{ from, to int64 }

// Bounds of what a Process keeps.
const (
	maxSpans = 1 << 20 // of each kind
	maxHeld  = 1 << 16 // operations that wait for one that is not over
)

// Process follows the operations of a process, and what else it does. It is for one goroutine.
type Process struct {
	*Follower
	kernels  []span
	copies   []span
	drivers  []span
	peers    []span           // sends and receives
	last     int64            // time of the latest event
	before   int64            // when the collective before the next operation was over, or an operation before that; -1: there was none
	any      int64            // likewise of any operation
	latest   Done             // that was taken
	progress []Progress       // by communicator, of operations that were taken
	passed   map[uint64]int64 // by stream: up to which beginning operations were passed by later ones when Take looked last
}

// NewProcess returns a Process that has done nothing yet.
func NewProcess() *Process {
	return &Process{Follower: New(), before: -1, any: -1, passed: make(map[uint64]int64)}
}

// Observe takes in an event; frame and tracker are as in [Follower.Add]. It returns the kernel that a GPU ran, if the event
// is one of the program's own.
func (p *Process) Observe(ev *traces.Event, frame *api.Frame, tracker *api.Tracker) (kernel string) {
	p.Follower.Add(ev, frame)
	if ev.Kind != traces.KindEnd {
		p.last = max(p.last, ev.Time)
	}
	switch ev.Kind {
	case traces.KindReturn:
		if frame == nil || frame.Depth > 0 {
			break
		}
		end := ev.Time + max(ev.Dur, 0)
		if frame.End >= 0 {
			end = frame.End
		}
		switch frame.Purpose() {
		case api.Allocating, api.Loading, api.Starting:
			p.keep(&p.drivers, ev.Time, end)
		case api.Copying: // a program waits in it where the memory is pageable
			p.keep(&p.copies, ev.Time, end)
		}
	case traces.KindIoctl:
		if ev.Flags&(traces.FlagNoExit|traces.FlagUnfinished) == 0 {
			p.keep(&p.drivers, ev.Time, ev.Time+ev.Dur)
		}
	case traces.KindGPU:
		if ev.Flags&traces.FlagUnfinished != 0 {
			break
		}
		w := ev.Work()
		name, isKernel := tracker.Describe(ev)
		switch {
		case isKernel && strings.HasPrefix(name, "nccl"):
		case isKernel:
			p.keep(&p.kernels, w.Start, w.Start+w.Dur)
			return name
		default:
			p.keep(&p.copies, w.Start, w.Start+w.Dur)
		}
	}
	return ""
}

// keep adds a span.
func (p *Process) keep(to *[]span, from, end int64) {
	if end <= from {
		return
	}
	if n := len(*to); n > 0 {
		if last := &(*to)[n-1]; from <= last.to && from >= last.from {
			last.to = max(last.to, end)
			return
		}
	}
	if len(*to) < maxSpans {
		*to = append(*to, span{from, end})
	}
}

// settled reports whether no more is to come of an operation.
func (p *Process) settled(o *Op) bool {
	switch {
	case o.Exit < 0:
		return false
	case o.End >= 0 || o.NotOver || o.Launch < 0 || !p.GPU:
		return true
	}
	return o.Enter < p.passed[o.Stream] // a later one on the stream was over long ago: this one's time is lost
}

// Take returns the operations of which no more is to be known, and forgets them: in the order of their beginnings, up
// to the first that is still to come to its end. At the end of a recording it returns all.
func (p *Process) Take(end bool) []Done {
	n := len(p.Ops)
	if !end {
		n = 0
		for n < len(p.Ops) && (len(p.Ops)-n > maxHeld || p.settled(&p.Ops[n])) {
			n++
		}
		for i := range p.Ops {
			if o := &p.Ops[i]; o.End >= 0 {
				p.passed[o.Stream] = max(p.passed[o.Stream], o.Enter)
			}
		}
		if len(p.passed) > maxKeys {
			clear(p.passed)
		}
	}
	list := make([]Done, n)
	for i := range list {
		list[i].Op = p.Ops[i]
	}
	slices.SortStableFunc(list, func(a, b Done) int { return cmp.Compare(a.Enter, b.Enter) })
	p.kernels, p.copies, p.drivers = merge(p.kernels), merge(p.copies), merge(p.drivers)
	for i := range list {
		if d := &list[i]; d.PointToPoint() {
			if d.measure(); d.Dur > 0 {
				p.keep(&p.peers, d.Over-d.Dur, d.Over)
			}
		}
	}
	p.peers = merge(p.peers)
	for i := range list {
		p.finish(&list[i])
	}
	p.forget(n)
	return list
}

// finish says what an operation's times come to.
func (p *Process) finish(d *Done) {
	d.measure()
	d.Repeated = d.Group > 1 && d.Exit == p.latest.Exit && d.Comm == p.latest.Comm && p.latest.Group > 1
	if d.Dur > 0 {
		d.Exposed -= covered(p.kernels, span{d.Over - d.Dur, d.Over})
	}
	// What was done before a send or receive is still what the next collective waits for.
	before := p.before
	if d.PointToPoint() {
		before = p.any
	}
	if before >= 0 && d.Arrived > before && !d.Repeated {
		w := span{before, d.Arrived}
		d.Window = w.to - w.from
		d.Spent[Compute] = covered(p.kernels, w)
		busy := covered(merge(slices.Concat(in(p.kernels, w), in(p.copies, w))), w)
		d.Spent[Copying] = busy - d.Spent[Compute]
		all := covered(merge(slices.Concat(in(p.kernels, w), in(p.copies, w), in(p.drivers, w))), w)
		d.Spent[Driving] = all - busy
		// With a peer the process has waited, too, or may have.
		peers := covered(merge(slices.Concat(in(p.kernels, w), in(p.copies, w), in(p.drivers, w), in(p.peers, w))), w) - all
		d.Window -= peers
		d.Spent[Hosting] = d.Window - all
	}
	p.any = max(p.any, d.Over, d.Exit, d.Enter)
	p.latest = *d
	if !d.PointToPoint() {
		p.before = p.any
		p.grow()
		p.progress[d.Comm].come(d)
	}
}

// measure fills in when the process came to an operation, when it was over, and how long it was in it.
func (d *Done) measure() {
	begin, end, in, ok := d.In()
	d.Arrived, d.Over, d.Dur = begin, -1, -1
	if ok {
		d.Over, d.Dur, d.Exposed = end, in, in
		d.Arrived = max(end-in, begin)
	}
}

// grow has all communicators have their progress.
func (p *Process) grow() {
	for len(p.progress) < len(p.Comms) {
		p.progress = append(p.progress, Progress{})
	}
}

// forget drops the first n operations, and what was before all that may come.
func (p *Process) forget(n int) {
	p.Ops = slices.Delete(p.Ops, 0, n)
	p.taken += int64(n)
	least := p.last
	if len(p.Ops) > 0 {
		least = min(least, p.Ops[0].Enter)
	}
	if p.before >= 0 {
		least = min(least, p.before)
	}
	for _, list := range []*[]span{&p.kernels, &p.copies, &p.drivers, &p.peers} {
		*list = slices.DeleteFunc(*list, func(s span) bool { return s.to < least })
	}
}

// Progress returns how far the process has come in its communicators: in the operations that were taken, and in the others.
func (p *Process) Progress() []Progress {
	p.grow()
	list := slices.Clone(p.progress)
	for i := range list {
		list[i].Comm = p.Comms[i]
	}
	for i := range p.Ops {
		if o := &p.Ops[i]; !o.PointToPoint() {
			d := Done{Op: *o}
			d.measure()
			list[o.Comm].come(&d)
		}
	}
	return list
}

// merge sorts spans and joins those that touch.
func merge(list []span) []span {
	slices.SortFunc(list, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	out := list[:0]
	for _, s := range list {
		if n := len(out); n > 0 && s.from <= out[n-1].to {
			out[n-1].to = max(out[n-1].to, s.to)
			continue
		}
		out = append(out, s)
	}
	return out
}

// in returns those of sorted spans that are in a window.
func in(list []span, w span) []span {
	from, _ := slices.BinarySearchFunc(list, w.from, func(s span, at int64) int { return cmp.Compare(s.to, at) })
	to := from
	for to < len(list) && list[to].from < w.to {
		to++
	}
	return list[from:to]
}

// covered returns how much of a window sorted spans cover.
func covered(list []span, w span) (n int64) {
	for _, s := range in(list, w) {
		n += max(min(s.to, w.to)-max(s.from, w.from), 0)
	}
	return n
}
