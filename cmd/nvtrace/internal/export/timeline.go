package export

import (
	"cmp"
	"errors"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/ioctl"
	"nvtrace/rm"
	"nvtrace/traces"
)

// errClosed is what Close leaves, so that a second one writes nothing.
var errClosed = errors.New("the timeline is closed")

// NewTimeline returns a Timeline that writes to w. The events that it will be
// given are decoded by d; h, which may be nil, is the recording's header.
// Writing begins with the first event, so that no error is returned here.
func NewTimeline(w io.Writer, h *traces.Header, d *ioctl.Decoder) *Timeline {
	return newTimeline(w, h, d, nil)
}

// NewTimelineAmong returns a Timeline as NewTimeline, which is a part of a larger one. Ids of processes of several hosts
// mean nothing together: processes and threads are tracks by their names.
func NewTimelineAmong(w io.Writer, h *traces.Header, d *ioctl.Decoder, among *Among) *Timeline {
	return newTimeline(w, h, d, among)
}

func newTimeline(w io.Writer, h *traces.Header, d *ioctl.Decoder, among *Among) *Timeline {
	t := &Timeline{
		threads: make(map[taskKey]*thread), procs: make(map[int32]*process), streams: make(map[streamKey]*stream),
		common: make(map[string]string), floor: math.MinInt64,
	}
	t.init(h, d)
	t.out.init(w, among)
	t.among = among
	t.style.Demangle = t.kernelName
	if h == nil {
		return t
	}
	t.home = h.PID
	switch {
	case among == nil && h.Start > 0:
		t.out.wallClock(h.Start)
	case among != nil && among.Index == 0:
		t.out.wallClock(among.Begin)
	}
	t.recording(h)
	return t
}

// recording writes what is known of the whole as an instant at its beginning.
func (t *Timeline) recording(h *traces.Header) {
	track := t.out.uuid()
	t.out.descriptor(track, func(b []byte) []byte {
		b = appendBytes(b, descriptorName, t.named("recording"))
		return appendUint(b, descriptorOrder, childrenExplicit)
	})
	o := &t.out
	o.start(o.main, 0, typeInstant)
	o.on(track)
	o.name("recording")
	for _, a := range [][2]string{{"producer", "nvtrace"}, {"version", h.Tool}, {"driver", h.Driver}, {"kernel", h.Kernel}, {"arch", h.Arch}, {"host", h.Host}, {"command", commandLine(h.Argv)}} {
		o.opt(a[0], a[1])
	}
	for _, name := range slices.Sorted(maps.Keys(h.Rank)) {
		o.opt(clip(name, maxName), h.Rank[name])
	}
	o.finish(0)
}

// commandLine joins arguments for people to read.
func commandLine(argv []string) string {
	var b []byte
	for i, a := range argv {
		if i > 0 {
			b = append(b, ' ')
		}
		if b = append(b, a...); len(b) > maxText {
			break
		}
	}
	return clip(string(b), maxText)
}

// Observe implements observe.Observer: it draws the event, and keeps nothing of it. What an event
// that is not wanted says about objects, memory and names matters to later ones. Counters change
// with those too, in processes of which something is shown.
func (t *Timeline) Observe(e *observe.Event) {
	if e.Unwanted {
		t.skip(e)
		return
	}
	ev, c := e.Event, e.Call
	t.take(e)
	if t.home == 0 {
		t.home = ev.PID
	}
	if t.out.err == nil && !t.full(t.out.size()) {
		t.last = max(t.last, ev.Time)
		t.account(ev.PID).seen = true
		t.library(ev, true)
		t.event(ev, c)
		t.counters(ev)
	}
	t.ledger.clean()
}

func (t *Timeline) skip(e *observe.Event) {
	ev := e.Event
	t.take(e)
	if t.out.err == nil && !t.full(t.out.size()) {
		t.library(ev, false)
		t.counters(ev)
	}
	t.ledger.clean()
}

// Close ends the timeline and returns the first error that writing met. It
// does not close the writer.
func (t *Timeline) Close() error {
	if !t.closed {
		t.closed = true
		if t.least != stop {
			t.pending()
		}
		t.remaining()
		t.out.flush(true)
	}
	err := t.out.err
	if err == nil {
		t.out.err = errClosed
	}
	return err
}

