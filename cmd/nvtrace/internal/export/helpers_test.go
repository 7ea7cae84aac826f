package export

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/pprof/profile"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/rm"
	"nvtrace/traces"
	"nvtrace/traces/escape"
)

// traceFile is a trace of Perfetto's, with the fields that a Timeline writes and no others.
type traceFile struct {
	Tracks map[uint64]*traceTrack
	Events []*traceEvent // in the order of their time, then of the file
}

type traceTrack struct {
	Name     string
	Parent   uint64
	PID, TID int64 // 0 none
	Unit     uint64
	Rank     int32
}

type traceEvent struct {
	Type     uint64
	Track    uint64
	NS       int64
	Name     string
	Cats     []string
	Args     map[string]any
	Counter  uint64
	From, To []uint64
}

// field is one of a message's.
type field struct {
	num, wire int
	v         uint64
	b         []byte
}

// fields takes a message apart.
func fields(b []byte) ([]field, error) {
	var list []field
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, fmt.Errorf("bad tag")
		}
		b = b[n:]
		f := field{num: int(tag >> 3), wire: int(tag & 7)}
		switch f.wire {
		case 0:
			if f.v, n = binary.Uvarint(b); n <= 0 {
				return nil, fmt.Errorf("bad number")
			}
		case 1:
			if n = 8; len(b) < n {
				return nil, fmt.Errorf("cut short")
			}
			f.v = binary.LittleEndian.Uint64(b)
		case 2:
			size, m := binary.Uvarint(b)
			if m <= 0 || size > uint64(len(b)-m) {
				return nil, fmt.Errorf("bad length")
			}
			f.b = b[m : m+int(size)]
			n = m + int(size)
		default:
			return nil, fmt.Errorf("wire type %d", f.wire)
		}
		b = b[n:]
		list = append(list, f)
	}
	return list, nil
}

// takers are functions for the fields of a message, by their numbers.
type takers []struct {
	num  int
	take func(field) error
}

// message gives each field of a message to its function; one without is an error.
func message(b []byte, what string, of takers) error {
	list, err := fields(b)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
next:
	for _, f := range list {
		for i := range of {
			if of[i].num == f.num {
				if err := of[i].take(f); err != nil {
					return fmt.Errorf("%s: %w", what, err)
				}
				continue next
			}
		}
		return fmt.Errorf("%s has a field %d", what, f.num)
	}
	return nil
}

func number(to *uint64) func(field) error {
	return func(f field) error {
		if f.wire != 0 {
			return fmt.Errorf("field %d is no number", f.num)
		}
		*to = f.v
		return nil
	}
}

func text(to *string) func(field) error {
	return func(f field) error {
		*to = string(f.b)
		if f.wire != 2 || !utf8.Valid(f.b) {
			return fmt.Errorf("field %d is no text: %q", f.num, f.b)
		}
		for _, r := range *to {
			if escape.Acts(r) {
				return fmt.Errorf("%q holds %U", f.b, r)
			}
		}
		return nil
	}
}

// seqState is what a reader keeps of a sequence.
type seqState struct {
	texts map[int]map[uint64]string
	clock int64
	track uint64
}

type traceParser struct {
	file *traceFile
	seqs map[uint64]*seqState
}

// parseTimeline reads a trace strictly.
func parseTimeline(data []byte) (*traceFile, error) {
	p := &traceParser{file: &traceFile{Tracks: map[uint64]*traceTrack{}}, seqs: map[uint64]*seqState{}}
	n := 0
	err := message(data, "trace", takers{
		{1, func(f field) error {
			if err := p.packet(f.b); err != nil {
				return fmt.Errorf("packet %d: %w", n, err)
			}
			n++
			return nil
		}},
	})
	slices.SortStableFunc(p.file.Events, func(a, b *traceEvent) int { return cmp.Compare(a.NS, b.NS) })
	return p.file, err
}

