package export

import (
	"cmp"
	"errors"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/rm"
	"nvtrace/traces"
)

// flushBytes is how much text a Timeline gathers before it writes.
const flushBytes = 64 << 10

// errClosed is what Close leaves, so that a second one writes nothing.
var errClosed = errors.New("the timeline is closed")

// Timeline writes a recording in the trace event format, JSON that
// ui.perfetto.dev and chrome://tracing show as one timeline: a track for each
// thread with its calls, tracks for what each process has of memory and
// objects, arrows from who forks to what is forked.
//
// Events of the format are written as follows. Times are microseconds since the
// recording began, with nanoseconds as fraction.
//
//	X  a call, with its duration. Category: the call (ioctl, mmap, open, …),
//	   then, separated by commas, "failed" and "unknown" where it is so.
//	   Also a fork and the start of what it made, of no duration, joined by a flow
//	B  a call that had not returned when its thread ended (then with E) or the recording did.
//	   With E also a call of a library (category api, then the library), which what
//	   happens during it is drawn in
//	i  a call whose duration is not known, or that was inferred; the status of a
//	   failed call, at its start, of a library's at its end (category failed); exec, exit,
//	   signals, code images, first launches of kernels, remarks
//	b, e  a call that overlaps the thread's previous one: that is damage, but no reason to hide it
//	C  counters of a process: bytes mapped and allocated, objects
//	M  names of processes and threads, each before its first use
//
// It is written as events come in, in memory that is bounded by what is alive.
// A Timeline is for one goroutine.
type Timeline struct {
	// Demangle, if not nil, names kernels for people. It may be set before the first event.
	Demangle func(name string) string

	scene
	w       io.Writer
	j       jsonText
	err     error
	name    []byte
	text    []byte
	threads map[taskKey]*thread
	said    map[int32]string // names of processes that were written
	floor   int64            // no forgotten thread has a call that ends later
	home    int32            // process that remarks without one are shown with: the first
	flows   uint64
	events  uint64
}

// taskKey names a thread.
type taskKey struct{ pid, tid int32 }

// thread is a track of the timeline.
type thread struct {
	name  string
	end   int64        // of its latest call, or beginning of its innermost library call
	open  bool         // that has a B without an E
	calls []*api.Frame // library calls that are drawn and open, the outermost first
}

