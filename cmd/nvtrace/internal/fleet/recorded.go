// Package fleet finds out of the recordings of a job's ranks which of them is slow or hangs, since when, in what, and
// which differ. It reads one recording at a time, and keeps of each what a communicator's members must know of each other.
//
// It refuses to know files and flags. Where recordings do not tell, it says so.
package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/nccl"
	"nvtrace/traces"
	"nvtrace/traces/ranks"
)

// What a rank does between collectives.
const (
	compute  = iota // kernels, but NCCL's, run
	copying         // only copies and sets run on the GPU
	driving         // the GPU has nothing, and the thread is in the driver: ioctls, memory, code
	hosting         // likewise, and the thread is elsewhere
	purposes        // how many there are
)

// purposeNames are what a slow rank is slow in.
var purposeNames = [purposes]string{"compute", "copy", "driver", "host"}

// span is a time in which something was so.
type span struct{ from, to int64 }

// maxSpans bounds the spans of each kind that are kept of a rank.
const maxSpans = 1 << 20

// Recorded is what a recording says of a rank. Times are in nanoseconds since the recording's start.
type Recorded struct {
	File   string
	Header traces.Header
	Place  ranks.Place
	// Events is how many there were, Last the time of the last one.
	Events uint64
	Last   int64
	// Complete says that the recording has its end.
	Complete bool

	follow   *nccl.Follower
	kernels  []span
	copies   []span
	drivers  []span
	more     uint64 // spans that found no room
	nccl     map[int32]bool
	facts    map[string]string
	sets     map[string]map[string]bool // of facts that are sets
	failures map[string]uint64
	exit     string // how the first process ended; "": not seen
	exited   int64
	doing    map[int32]doing
	environ  *api.Environment
}

// doing is what a thread was at when it was last heard of.
type doing struct {
	name  string // of the outermost call that it is in; "": none
	since int64
}

// Bounds of what is kept to be compared.
const (
	maxMembers  = 1 << 12
	maxFailures = 1 << 10
	maxThreads  = 1 << 12
)

// NewRecorded begins with a recording.
func NewRecorded(file string, h *traces.Header) *Recorded {
	r := &Recorded{
		File: file, Header: *h, Place: ranks.Of(h.Rank), follow: nccl.New(),
		nccl: make(map[int32]bool), facts: make(map[string]string), sets: make(map[string]map[string]bool),
		failures: make(map[string]uint64), doing: make(map[int32]doing), environ: api.NewEnvironment(false),
	}
	for name, value := range map[string]string{"driver": h.Driver, "machine": h.Arch, "kernel": h.Kernel, "nvtrace": h.Tool} {
		if value != "" {
			r.facts[name] = value
		}
	}
	return r
}

// Observe implements observe.Observer.
func (r *Recorded) Observe(e *observe.Event) {
	ev, c, frame := e.Event, e.Call, e.Frame
	r.Events++
	r.follow.Add(ev, frame)
	r.environ.Add(ev, e.Tracker, frame)
	if ev.Kind != traces.KindEnd {
		r.Last = max(r.Last, ev.Time, ev.Time+ev.Dur)
	}
	switch ev.Kind {
	case traces.KindCall:
		if frame == nil {
			break
		}
		if frame.Module.Library == api.NCCL {
			r.nccl[ev.TID] = true
		}
		if frame.Depth == 0 && (len(r.doing) < maxThreads || r.doing[ev.TID] != doing{}) {
			r.doing[ev.TID] = doing{frame.Name, ev.Time}
			if frame.Module.Library != api.NVTX && frame.Module.Library != api.LibC {
				r.member("library", library(frame.Path))
			}
		}
	case traces.KindReturn:
		if frame == nil || frame.Depth > 0 {
			break
		}
		end := ev.Time + max(ev.Dur, 0)
		if frame.End >= 0 {
			end = frame.End
		}
		if d, ok := r.doing[ev.TID]; ok && ev.Flags&traces.FlagUnfinished == 0 && d.since == frame.Start {
			r.doing[ev.TID] = doing{"", end}
		}
		switch frame.Purpose() {
		case api.Allocating, api.Loading, api.Starting:
			r.keep(&r.drivers, ev.Time, end)
		case api.Copying: // a program waits in it where the memory is pageable
			r.keep(&r.copies, ev.Time, end)
		}
		if c != nil && c.Returned.Known && c.Returned.Failed {
			r.failed(frame.Name + ": " + c.Returned.Name)
		}
	case traces.KindIoctl:
		if ev.Flags&(traces.FlagNoExit|traces.FlagUnfinished) == 0 {
			r.keep(&r.drivers, ev.Time, ev.Time+ev.Dur)
		}
		if c != nil && (c.Errno != 0 || c.HasStatus && c.Status != 0) {
			text := strings.TrimSpace(c.Name + " " + c.Sub)
			if c.Errno != 0 {
				text += ": " + unix.ErrnoName(unix.Errno(c.Errno))
			} else {
				text += ": " + c.Status.String()
			}
			r.failed(text)
		}
	case traces.KindGPU:
		w := ev.Work()
		if ev.Flags&traces.FlagUnfinished != 0 {
			break
		}
		name, kernel := e.Tracker.Describe(ev)
		switch {
		case kernel && strings.HasPrefix(name, "nccl"):
		case kernel:
			r.keep(&r.kernels, w.Start, w.Start+w.Dur)
			r.member("kernel", name)
		default:
			r.keep(&r.copies, w.Start, w.Start+w.Dur)
		}
	case traces.KindImage:
		if ev.Image != nil {
			r.member("image", ev.Image.SHA256)
		}
	case traces.KindExit:
		if ev.PID == r.Header.PID && ev.TID == ev.PID {
			st := unix.WaitStatus(ev.Ret)
			if r.exited = ev.Time; st.Signaled() {
				r.exit = "killed by " + unix.SignalName(st.Signal())
			} else {
				r.exit = fmt.Sprintf("exit %d", st.ExitStatus())
			}
		}
	case traces.KindSignal:
		if st := unix.Signal(ev.Ret); st == unix.SIGSTOP || st == unix.SIGTSTP {
			r.doing[ev.TID] = doing{stoppedBy + unix.SignalName(st), ev.Time}
		}
	}
}