// pending writes what is held back.
func (t *Timeline) pending() {
	for _, k := range t.sortedThreads() {
		th := t.threads[k]
		t.beginAll(th)
		t.endRun(th, &th.run)
		for i := range th.calls {
			t.endRun(th, &th.calls[i].run)
		}
	}
	t.endStreams()
	t.drawWorks(len(t.gpu.works))
	t.endGPUStreams()
}

// remaining writes that events found no room, if so.
func (t *Timeline) remaining() {
	if t.left == 0 || t.out.err != nil {
		return
	}
	o := &t.out
	o.start(t.thread(taskKey{t.home, t.home}).seq, t.last, typeInstant)
	o.name("the trace ends here, for its size")
	o.category("note")
	o.uint("events left out", t.left)
	o.finish(t.last)
}

func (t *Timeline) event(ev *traces.Event, c *ioctl.Call) {
	switch {
	case ev.Kind == traces.KindFork:
		t.fork(ev)
	case isCall(ev.Kind):
		t.call(ev, c)
	case ev.Kind == traces.KindCall || ev.Kind == traces.KindReturn:
	case ev.Kind == traces.KindGPU:
		t.work(ev)
	case ev.Kind == traces.KindStack && ev.Flags&traces.FlagUnfinished == 0:
		t.calledFrom(ev)
	default:
		t.remark(ev)
	}
}

// call writes a system call.
func (t *Timeline) call(ev *traces.Event, c *ioctl.Call) {
	key := taskKey{ev.PID, ev.TID}
	th := t.thread(key)
	t.finish(th, ev.Time)
	t.name = t.appendCallName(t.name[:0], ev, c)
	end := ev.Time + ev.Dur
	sane := ev.Time >= 0 && ev.Dur >= 0 && end >= ev.Time
	o := &t.out
	track := uint64(0)
	switch {
	case ev.Flags&traces.FlagUnfinished != 0 && ev.Time >= th.end:
		t.beginAll(th)
		o.start(th.seq, ev.Time, typeBegin)
		th.open, th.end = true, ev.Time
		sane = sane && ev.Dur == 0
		end = math.MinInt64 // it has none
	case ev.Flags&untimed != 0 || inferred(ev) || !sane:
		o.start(th.seq, ev.Time, typeInstant)
		end = math.MinInt64
	case ev.Time < th.end:
		track = o.uuid()
		p := t.process(key.pid)
		o.descriptor(track, func(b []byte) []byte {
			b = appendBytes(b, descriptorName, "calls that overlap others of thread "+strconv.Itoa(int(key.tid)))
			return appendUint(b, descriptorParent, p.track)
		})
		o.start(th.seq, ev.Time, typeBegin)
		o.on(track)
	default:
		th.end = end
		t.age(th, ev.Time)
		if ev.Dur < t.least && !failed(ev, c) {
			t.merge(th, t.callName(t.name), ev.Time, end)
			return
		}
		t.beginAll(th)
		t.endRun(th, th.within())
		o.start(th.seq, ev.Time, typeBegin)
	}
	t.label(ev, c)
	if !sane {
		o.int("dur_ns", ev.Dur)
	}
	t.callArgs(ev, c)
	o.finish(ev.Time)
	if end != math.MinInt64 {
		o.start(th.seq, end, typeEnd)
		if track != 0 {
			o.on(track)
		}
		o.finish(end)
	}
	if failed(ev, c) {
		t.failure(key, ev.Time, result(c), t.name)
	}
}

// label writes the name and the categories of a call.
func (t *Timeline) label(ev *traces.Event, c *ioctl.Call) {
	o := &t.out
	o.nameBytes(t.name)
	o.category(ev.Kind.String())
	if failed(ev, c) {
		o.category("failed")
	}
	if c.Unknown != ioctl.Known {
		o.category("unknown")
	}
}