func (p *traceParser) packet(b []byte) error {
	var seq, flags, clock, time uint64
	var event, interned, defaults, descriptor []byte
	var snapshots [][]byte
	keep := func(to *[]byte) func(field) error {
		return func(f field) error { *to = f.b; return nil }
	}
	if err := message(b, "packet", takers{
		{6, func(f field) error { snapshots = append(snapshots, f.b); return nil }},
		{8, number(&time)},
		{10, number(&seq)},
		{11, keep(&event)},
		{12, keep(&interned)},
		{13, number(&flags)},
		{58, number(&clock)},
		{59, keep(&defaults)},
		{60, keep(&descriptor)},
	}); err != nil {
		return err
	}
	if descriptor != nil {
		return p.descriptor(descriptor)
	}
	s := p.seqs[seq]
	if flags&1 != 0 {
		s = &seqState{texts: map[int]map[uint64]string{}, clock: -1}
		p.seqs[seq] = s
	}
	for _, snap := range snapshots {
		if err := p.snapshot(snap, s); err != nil {
			return err
		}
	}
	if defaults != nil {
		var id uint64
		if err := message(defaults, "defaults", takers{
			{58, number(&id)}, {11, func(f field) error {
				return message(f.b, "event defaults", takers{{11, number(&s.track)}})
			}},
		}); err != nil || id != 64 {
			return fmt.Errorf("clock %d: %w", id, err)
		}
	}
	if event == nil {
		return nil
	}
	if s == nil || flags != 2 || s.clock < 0 {
		return fmt.Errorf("an event in a sequence without its state")
	}
	if interned != nil {
		var of takers
		for _, kind := range []int{1, 2, 3, 29} {
			of = append(of, takers{{kind, func(f field) error {
				var id uint64
				var str string
				err := message(f.b, "interned", takers{{1, number(&id)}, {2, text(&str)}})
				if s.texts[kind] == nil {
					s.texts[kind] = map[uint64]string{}
				}
				if _, again := s.texts[kind][id]; again || id == 0 {
					return fmt.Errorf("number %d of %d again", id, kind)
				}
				s.texts[kind][id] = str
				return err
			}}}...)
		}
		if err := message(interned, "interned data", of); err != nil {
			return err
		}
	}
	ev := &traceEvent{Track: s.track, Args: map[string]any{}}
	switch clock {
	case 0:
		s.clock += int64(time)
		ev.NS = s.clock
	case 6:
		ev.NS = int64(time)
	default:
		return fmt.Errorf("clock %d", clock)
	}
	if ev.NS < 0 {
		return fmt.Errorf("time %d", ev.NS)
	}
	p.file.Events = append(p.file.Events, ev)
	return p.event(event, s, ev)
}

func (p *traceParser) snapshot(b []byte, s *seqState) error {
	return message(b, "snapshot", takers{
		{1, func(f field) error {
			var id, time, incremental uint64
			err := message(f.b, "clock", takers{{1, number(&id)}, {2, number(&time)}, {3, number(&incremental)}})
			if id == 64 {
				s.clock = int64(time)
			}
			if (id == 64) != (incremental == 1) {
				return fmt.Errorf("clock %d: incremental %d", id, incremental)
			}
			return err
		}},
	})
}

func (p *traceParser) descriptor(b []byte) error {
	var uuid, order, rank, pid, tid uint64
	tr := &traceTrack{}
	err := message(b, "descriptor", takers{
		{1, number(&uuid)},
		{2, text(&tr.Name)},
		{5, number(&tr.Parent)},
		{11, number(&order)},
		{12, number(&rank)},
		{3, func(f field) error {
			return message(f.b, "process", takers{{1, number(&pid)}, {6, text(&tr.Name)}})
		}},
		{4, func(f field) error {
			return message(f.b, "thread", takers{{1, number(&pid)}, {2, number(&tid)}, {5, text(&tr.Name)}})
		}},
		{8, func(f field) error {
			return message(f.b, "counter", takers{{3, number(&tr.Unit)}})
		}},
	})
	tr.PID, tr.TID, tr.Rank = int64(pid), int64(tid), int32(rank)
	if tr.Name == "" || uuid == 0 || p.file.Tracks[tr.Parent] == nil && tr.Parent != 0 {
		return fmt.Errorf("track %d: %+v", uuid, tr)
	}
	p.file.Tracks[uuid] = tr
	return err
}