// library is a library's file. Those of the simulated GPU have a folder of their own in each run.
func library(path string) string {
	if strings.Contains(path, "/nvtrace-sim-") {
		return filepath.Base(path) + " (simulated)"
	}
	return path
}

// keep adds a span.
func (r *Recorded) keep(to *[]span, from, end int64) {
	if end <= from {
		return
	}
	if n := len(*to); n > 0 {
		if last := &(*to)[n-1]; from <= last.to && from >= last.from {
			last.to = max(last.to, end)
			return
		}
	}
	if len(*to) >= maxSpans {
		r.more++
		return
	}
	*to = append(*to, span{from, end})
}

// member notes that something is in a set that is compared.
func (r *Recorded) member(set, name string) {
	m := r.sets[set]
	if m == nil {
		m = make(map[string]bool)
		r.sets[set] = m
	}
	if !m[name] && len(m) < maxMembers {
		m[strings.Clone(name)] = true
	}
}

func (r *Recorded) failed(what string) {
	if r.failures[what] == 0 && len(r.failures) >= maxFailures {
		return
	}
	r.failures[what]++
}

// op is what is compared of an operation with those of other ranks.
type op struct {
	*nccl.Op
	arrive, end int64 // end is -1 where it is not known
	dur         int64 // in the operation; -1: not known
	exposed     int64 // of dur, in which the GPU did nothing else: what the rank lost
	window      int64 // from the end of what this thread had before it to its arrival
	spent       [purposes]int64
	repeated    bool // it is of the group of the one before, of whose times it would only have a copy
}

// ops returns the operations by their beginnings, with what the rank did before each.
func (r *Recorded) ops() []op {
	list := make([]op, len(r.follow.Ops))
	for i := range r.follow.Ops {
		o := &r.follow.Ops[i]
		x := &list[i]
		x.Op = o
		begin, end, in, ok := o.In()
		x.arrive, x.end, x.dur = begin, -1, -1
		if ok {
			x.end, x.dur = end, in
			x.arrive = max(end-in, begin)
			x.exposed = in
		}
	}
	slices.SortStableFunc(list, func(a, b op) int { return cmp.Compare(a.Enter, b.Enter) })
	kernels, copies, drivers := merge(r.kernels), merge(r.copies), merge(r.drivers)
	before := int64(-1)
	for i := range list {
		x := &list[i]
		if i > 0 && x.Group > 1 && x.Exit == list[i-1].Exit && x.Comm == list[i-1].Comm {
			x.repeated = true
		}
		if x.dur > 0 {
			x.exposed -= covered(kernels, span{x.end - x.dur, x.end})
		}
		if before >= 0 && x.arrive > before && !x.repeated {
			x.window = x.arrive - before
			w := span{before, x.arrive}
			x.spent[compute] = covered(kernels, w)
			busy := covered2(kernels, copies, w)
			x.spent[copying] = busy - x.spent[compute]
			all := covered3(kernels, copies, drivers, w)
			x.spent[driving] = all - busy
			x.spent[hosting] = x.window - all
		}
		before = max(before, x.end, x.Exit, x.Enter)
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

// covered returns how much of a window spans cover.
func covered(list []span, w span) (n int64) {
	for _, s := range in(list, w) {
		n += max(min(s.to, w.to)-max(s.from, w.from), 0)
	}
	return n
}

func covered2(a, b []span, w span) int64 {
	return covered(merge(append(slices.Clone(in(a, w)), in(b, w)...)), w)
}

func covered3(a, b, c []span, w span) int64 {
	return covered(merge(append(append(slices.Clone(in(a, w)), in(b, w)...), in(c, w)...)), w)
}

// compared returns what is compared with other ranks.
func (r *Recorded) compared() map[string]string {
	facts := r.facts
	for _, v := range r.environ.Variables() {
		if !ranks.Var(v.Name) && v.Set {
			facts["environment "+v.Name] = cmp.Or(v.Value, "(set)")
		}
	}
	return facts
}

// stoppedBy begins what a thread is at that a signal has stopped.
const stoppedBy = "stopped by "

// atEnd says what the thread that calls NCCL was at when it was last heard of, and since when.
func (r *Recorded) atEnd() (text string, since int64) {
	since = -1
	for _, tid := range slices.Sorted(maps.Keys(r.doing)) {
		d := r.doing[tid]
		stopped := strings.HasPrefix(d.name, stoppedBy)
		switch {
		case strings.HasPrefix(text, stoppedBy), !stopped && (!r.nccl[tid] || d.since <= since):
			continue
		case stopped:
			text = d.name
		case d.name == "":
			text = "outside of CUDA's libraries"
		default:
			text = "in " + d.name
		}
		since = d.since
	}
	return text, since
}
