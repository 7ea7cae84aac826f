package telemetry

import (
	"encoding/hex"
	"math/rand/v2"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/cmd/nvtrace/internal/push"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/nccl"
	"nvtrace/traces"
)

// Spans makes spans of a run: of itself, of its steps, and of calls, ranges and collectives that take long. It is an observer.
type Spans struct {
	header  *traces.Header
	long    int64 // from how long on calls and ranges have spans
	trace   [16]byte
	parent  [8]byte // of the run; zeros: none
	run     push.Span
	list    []push.Span
	dropped int
	open    map[rangeKey][]span // ranges by NVTX's stacks
	started map[startKey]span   // ranges with a number
	marked  map[rangeKey]span   // steps that last until the next mark
	steps   map[threadKey][8]byte
}

type threadKey struct{ pid, tid int32 }

type rangeKey struct {
	threadKey
	domain uint64
}

type startKey struct {
	pid int32
	id  uint64
}

// span is a range that is open.
type span struct {
	name   string
	start  int64
	step   bool
	id     [8]byte
	parent [8]byte // the step that was open; zeros: none
	tid    int32
}

// Bounds of what is kept.
const (
	maxSpans = 1 << 11 // between two looks
	maxOpen  = 1 << 12 // ranges of a kind, and threads
	maxDepth = 1 << 8  // of ranges in each other
	maxName  = 1 << 8
)

// newSpans returns what makes spans. parent is where the run stands in a trace of others, as W3C's traceparent has it; "": in
// one of its own.
func newSpans(h *traces.Header, long time.Duration, parent string) *Spans {
	s := &Spans{
		header: h, long: int64(long), open: make(map[rangeKey][]span), started: make(map[startKey]span), marked: make(map[rangeKey]span), steps: make(map[threadKey][8]byte),
	}
	s.trace, s.parent = [16]byte(append(newID(), newID()...)), [8]byte{}
	if trace, id, ok := traceparent(parent); ok {
		s.trace, s.parent = trace, id
	}
	s.run = push.Span{Trace: s.trace, ID: [8]byte(newID()), Parent: s.parent, Name: "run", Start: h.Start}
	if len(h.Argv) > 0 {
		s.run.Name = path.Base(h.Argv[0])
	}
	return s
}

// newID returns eight bytes that nobody else has.
func newID() []byte {
	var b [8]byte
	for v, i := rand.Uint64()|1, 0; i < len(b); i++ {
		b[i] = byte(v >> (8 * i))
	}
	return b[:]
}

// traceparent reads W3C's form: 00-TRACE-SPAN-FLAGS.
func traceparent(text string) (trace [16]byte, id [8]byte, ok bool) {
	parts := strings.Split(text, "-")
	if len(parts) < 4 || len(parts[0]) != 2 || len(parts[1]) != 2*len(trace) || len(parts[2]) != 2*len(id) {
		return trace, id, false
	}
	if _, err := hex.Decode(trace[:], []byte(parts[1])); err != nil {
		return trace, id, false
	}
	if _, err := hex.Decode(id[:], []byte(parts[2])); err != nil {
		return trace, id, false
	}
	return trace, id, trace != [16]byte{} && id != [8]byte{}
}

// Observe implements observe.Observer.
func (s *Spans) Observe(e *observe.Event) {
	ev := e.Event
	switch ev.Kind {
	case traces.KindCall:
		if e.Frame != nil && e.Frame.Module.Library == api.NVTX {
			s.marks(ev)
		}
	case traces.KindReturn:
		s.returned(e)
	case traces.KindIoctl:
		if e.Frame == nil && ev.Dur >= s.long && ev.Flags&traces.FlagUnfinished == 0 {
			x := s.span(ev.PID, ev.TID, string(e.Call.AppendName(nil)), ev.Time, ev.Time+ev.Dur)
			x.Failed = e.Call.Failed()
			s.add(x)
		}
	case traces.KindExit:
		if ev.TID == ev.PID {
			s.forget(ev)
		}
	}
}

// span begins one that belongs to the thread's open step, or else to the run.
func (s *Spans) span(pid, tid int32, name string, start, end int64) push.Span {
	parent := s.run.ID
	if step, ok := s.steps[threadKey{pid, tid}]; ok && step != [8]byte{} {
		parent = step
	}
	if len(name) > maxName {
		name = name[:maxName]
	}
	return push.Span{
		Trace: s.trace, ID: [8]byte(newID()), Parent: parent, Name: name, Start: s.header.Start + start, End: s.header.Start + max(start, end),
		Attrs: []push.Attr{{Key: "process.pid", Value: int64(pid)}, {Key: "thread.id", Value: int64(tid)}},
	}
}

func (s *Spans) add(x push.Span) {
	if len(s.list) >= maxSpans {
		s.dropped++
		return
	}
	s.list = append(s.list, x)
}