func (p *traceParser) event(b []byte, s *seqState, ev *traceEvent) error {
	lookup := func(kind int, to *string) func(field) error {
		return func(f field) (err error) {
			var ok bool
			if *to, ok = s.texts[kind][f.v]; !ok {
				return fmt.Errorf("no text %d of %d", f.v, kind)
			}
			return nil
		}
	}
	flow := func(to *[]uint64) func(field) error {
		return func(f field) error { *to = append(*to, f.v); return nil }
	}
	err := message(b, "event", takers{
		{9, number(&ev.Type)},
		{10, lookup(2, &ev.Name)},
		{11, number(&ev.Track)},
		{30, number(&ev.Counter)},
		{47, flow(&ev.From)},
		{48, flow(&ev.To)},
		{3, func(f field) error {
			var cat string
			err := lookup(1, &cat)(f)
			ev.Cats = append(ev.Cats, cat)
			return err
		}},
		{4, func(f field) error {
			var key, str string
			var value any
			err := message(f.b, "annotation", takers{
				{1, lookup(3, &key)},
				{3, func(f field) error { value = f.v; return nil }},
				{4, func(f field) error { value = int64(f.v); return nil }},
				{7, func(f field) error { value = fmt.Sprintf("%#x", f.v); return nil }},
				{17, func(f field) error { err := lookup(29, &str)(f); value = str; return err }},
			})
			if _, again := ev.Args[key]; again || value == nil {
				return fmt.Errorf("argument %q: %v", key, value)
			}
			ev.Args[key] = value
			return err
		}},
	})
	if p.file.Tracks[ev.Track] == nil {
		return fmt.Errorf("event on track %d, which is none", ev.Track)
	}
	return err
}