// NewTimeline returns a Timeline that writes to w. The events that it will be
// given are decoded by d; h, which may be nil, is the recording's header.
// Writing begins with the first event, so that no error is returned here.
func NewTimeline(w io.Writer, h *traces.Header, d *ioctl.Decoder) *Timeline {
	t := &Timeline{w: w, threads: make(map[taskKey]*thread), said: make(map[int32]string), floor: math.MinInt64}
	t.init(h, d)
	// No displayTimeUnit: it is about how times are shown, but Perfetto used to
	// take it for the unit of ts (google/perfetto#106).
	t.j.b = append(t.j.b, `{"otherData":`...)
	t.j.open()
	t.j.str("producer", "nvtrace")
	if h != nil {
		t.home = h.PID
		t.j.opt("version", h.Tool)
		t.j.opt("driver", h.Driver)
		t.j.opt("kernel", h.Kernel)
		t.j.opt("arch", h.Arch)
		t.j.opt("command", commandLine(h.Argv))
		if h.Start != 0 {
			t.j.str("start", time.Unix(0, h.Start).UTC().Format(time.RFC3339Nano))
		}
	}
	t.j.close()
	t.j.b = append(t.j.b, `,"traceEvents":[`...)
	return t
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

// Add writes one event that the Decoder has decoded as c. Nothing is kept of
// either. Every event of the recording must be given to Add or to Skip, in order.
func (t *Timeline) Add(ev *traces.Event, c *ioctl.Call) {
	t.take(ev, c)
	if t.home == 0 {
		t.home = ev.PID
	}
	if t.err == nil {
		t.account(ev.PID).seen = true
		t.library(ev, true)
		t.event(ev, c)
		t.counters(ev)
	}
	t.settle(false)
}

// Skip takes in an event that is not to be shown: what it says about objects,
// memory and names matters to later ones. Counters change with skipped events
// too, in processes of which something is shown.
func (t *Timeline) Skip(ev *traces.Event, c *ioctl.Call) {
	t.take(ev, c)
	if t.err == nil {
		t.library(ev, false)
		t.counters(ev)
	}
	t.settle(false)
}

// Close ends the timeline and returns the first error that writing met. It
// does not close the writer.
func (t *Timeline) Close() error {
	if t.err == nil {
		t.j.b = append(t.j.b, "\n]}\n"...)
	}
	t.settle(true)
	err := t.err
	if err == nil {
		t.err = errClosed
	}
	return err
}

func (t *Timeline) account(pid int32) *account { return t.ledger.account(pid) }

// settle ends an event: what has gathered is written if it is enough.
func (t *Timeline) settle(all bool) {
	t.ledger.settle()
	if t.err != nil || !all && len(t.j.b) < flushBytes {
		return
	}
	_, t.err = t.w.Write(t.j.b)
	t.j.b = t.j.b[:0]
}

func (t *Timeline) event(ev *traces.Event, c *ioctl.Call) {
	switch {
	case ev.Kind == traces.KindFork:
		t.fork(ev)
	case isCall(ev.Kind):
		t.call(ev, c)
	case ev.Kind == traces.KindCall || ev.Kind == traces.KindReturn:
	default:
		t.remark(ev)
	}
}

// begin starts an event of the format, on a thread's track. What the caller
// adds ends with a call of end. The numbers that viewers sort by come first:
// some look for them in the text without parsing all of it.
func (t *Timeline) begin(phase byte, key taskKey, ns int64) {
	if t.events++; t.events > 1 {
		t.j.b = append(t.j.b, ',')
	}
	t.j.b = append(t.j.b, '\n')
	t.j.open()
	t.j.key("ph")
	t.j.b = append(t.j.b, '"', phase, '"')
	t.j.int("pid", int64(key.pid))
	t.j.int("tid", int64(key.tid))
	t.j.micros("ts", ns)
}

func (t *Timeline) end() { t.j.close() }

// args starts the arguments of an event; endArgs ends both.
func (t *Timeline) args() {
	t.j.key("args")
	t.j.open()
}

func (t *Timeline) endArgs() {
	t.j.close()
	t.end()
}

// metadata writes a name.
func (t *Timeline) metadata(what string, key taskKey, name string) {
	t.begin('M', key, 0)
	t.j.str("name", what)
	t.args()
	t.j.str("name", name)
	t.endArgs()
}

// processName returns the name that a process is shown with.
func (t *Timeline) processName(pid int32) string {
	if n := t.names[pid]; n != "" {
		return n
	}
	if pid == 0 {
		return "nvtrace"
	}
	return "process " + strconv.Itoa(int(pid))
}

// thread returns the track of a thread, naming it if it is new or its program is.
func (t *Timeline) thread(key taskKey) *thread {
	name := t.names[key.pid]
	th := t.threads[key]
	if th != nil && th.name == name {
		return th
	}
	if th == nil {
		if len(t.threads) >= maxTasks {
			t.forget()
		}
		th = &thread{end: t.floor}
		t.threads[key] = th
	}
	th.name = name
	full := t.processName(key.pid)
	if t.said[key.pid] != full {
		if len(t.said) >= maxTasks {
			clear(t.said)
		}
		t.said[key.pid] = full
		t.metadata("process_name", taskKey{key.pid, key.pid}, full)
	}
	if key.tid != key.pid {
		full = "thread " + strconv.Itoa(int(key.tid))
	}
	t.metadata("thread_name", key, full)
	return th
}

// forget drops all threads, of which there are too many. A call that began
// before the latest end of theirs could overlap one of the same thread.
func (t *Timeline) forget() {
	keys := slices.SortedFunc(maps.Keys(t.threads), func(a, b taskKey) int {
		return cmp.Or(cmp.Compare(a.pid, b.pid), cmp.Compare(a.tid, b.tid))
	})
	for _, k := range keys {
		th := t.threads[k]
		t.finish(k, th, th.end)
		for len(th.calls) > 0 {
			t.closeCall(k, th, th.end)
		}
		t.floor = max(t.floor, th.end)
	}
	clear(t.threads)
}

// finish ends a thread's call that was not seen to return.
func (t *Timeline) finish(key taskKey, th *thread, ns int64) {
	if th.open {
		th.open, th.end = false, max(ns, th.end)
		t.begin('E', key, th.end)
		t.end()
	}
}

// call writes a system call.
func (t *Timeline) call(ev *traces.Event, c *ioctl.Call) {
	key := taskKey{ev.PID, ev.TID}
	th := t.thread(key)
	t.finish(key, th, ev.Time)
	t.name = t.appendCallName(t.name[:0], ev, c)
	end := ev.Time + ev.Dur
	sane := ev.Dur >= 0 && end >= ev.Time
	overlaps := false
	switch {
	case ev.Flags&traces.FlagUnfinished != 0 && ev.Time >= th.end:
		t.begin('B', key, ev.Time)
		th.open, th.end = true, ev.Time
	case ev.Flags&untimed != 0 || inferred(ev) || !sane:
		t.begin('i', key, ev.Time)
		t.j.str("s", "t")
	case ev.Time < th.end:
		overlaps = true
		t.begin('b', key, ev.Time)
		t.flows++
		t.j.hex("id", t.flows)
	default:
		t.begin('X', key, ev.Time)
		t.j.micros("dur", ev.Dur)
		th.end = end
	}
	t.label(ev, c)
	if failed(ev, c) {
		t.j.str("cname", "terrible") // chrome://tracing's red
	}
	t.args()
	if !sane {
		t.j.int("dur_ns", ev.Dur)
	}
	t.callArgs(ev, c)
	t.endArgs()
	if overlaps {
		t.begin('e', key, end)
		t.j.hex("id", t.flows)
		t.label(ev, c)
		t.end()
	}
	if failed(ev, c) {
		t.begin('i', key, ev.Time)
		t.j.str("s", "t")
		t.j.str("name", result(c))
		t.j.str("cat", "failed")
		t.end()
	}
}

// label writes the name and the category of a call.
func (t *Timeline) label(ev *traces.Event, c *ioctl.Call) {
	t.j.key("name")
	t.j.b = appendString(t.j.b, t.name)
	t.text = append(t.text[:0], ev.Kind.String()...)
	if failed(ev, c) {
		t.text = append(t.text, ",failed"...)
	}
	if c.Unknown != ioctl.Known {
		t.text = append(t.text, ",unknown"...)
	}
	t.j.key("cat")
	t.j.b = appendString(t.j.b, t.text)
}

// callArgs writes what a click on a call shows.
func (t *Timeline) callArgs(ev *traces.Event, c *ioctl.Call) {
	if ev.Flags&untimed == 0 {
		t.j.str("status", result(c))
	}
	if n := node(ev); n != "" {
		t.j.str("node", n)
	}
	if ev.FD >= 0 {
		t.j.int("fd", int64(ev.FD))
	}
	switch ev.Kind {
	case traces.KindIoctl:
		t.ioctlArgs(ev, c)
	case traces.KindOpen:
		t.j.opt("path", ev.Path)
	case traces.KindDup:
		if c.Errno == 0 {
			t.j.int("new_fd", ev.Ret)
		}
	case traces.KindMmap:
		if c.Errno == 0 && ev.Flags&untimed == 0 {
			t.j.hex("address", uint64(ev.Ret))
		}
		t.j.uint("length", ev.Args[1])
		t.j.str("maps", mapped(c))
		if l := c.Link; l != nil && !l.Managed {
			t.object("object", l.Client, l.Memory)
			if l.Class != nil {
				t.j.str("class", l.Class.Name)
			}
		}
	case traces.KindMunmap, traces.KindMremap:
		t.j.hex("address", ev.Args[0])
		t.j.uint("length", ev.Args[1])
	}
	if ev.Flags != 0 {
		t.j.str("flags", ev.Flags.String())
	}
}

func (t *Timeline) ioctlArgs(ev *traces.Event, c *ioctl.Call) {
	if c.Unknown != ioctl.Known {
		t.j.str("unknown", c.Unknown.String())
	}
	t.j.hex("request", uint64(ev.Request()))
	if c.HasSub {
		t.j.hex("number", uint64(c.SubNr))
	}
	t.object("client", c.Client, c.Client)
	t.object("parent", c.Client, c.Parent)
	t.object("object", c.Client, c.Object)
	if !c.Failed() {
		t.object("new", c.Client, c.New)
	}
	if t.ledger.made != 0 {
		t.j.uint("allocated", t.ledger.made)
	}
	size := 0
	for i := range c.Parts {
		size += c.Parts[i].Len
	}
	if size != 0 {
		t.j.uint("parameter_bytes", uint64(size))
	}
	if !c.Other.IsZero() {
		t.j.str("layout_of", c.Other.String())
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
		t.j.hex(key, uint64(handle))
		return
	}
	t.j.key(key)
	t.j.b = appendString(t.j.b, t.text)
}

// fork writes who forks and what is forked as slices without duration, which a
// flow can join; instants take none.
func (t *Timeline) fork(ev *traces.Event) {
	parent, child := taskKey{ev.PID, ev.TID}, taskKey{ev.PID, ev.Child}
	from, to := "clone", "thread start"
	if ev.Flags&traces.FlagThread == 0 {
		child.pid, from, to = ev.Child, "fork", "process start"
	}
	if ev.Flags&traces.FlagAttached != 0 {
		t.thread(child)
		t.begin('i', child, ev.Time)
		t.j.str("s", "t")
		t.j.str("name", "attached")
		t.j.str("cat", "process")
		t.end()
		return
	}
	t.flows++
	for _, side := range [2]struct {
		key        taskKey
		name, flow string
	}{{parent, from, "flow_out"}, {child, to, "flow_in"}} {
		t.thread(side.key)
		t.begin('X', side.key, ev.Time)
		t.j.int("dur", 0)
		t.j.str("name", side.name)
		t.j.str("cat", "process")
		t.j.hex("bind_id", t.flows)
		t.j.key(side.flow)
		t.j.b = append(t.j.b, "true"...)
		t.args()
		t.j.int("child", int64(ev.Child))
		t.endArgs()
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
		t.finish(key, th, ev.Time)
	}
	name, scope := t.remarkName(ev)
	t.begin('i', key, ev.Time)
	t.j.str("s", scope)
	t.j.str("name", name)
	t.j.str("cat", ev.Kind.String())
	t.args()
	switch ev.Kind {
	case traces.KindExec:
		t.j.opt("path", ev.Path)
		t.j.opt("command", commandLine(ev.Argv))
	case traces.KindExit, traces.KindSignal, traces.KindLost:
		t.j.int("value", ev.Ret)
	case traces.KindEnd:
		if k := ev.Cost; k != nil {
			t.j.uint("stops", k.Stops)
			t.j.uint("events", k.Events)
			t.j.uint("bytes_copied", k.Bytes)
			t.j.int("tracer_cpu_ns", k.TracerCPU)
			t.j.int("wall_ns", k.Wall)
		}
	case traces.KindImage, traces.KindKernel:
		t.imageArgs(ev)
	default:
		t.j.opt("text", ev.Text)
	}
	if ev.Flags != 0 {
		t.j.str("flags", ev.Flags.String())
	}
	t.endArgs()
}

// remarkName says what a remark is about, and whether it concerns a thread, a
// process or all (the format's "t", "p" and "g").
func (t *Timeline) remarkName(ev *traces.Event) (name, scope string) {
	switch ev.Kind {
	case traces.KindExec:
		return "exec " + programName(ev.Path), "p"
	case traces.KindExit:
		scope = "t"
		if ev.TID == ev.PID {
			scope = "p"
		}
		if sig := ev.Ret & 0x7f; sig != 0 { // as waitpid(2) has it
			return "killed by signal " + strconv.FormatInt(sig, 10), scope
		}
		return "exit " + strconv.FormatInt(ev.Ret>>8&0xff, 10), scope
	case traces.KindSignal:
		return "signal " + strconv.FormatInt(ev.Ret, 10), "p"
	case traces.KindNote:
		return "note: " + clip(ev.Text, maxName), "g"
	case traces.KindLost:
		return strconv.FormatInt(ev.Ret, 10) + " events were lost", "g"
	case traces.KindImage:
		return "image " + imageName(ev.Image), "t"
	case traces.KindKernel:
		return "first launch of " + clip(t.kernelName(ev.Name), maxName), "t"
	case traces.KindCaptured:
		if ev.Captured == nil {
			return "captured", "g"
		}
		return "captured: " + clip(ev.Captured.String(), maxName), "g"
	case traces.KindGap:
		return "incomplete: " + clip(ev.Text, maxName), "g"
	case traces.KindFault:
		return clip(t.kernelName(ev.Name), maxName) + " failed", "p"
	case traces.KindEnd:
		return "end of the recording", "g"
	}
	return cmp.Or(clip(ev.Name, maxName), ev.Kind.String()), "t"
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

func (t *Timeline) counter(a *account, ns int64) {
	if a.have == a.shown {
		return
	}
	a.time = max(a.time, ns)
	key := taskKey{a.pid, a.pid}
	t.thread(key)
	for q, n := range a.have {
		if n == a.shown[q] {
			continue
		}
		t.begin('C', key, a.time)
		t.j.str("name", quantityNames[q].name)
		t.args()
		t.j.uint(quantityNames[q].unit, n)
		t.endArgs()
	}
	a.shown = a.have
}