// marks takes in a range that begins or ends, or a mark.
func (s *Spans) marks(ev *traces.Event) {
	thread := threadKey{ev.PID, ev.TID}
	text, named := RangeText(ev)
	begin := span{start: ev.Time, step: named && IsStep(text), id: [8]byte(newID()), parent: s.steps[thread], tid: ev.TID}
	begin.name = string(text[:min(len(text), maxName)])
	switch ev.Name {
	case "nvtxRangePush":
		k := rangeKey{thread, ev.Args[1]}
		if list := s.open[k]; len(list) < maxDepth && (list != nil || len(s.open) < maxOpen) {
			s.open[k] = append(list, begin)
			s.enter(thread, &begin)
		}
	case "nvtxRangePop":
		k := rangeKey{thread, ev.Args[0]}
		if list := s.open[k]; len(list) > 0 {
			s.leave(ev, thread, &list[len(list)-1])
			if s.open[k] = list[:len(list)-1]; len(list) == 1 {
				delete(s.open, k)
			}
		}
	case "nvtxRangeStart":
		if len(s.started) < maxOpen {
			s.started[startKey{ev.PID, ev.Args[0]}] = begin // it may end on another thread, and is nothing's parent
		}
	case "nvtxRangeEnd":
		k := startKey{ev.PID, ev.Args[0]}
		if x, ok := s.started[k]; ok {
			delete(s.started, k)
			s.ended(ev, &x)
		}
	case "nvtxMark":
		k := rangeKey{thread, ev.Args[1]}
		if !begin.step || len(s.marked) >= maxOpen {
			break
		}
		if x, ok := s.marked[k]; ok {
			s.leave(ev, thread, &x)
			begin.parent = s.steps[thread]
		}
		s.marked[k] = begin
		s.enter(thread, &begin)
	}
}

// enter notes the step that a thread is in.
func (s *Spans) enter(thread threadKey, x *span) {
	if _, ok := s.steps[thread]; x.step && (ok || len(s.steps) < maxOpen) {
		s.steps[thread] = x.id
	}
}

// leave ends what enter was told of.
func (s *Spans) leave(ev *traces.Event, thread threadKey, x *span) {
	if x.step && s.steps[thread] == x.id {
		s.steps[thread] = x.parent
	}
	s.ended(ev, x)
}

// ended makes a span of a range that has ended, if it is a step or was long.
func (s *Spans) ended(ev *traces.Event, x *span) {
	if !x.step && ev.Time-x.start < s.long {
		return
	}
	y := s.span(ev.PID, x.tid, x.name, x.start, ev.Time)
	if y.ID, y.Parent = x.id, s.run.ID; x.parent != [8]byte{} {
		y.Parent = x.parent
	}
	y.Attrs = append(y.Attrs, push.Attr{Key: "nvtrace.step", Value: x.step})
	s.add(y)
}

// returned makes a span of a call that was long: the program's own, not what libraries call on their way.
func (s *Spans) returned(e *observe.Event) {
	f := e.Frame
	if f == nil || f.Depth > 0 || f.End < 0 || f.End-f.Start < s.long || f.Module.Library == api.NVTX {
		return
	}
	x := s.span(f.PID, f.TID, f.Name, f.Start, f.End)
	if r := e.Call.Returned; r.Known && r.Failed {
		x.Failed, x.Error = true, r.Name
	}
	s.add(x)
}

// took makes a span of an operation of NCCL's that was long: waiting for other ranks is in it.
func (s *Spans) took(d *nccl.Done, size int32) {
	if d.Dur < s.long || d.Repeated {
		return
	}
	x := s.span(d.PID, d.TID, "nccl"+d.Name, d.Over-d.Dur, d.Over)
	x.Parent = s.run.ID // it is over when its thread may be at another step
	x.Attrs = append(x.Attrs, push.Attr{Key: "nvtrace.collective.sequence", Value: int64(d.Seq)}, push.Attr{Key: "nvtrace.collective.bytes", Value: int64(d.Bytes())})
	if size > 0 {
		x.Attrs = append(x.Attrs, push.Attr{Key: "nvtrace.collective.ranks", Value: int64(size)})
	}
	s.add(x)
}

// forget drops what is known of a process that has ended.
func (s *Spans) forget(ev *traces.Event) {
	pid := ev.PID
	for k := range s.open {
		if k.pid == pid {
			delete(s.open, k)
		}
	}
	for k := range s.started {
		if k.pid == pid {
			delete(s.started, k)
		}
	}
	for k, x := range s.marked {
		if k.pid == pid {
			s.ended(ev, &x) // the last step
			delete(s.marked, k)
		}
	}
	for k := range s.steps {
		if k.pid == pid {
			delete(s.steps, k)
		}
	}
	if pid == s.header.PID {
		s.exited(ev)
	}
}

// exited takes in how the program has ended.
func (s *Spans) exited(ev *traces.Event) {
	status := unix.WaitStatus(ev.Ret)
	s.run.End = s.header.Start + ev.Time
	switch {
	case status.Signaled():
		s.run.Failed, s.run.Error = true, status.Signal().String()
		s.run.Attrs = append(s.run.Attrs, push.Attr{Key: "nvtrace.signal", Value: int64(status.Signal())})
	default:
		s.run.Failed = status.ExitStatus() != 0
		s.run.Attrs = append(s.run.Attrs, push.Attr{Key: "process.exit.code", Value: int64(status.ExitStatus())})
	}
}

// take returns the spans that are over by now, and how many found no room. At the end that of the run is among them.
func (s *Spans) take(now time.Time, end bool) (list []push.Span, dropped int) {
	if list, dropped = s.list, s.dropped; end {
		if s.run.End == 0 { // it goes on without nvtrace
			s.run.End = now.UnixNano()
		}
		list = append(list, s.run)
	}
	s.list, s.dropped = nil, 0
	return list, dropped
}