// callArgs writes what a click on a call shows.
func (t *Timeline) callArgs(ev *traces.Event, c *ioctl.Call) {
	if ev.Flags&untimed == 0 {
		t.out.str("status", result(c))
	}
	if n := node(ev); n != "" {
		t.out.str("node", n)
	}
	if ev.FD >= 0 {
		t.out.int("fd", int64(ev.FD))
	}
	switch ev.Kind {
	case traces.KindIoctl:
		t.ioctlArgs(ev, c)
	case traces.KindOpen:
		t.out.opt("path", ev.Path)
	case traces.KindDup:
		if c.Errno == 0 {
			t.out.int("new_fd", ev.Ret)
		}
	case traces.KindMmap:
		if c.Errno == 0 && ev.Flags&untimed == 0 {
			t.out.hex("address", uint64(ev.Ret))
		}
		t.out.uint("length", ev.Args[1])
		t.out.str("maps", mapped(c))
		if l := c.Link; l != nil && !l.Managed {
			t.object("object", l.Client, l.Memory)
			if l.Class != nil {
				t.out.str("class", l.Class.Name)
			}
		}
	case traces.KindMunmap, traces.KindMremap:
		t.out.hex("address", ev.Args[0])
		t.out.uint("length", ev.Args[1])
	}
	if ev.Flags != 0 {
		t.out.str("flags", ev.Flags.String())
	}
}

func (t *Timeline) ioctlArgs(ev *traces.Event, c *ioctl.Call) {
	if c.Unknown != ioctl.Known {
		t.out.str("unknown", c.Unknown.String())
	}
	t.out.hex("request", uint64(ev.Request()))
	if c.HasSub {
		t.out.hex("number", uint64(c.SubNr))
	}
	t.object("client", c.Client, c.Client)
	t.object("parent", c.Client, c.Parent)
	t.object("object", c.Client, c.Object)
	if !c.Failed() {
		t.object("new", c.Client, c.New)
	}
	if t.ledger.made != 0 {
		t.out.uint("allocated", t.ledger.made)
	}
	size := 0
	for i := range c.Parts {
		size += c.Parts[i].Len
	}
	if size != 0 {
		t.out.uint("parameter_bytes", uint64(size))
	}
	if !c.Other.IsZero() {
		t.out.str("layout_of", c.Other.String())
	}
}

// object writes an object's name, or its handle where it has none.
func (t *Timeline) object(key string, client, handle uint32) {
	if handle == 0 {
		return
	}
	t.text = t.text[:0]
	if o := t.objects.Tree().Object(rm.Ref{Client: client, Handle: handle}); o != nil && !o.Guessed {
		t.text = o.AppendShort(t.text)
	} else {
		t.text = t.namer(t.text, client, handle) // knows what the call freed
	}
	if len(t.text) == 0 {
		t.out.hex(key, uint64(handle))
		return
	}
	t.out.text(key, t.text)
}

// fork writes who forks and what is forked, joined by an arrow.
func (t *Timeline) fork(ev *traces.Event) {
	parent, child := taskKey{ev.PID, ev.TID}, taskKey{ev.PID, ev.Child}
	from, to := "clone", "thread start"
	if ev.Flags&traces.FlagThread == 0 {
		child.pid, from, to = ev.Child, "fork", "process start"
	}
	o := &t.out
	if ev.Flags&traces.FlagAttached != 0 {
		o.start(t.thread(child).seq, ev.Time, typeInstant)
		o.name("attached")
		o.category("process")
		o.finish(ev.Time)
		return
	}
	t.flows++
	for _, side := range [2]struct {
		key  taskKey
		name string
	}{{parent, from}, {child, to}} {
		o.start(t.thread(side.key).seq, ev.Time, typeInstant)
		o.name(side.name)
		o.category("process")
		if side.key == parent {
			o.flowFrom(t.flows)
		} else {
			o.flowTo(t.flows)
		}
		o.int("child", int64(ev.Child))
		o.finish(ev.Time)
	}
	t.account(child.pid).seen = true
}

// remark writes an event that is no call, as an instant.
func (t *Timeline) remark(ev *traces.Event) {
	key := taskKey{ev.PID, ev.TID}
	if key.pid == 0 {
		key = taskKey{t.home, t.home}
	}
	th := t.thread(key)
	if ev.Kind == traces.KindExit {
		t.finish(th, ev.Time)
	}
	t.out.start(th.seq, ev.Time, typeInstant)
	t.out.name(t.remarkName(ev))
	t.out.category(ev.Kind.String())
	switch ev.Kind {
	case traces.KindExec:
		t.out.opt("path", ev.Path)
		t.out.opt("command", commandLine(ev.Argv))
	case traces.KindExit, traces.KindSignal, traces.KindLost:
		t.out.int("value", ev.Ret)
	case traces.KindEnd:
		if k := ev.Cost; k != nil {
			t.out.uint("stops", k.Stops)
			t.out.uint("events", k.Events)
			t.out.uint("bytes_copied", k.Bytes)
			t.out.int("tracer_cpu_ns", k.TracerCPU)
			t.out.int("wall_ns", k.Wall)
		}
	case traces.KindImage, traces.KindKernel:
		t.imageArgs(ev)
	case traces.KindMissed:
		m := ev.Miss()
		t.out.int("after_ns", m.After)
		t.out.int("before_ns", m.Before)
	default:
		t.out.opt("text", ev.Text)
	}
	if ev.Flags != 0 {
		t.out.str("flags", ev.Flags.String())
	}
	t.out.finish(ev.Time)
}