// dump prints a trace for people.
func (f *traceFile) dump() string {
	var b strings.Builder
	for _, id := range slices.Sorted(maps.Keys(f.Tracks)) {
		fmt.Fprintf(&b, "track %d: %+v\n", id, *f.Tracks[id])
	}
	for _, e := range f.Events {
		fmt.Fprintf(&b, "%d: track %d ", e.NS, e.Track)
		switch e.Type {
		case typeBegin:
			b.WriteString("begin")
		case typeEnd:
			b.WriteString("end")
		case typeInstant:
			b.WriteString("instant")
		case typeCounter:
			fmt.Fprintf(&b, "= %d", e.Counter)
		}
		if e.Name != "" {
			fmt.Fprintf(&b, " %q %v", e.Name, e.Cats)
		}
		for _, k := range slices.Sorted(maps.Keys(e.Args)) {
			fmt.Fprintf(&b, " %s=%v", k, e.Args[k])
		}
		if e.From != nil || e.To != nil {
			fmt.Fprintf(&b, " flows %v -> %v", e.From, e.To)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// drawn is what a timeline shows, as far as it can be summed up.
type drawn struct {
	calls    map[string]int64  // slices by name
	time     map[string]int64  // their durations
	ioctls   int64             // ioctls of all kinds
	total    int64             // time of the timed ones
	latest   map[string]uint64 // counters, "pid name"
	peak     map[string]uint64
	mapped   uint64 // of all processes, at the end
	mapPeak  uint64
	failures int64
	async    int
	api      map[string]apiFigures // library calls that returned, "library name"
	merged   map[string]int64      // calls that were drawn together, by name
}

// apiFigures are what views and summary must agree on.
type apiFigures struct {
	Calls, Time, Ioctls, IoctlTime int64
}

func isAPI(e *traceEvent) bool { return len(e.Cats) == 2 && e.Cats[0] == "api" }

func isMerged(e *traceEvent) bool { return len(e.Cats) == 1 && strings.HasSuffix(e.Cats[0], ",merged") }

// endAPI counts a library call.
func (d *drawn) endAPI(b, e *traceEvent) {
	if e.Args["flags"] == "unfinished" {
		return
	}
	key := b.Cats[1] + " " + b.Name
	f := d.api[key]
	f.Calls++
	f.Time += e.NS - b.NS
	if n, ok := e.Args["ioctls"].(uint64); ok {
		f.Ioctls += int64(n)
		f.IoctlTime += e.Args["ioctl_ns"].(int64)
	}
	d.api[key] = f
}

// checkTimeline holds a timeline against what the format and its viewers want.
func checkTimeline(f *traceFile) (*drawn, error) {
	d := &drawn{api: map[string]apiFigures{}, calls: map[string]int64{}, time: map[string]int64{}, latest: map[string]uint64{}, peak: map[string]uint64{}, merged: map[string]int64{}}
	c := &checker{drawn: d, file: f, open: map[uint64][]*traceEvent{}, from: map[uint64]*traceEvent{}, to: map[uint64]bool{}}
	for _, e := range f.Events {
		if err := c.event(e); err != nil {
			return nil, fmt.Errorf("%w: %+v on %+v", err, e, f.Tracks[e.Track])
		}
	}
	for id, e := range c.from {
		if e.Cats[0] == "process" && !c.to[id] {
			return nil, fmt.Errorf("flow %d has one end", id)
		}
	}
	for id := range c.to {
		if c.from[id] == nil {
			return nil, fmt.Errorf("flow %d comes from nowhere", id)
		}
	}
	return d, nil
}

type checker struct {
	*drawn
	file *traceFile
	open map[uint64][]*traceEvent // by track
	from map[uint64]*traceEvent   // flows
	to   map[uint64]bool
}

func (c *checker) event(e *traceEvent) error {
	tr := c.file.Tracks[e.Track]
	if (e.Type == typeCounter) != (tr.Unit != 0) {
		return fmt.Errorf("a counter's value, or another event, on a track of the other kind")
	}
	if (e.Name == "" || len(e.Cats) == 0) && e.Type != typeEnd && e.Type != typeCounter && tr.Name != "recording" {
		return fmt.Errorf("no name or category")
	}
	for _, id := range e.From {
		if c.from[id] != nil {
			return fmt.Errorf("flow %d begins twice", id)
		}
		c.from[id] = e
	}
	for _, id := range e.To {
		c.to[id] = true
	}
	ioctl := len(e.Cats) > 0 && e.Cats[0] == "ioctl"
	if ioctl {
		c.ioctls++
		flags := fmt.Sprint(e.Args["flags"])
		if n, ok := e.Args["dur_ns"].(int64); ok && !strings.Contains(flags, "unfinished") && !strings.Contains(flags, "noexit") {
			c.total += n
		}
	}
	if len(e.Cats) > 1 && slices.Contains(e.Cats, "failed") {
		c.failures++
	}
	switch e.Type {
	case typeBegin:
		c.open[e.Track] = append(c.open[e.Track], e)
		if strings.HasPrefix(tr.Name, "calls that overlap") {
			c.async++
		}
	case typeEnd:
		open := c.open[e.Track]
		if len(open) == 0 {
			return fmt.Errorf("an end without a beginning")
		}
		c.end(open[len(open)-1], e)
		c.open[e.Track] = open[:len(open)-1]
	case typeInstant:
	case typeCounter:
		return c.counter(e, tr)
	default:
		return fmt.Errorf("unknown type")
	}
	return nil
}

func (c *checker) end(b, e *traceEvent) {
	switch {
	case isMerged(b):
		if b.Args["calls"] == nil {
			c.merged[b.Name]++
		}
		for k, v := range b.Args {
			if n, ok := v.(uint64); ok && k != "calls" {
				c.merged[k] += int64(n)
			}
		}
	case isAPI(b):
		c.endAPI(b, e)
	case b.Args["flags"] == "unfinished":
	default:
		c.calls[b.Name]++
		c.time[b.Name] += e.NS - b.NS
		if b.Cats[0] == "ioctl" && b.Args["dur_ns"] == nil {
			c.total += e.NS - b.NS
		}
	}
}

func (c *checker) counter(e *traceEvent, tr *traceTrack) error {
	parent := c.file.Tracks[tr.Parent]
	if parent == nil {
		return fmt.Errorf("a counter of no process")
	}
	key := parent.Name[strings.LastIndexByte(parent.Name, ' ')+1:] + " " + tr.Name
	if tr.Name == "mapped device memory" {
		c.mapped += e.Counter - c.latest[key]
		c.mapPeak = max(c.mapPeak, c.mapped)
	}
	c.latest[key] = e.Counter
	c.peak[key] = max(c.peak[key], e.Counter)
	return nil
}

// exported is a recording in all views, and what they are compared with.
type exported struct {
	timeline []byte
	prof     *profile.Profile
	report   *ioctl.Report
	api      *api.Report
	tree     *rm.Tree
	file     *traceFile
	drawn    *drawn

	// mixed: mappings of several processes changed in another order than that of their times, so
	// that what all of them had at a moment is not what they had at an event.
	mixed bool
}

// following returns a feed of events that d decodes, with the library calls that they are in.
func following(d *ioctl.Decoder, observers ...observe.Observer) *observe.Feed {
	f := observe.NewFeed(d, observers...)
	f.Follow()
	return f
}

// export feeds events to both views, a summary and a tree that forgets nothing.
func export(t testing.TB, h *traces.Header, events func(yield func(*traces.Event) bool)) *exported {
	t.Helper()
	d := ioctl.NewDecoder(h)
	var out, gz bytes.Buffer
	tracker, calls := api.NewTracker(), api.NewSummary()
	tl, p, sum, objs := NewTimeline(&out, h, d), NewProfile(h, d), ioctl.NewSummary(h), ioctl.NewObjects(d, nil)
	feed := following(ioctl.NewDecoder(h), tl, p)
	latest, mappers, back := int64(math.MinInt64), map[int32]bool{}, false
	for ev := range events {
		c := d.Decode(ev)
		switch ev.Kind {
		case traces.KindMmap, traces.KindMunmap, traces.KindExec, traces.KindExit, traces.KindIoctl:
			at := ev.Time + max(ev.Dur, 0)
			mappers[ev.PID] = true
			back = back || at < latest
			latest = max(latest, at)
		}
		feed.Event(ev)
		sum.Add(ev, &c)
		objs.Add(ev, &c)
		calls.Add(ev, tracker, tracker.Add(ev))
	}
	if err := tl.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Write(&gz); err != nil {
		t.Fatal(err)
	}
	x := &exported{timeline: out.Bytes(), report: sum.Report(), api: calls.Report(), tree: objs.Tree(), mixed: back && len(mappers) > 1}
	var err error
	if x.prof, err = profile.ParseData(gz.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := x.prof.CheckValid(); err != nil {
		t.Fatal(err)
	}
	if x.file, err = parseTimeline(x.timeline); err != nil {
		t.Fatal(err)
	}
	if x.drawn, err = checkTimeline(x.file); err != nil {
		t.Fatal(err)
	}
	x.totals(t)
	return x
}

// totals checks what holds of any recording: nothing is lost between the views.
func (x *exported) totals(t testing.TB) {
	t.Helper()
	r, d := x.report, x.drawn
	if d.ioctls != int64(r.Ioctls) || d.total != r.IoctlTime {
		t.Errorf("timeline: %d ioctls in %d ns; summary: %d in %d", d.ioctls, d.total, r.Ioctls, r.IoctlTime)
	}
	var calls, total int64
	for _, s := range x.prof.Sample {
		if name, isIoctl := callOf(s); isIoctl || name == "(other)" {
			calls += s.Value[valueCalls]
			total += s.Value[valueTime]
		}
	}
	if calls != int64(r.Ioctls) || total != r.IoctlTime {
		t.Errorf("profile: %d ioctls in %d ns; summary: %d in %d", calls, total, r.Ioctls, r.IoctlTime)
	}
	if d.mapped != r.MapLive || d.mapPeak != r.MapPeak && !x.mixed {
		t.Errorf("timeline: %d bytes mapped, at most %d; summary: %d, %d", d.mapped, d.mapPeak, r.MapLive, r.MapPeak)
	}
}

// callOf returns the name of a sample's call, without what it is about.
func callOf(s *profile.Sample) (name string, isIoctl bool) {
	if len(s.Location) < 2 {
		return s.Location[0].Line[0].Function.Name, false
	}
	name = frameName(s, 1)
	for i := 1; isLibrary(s, i); i++ {
		if name = frameName(s, i+1); name == "" {
			return frameName(s, i), false
		}
	}
	kinds := []string{"open", "close", "dup", "mmap", "munmap", "mremap"}
	return name, !slices.Contains(kinds, name)
}

// isLibrary reports whether a frame, counted from the outermost, is a library call.
func isLibrary(s *profile.Sample, i int) bool {
	if i >= len(s.Location) {
		return false
	}
	return strings.HasPrefix(s.Location[len(s.Location)-1-i].Line[0].Function.Filename, "api/")
}

// frameName returns the name of a frame, counted from the outermost, "" beyond the last.
func frameName(s *profile.Sample, i int) string {
	if i >= len(s.Location) {
		return ""
	}
	return s.Location[len(s.Location)-1-i].Line[0].Function.Name
}

// recording returns the events of a file.
func recording(t testing.TB, file string) (*traces.Header, []*traces.Event) {
	t.Helper()
	r, err := traces.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var events []*traces.Event
	for ev, err := range r.All() {
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, ev.Clone())
	}
	return &r.Header, events
}

// corpus returns the recordings of real programs.
func corpus(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("../../../../traces/corpus/*.nvt")
	if err != nil || len(files) < 6 {
		t.Fatalf("%d recordings: %v", len(files), err)
	}
	return files
}