// remarkName says what a remark is about.
func (t *Timeline) remarkName(ev *traces.Event) string {
	switch ev.Kind {
	case traces.KindExec:
		return "exec " + programName(ev.Path)
	case traces.KindExit:
		if sig := ev.Ret & 0x7f; sig != 0 { // as waitpid(2) has it
			return "killed by signal " + strconv.FormatInt(sig, 10)
		}
		return "exit " + strconv.FormatInt(ev.Ret>>8&0xff, 10)
	case traces.KindSignal:
		return "signal " + strconv.FormatInt(ev.Ret, 10)
	case traces.KindSampled:
		return "what looks from outside came to"
	case traces.KindMissed:
		return "time not seen: " + clip(t.kernelName(cmp.Or(ev.Text, ev.Name, "copy")), maxName)
	case traces.KindThread:
		return "called " + clip(ev.Text, maxName)
	case traces.KindNote:
		return "note: " + clip(ev.Text, maxName)
	case traces.KindLost:
		return strconv.FormatInt(ev.Ret, 10) + " events were lost"
	case traces.KindImage:
		return "image " + imageName(ev.Image)
	case traces.KindKernel:
		return "first launch of " + clip(t.kernelName(ev.Name), maxName)
	case traces.KindCaptured:
		if ev.Captured == nil {
			return "captured"
		}
		return "captured: " + clip(ev.Captured.String(), maxName)
	case traces.KindGap:
		return "incomplete: " + clip(ev.Text, maxName)
	case traces.KindFault:
		return clip(t.kernelName(ev.Name), maxName) + " failed"
	case traces.KindEnd:
		return "end of the recording"
	}
	return cmp.Or(clip(ev.Name, maxName), ev.Kind.String())
}

// counters writes what changed of the processes' quantities. The times of one
// process's counters do not go backwards: a call that another one outlasts is
// recorded after it.
func (t *Timeline) counters(ev *traces.Event) {
	end := ev.Time
	if ev.Dur > 0 && end+ev.Dur > end {
		end += ev.Dur
	}
	if a := t.ledger.accounts[ev.PID]; a != nil && a.seen {
		t.counter(a, end)
	}
	for _, a := range t.ledger.dirty {
		if a.seen {
			t.counter(a, end)
		}
	}
}

// memoryOf returns the track above the counters of a process. They have a place of their
// own, as viewers put what is below a process beneath all of its threads.
func (t *Timeline) memoryOf(p *process, pid int32) uint64 {
	if t.memory == 0 {
		t.memory = t.out.uuid()
		t.out.descriptor(t.memory, func(b []byte) []byte {
			b = appendBytes(b, descriptorName, "memory and objects")
			return appendUint(b, descriptorRank, 1)
		})
	}
	if p.memory == 0 {
		p.memory = t.below(t.memory, clean(p.name)+" "+strconv.Itoa(int(pid)), 0, func(b []byte) []byte {
			return appendUint(b, descriptorOrder, childrenExplicit)
		})
	}
	return p.memory
}

func (t *Timeline) counter(a *account, ns int64) {
	if a.have == a.shown {
		return
	}
	a.time = max(a.time, ns)
	p := t.process(a.pid)
	o := &t.out
	for q, n := range a.have {
		if n == a.shown[q] {
			continue
		}
		if p.counters[q] == 0 {
			p.counters[q] = t.below(t.memoryOf(p, a.pid), quantityNames[q].name, q, func(b []byte) []byte {
				b, at := begin(b, descriptorCounter)
				return end(appendUint(b, counterUnit, quantityNames[q].unit), at)
			})
		}
		o.start(o.main, a.time, typeCounter)
		o.on(p.counters[q])
		o.counter(n)
		o.finish(a.time)
	}
	a.shown = a.have
}
