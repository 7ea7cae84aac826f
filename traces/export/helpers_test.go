package export

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/pprof/profile"

	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/rm"
	"nvtrace/traces"
)

// traceFile is the trace event format's JSON object form, with the members that
// a Timeline uses and no others.
type traceFile struct {
	OtherData   map[string]string `json:"otherData"`
	TraceEvents []traceEvent      `json:"traceEvents"`
}

type traceEvent struct {
	Phase   string         `json:"ph"`
	PID     *int64         `json:"pid"`
	TID     *int64         `json:"tid"`
	Time    json.Number    `json:"ts"`
	Dur     json.Number    `json:"dur"`
	Name    string         `json:"name"`
	Cat     string         `json:"cat"`
	Color   string         `json:"cname"`
	Scope   string         `json:"s"`
	ID      string         `json:"id"`
	BindID  string         `json:"bind_id"`
	FlowIn  bool           `json:"flow_in"`
	FlowOut bool           `json:"flow_out"`
	Args    map[string]any `json:"args"`

	ns, dur int64
}

// nanos reads microseconds with at most three digits of a fraction.
func nanos(n json.Number) (int64, error) {
	whole, fraction, _ := strings.Cut(string(n), ".")
	if len(fraction) > 3 {
		return 0, fmt.Errorf("%s: finer than a nanosecond", n)
	}
	return strconv.ParseInt(whole+fraction+"000"[len(fraction):], 10, 64)
}

// parseTimeline reads a timeline strictly.
func parseTimeline(data []byte) (*traceFile, error) {
	if !utf8.Valid(data) {
		return nil, fmt.Errorf("not UTF-8")
	}
	for _, c := range data {
		if c < 0x20 && c != '\n' {
			return nil, fmt.Errorf("control character %#x", c)
		}
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	d.UseNumber()
	var f traceFile
	if err := d.Decode(&f); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("something follows the value")
	}
	for i := range f.TraceEvents {
		e := &f.TraceEvents[i]
		if e.PID == nil || e.TID == nil {
			return nil, fmt.Errorf("event %d has no pid or tid", i)
		}
		var err error
		if e.ns, err = nanos(e.Time); err != nil {
			return nil, err
		}
		if e.Dur != "" {
			if e.dur, err = nanos(e.Dur); err != nil {
				return nil, err
			}
		}
	}
	return &f, nil
}

// track names a thread in a timeline.
type track struct{ pid, tid int64 }

// slice is a range on a track.
type slice struct {
	from, to int64
	name     string
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
}

// apiFigures are what views and summary must agree on.
type apiFigures struct {
	Calls, Time, Ioctls, IoctlTime int64
}

func isAPI(e *traceEvent) bool { return strings.HasPrefix(e.Cat, "api,") }

// endAPI counts a library call.
func (c *checker) endAPI(b, e *traceEvent) {
	if e.Args["flags"] == "unfinished" {
		return
	}
	key := strings.TrimPrefix(b.Cat, "api,") + " " + b.Name
	f := c.api[key]
	number := func(name string) (n int64) {
		if v, ok := e.Args[name].(json.Number); ok {
			n, _ = v.Int64()
		}
		return n
	}
	f.Calls++
	f.Time += e.ns - b.ns
	f.Ioctls += number("ioctls")
	f.IoctlTime += number("ioctl_ns")
	c.api[key] = f
}

// checkTimeline holds a timeline against what the format and its viewers want.
func checkTimeline(f *traceFile) (*drawn, error) {
	d := &drawn{api: map[string]apiFigures{}, calls: map[string]int64{}, time: map[string]int64{}, latest: map[string]uint64{}, peak: map[string]uint64{}}
	c := &checker{drawn: d, procs: map[int64]bool{}, threads: map[track]bool{}, slices: map[track][]slice{}, open: map[track][]*traceEvent{}, async: map[string]*traceEvent{}, flows: map[string]int{}, clock: map[string]int64{}}
	for i := range f.TraceEvents {
		if err := c.event(&f.TraceEvents[i]); err != nil {
			return nil, fmt.Errorf("event %d: %w: %+v", i, err, f.TraceEvents[i])
		}
	}
	if len(c.async) != 0 {
		return nil, fmt.Errorf("asynchronous slices do not end: %v", c.async)
	}
	for id, n := range c.flows {
		if n != 11 {
			return nil, fmt.Errorf("flow %s has no two ends: %d", id, n)
		}
	}
	for k, s := range c.slices {
		if err := nested(s); err != nil {
			return nil, fmt.Errorf("%v: %w", k, err)
		}
	}
	return d, nil
}

type checker struct {
	*drawn
	procs   map[int64]bool
	threads map[track]bool
	slices  map[track][]slice
	open    map[track][]*traceEvent
	async   map[string]*traceEvent
	flows   map[string]int // 1 for an end, 10 for a beginning
	clock   map[string]int64
}

func (c *checker) event(e *traceEvent) error {
	k := track{*e.PID, *e.TID}
	if e.Phase == "M" {
		name, _ := e.Args["name"].(string)
		switch {
		case name == "" || len(e.Args) != 1:
			return fmt.Errorf("no name")
		case e.Name == "process_name":
			c.procs[k.pid] = true
		case e.Name == "thread_name":
			c.threads[k] = true
		default:
			return fmt.Errorf("unknown metadata")
		}
		return nil
	}
	if !c.procs[k.pid] || !c.threads[k] {
		return fmt.Errorf("process or thread has no name")
	}
	if (e.Name == "" || e.Cat == "") && e.Phase != "E" && e.Phase != "C" {
		return fmt.Errorf("no name or category")
	}
	ioctl := strings.HasPrefix(e.Cat, "ioctl")
	if e.BindID != "" {
		c.flows[e.BindID] += map[bool]int{true: 1}[e.FlowIn] + map[bool]int{true: 10}[e.FlowOut]
	}
	if v, ok := e.Args["dur_ns"]; ok && ioctl && !strings.Contains(fmt.Sprint(e.Args["flags"]), "unfinished") && !strings.Contains(fmt.Sprint(e.Args["flags"]), "noexit") {
		n, err := v.(json.Number).Int64()
		if err != nil {
			return err
		}
		c.total += n
	}
	if ioctl && e.Phase != "e" {
		c.ioctls++
	}
	if strings.Contains(e.Cat, ",failed") && e.Phase != "e" {
		if c.failures++; e.Color == "" {
			return fmt.Errorf("a failed call without colour")
		}
	}
	return c.phase(e, k, ioctl)
}

func (c *checker) phase(e *traceEvent, k track, ioctl bool) error {
	count := func(dur int64) {
		c.calls[e.Name]++
		c.time[e.Name] += dur
		if ioctl {
			c.total += dur
		}
	}
	switch e.Phase {
	case "X":
		if e.Dur == "" || e.dur < 0 {
			return fmt.Errorf("no duration")
		}
		c.slices[k] = append(c.slices[k], slice{e.ns, e.ns + e.dur, e.Name})
		count(e.dur)
	case "B":
		open := c.open[k]
		if n := len(open); n > 0 && !isAPI(open[n-1]) {
			return fmt.Errorf("B within B")
		}
		c.open[k] = append(open, e)
	case "E":
		open := c.open[k]
		if len(open) == 0 || e.ns < open[len(open)-1].ns {
			return fmt.Errorf("E without B")
		}
		b := open[len(open)-1]
		c.slices[k] = append(c.slices[k], slice{b.ns, e.ns, b.Name})
		c.open[k] = open[:len(open)-1]
		if isAPI(b) {
			c.endAPI(b, e)
		}
	case "b":
		if e.ID == "" || c.async[e.ID] != nil {
			return fmt.Errorf("id is missing or used")
		}
		c.async[e.ID] = e
		c.drawn.async++
	case "e":
		b := c.async[e.ID]
		if b == nil || b.Name != e.Name || b.Cat != e.Cat || e.ns < b.ns {
			return fmt.Errorf("e without b")
		}
		delete(c.async, e.ID)
		count(e.ns - b.ns)
	case "i":
		if !slices.Contains([]string{"t", "p", "g"}, e.Scope) {
			return fmt.Errorf("bad scope")
		}
	case "C":
		return c.counter(e)
	default:
		return fmt.Errorf("unknown phase")
	}
	return nil
}

func (c *checker) counter(e *traceEvent) error {
	key := fmt.Sprint(*e.PID, " ", e.Name)
	if old, ok := c.clock[key]; ok && e.ns < old {
		return fmt.Errorf("goes back in time")
	}
	c.clock[key] = e.ns
	if len(e.Args) != 1 {
		return fmt.Errorf("%d values", len(e.Args))
	}
	for _, v := range e.Args {
		n, err := strconv.ParseUint(string(v.(json.Number)), 10, 64)
		if err != nil {
			return err
		}
		if e.Name == "mapped device memory" {
			c.mapped += n - c.latest[key]
			c.mapPeak = max(c.mapPeak, c.mapped)
		}
		c.latest[key] = n
		c.peak[key] = max(c.peak[key], n)
	}
	return nil
}

// nested reports slices of a track of which one begins in another and ends
// after it: viewers drop such.
func nested(s []slice) error {
	slices.SortStableFunc(s, func(a, b slice) int {
		if a.from != b.from {
			return map[bool]int{true: -1, false: 1}[a.from < b.from]
		}
		return map[bool]int{true: -1, false: 1}[a.to > b.to] * map[bool]int{true: 1}[a.to != b.to]
	})
	var stack []slice
	for _, x := range s {
		for len(stack) > 0 && stack[len(stack)-1].to <= x.from {
			stack = stack[:len(stack)-1]
		}
		if len(stack) > 0 && stack[len(stack)-1].to < x.to {
			return fmt.Errorf("%+v overlaps %+v", x, stack[len(stack)-1])
		}
		stack = append(stack, x)
	}
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
}

// export feeds events to both views, a summary and a tree that forgets nothing.
func export(t testing.TB, h *traces.Header, events func(yield func(*traces.Event) bool)) *exported {
	t.Helper()
	d := ioctl.NewDecoder(h)
	var out, gz bytes.Buffer
	tracker, calls := api.NewTracker(), api.NewSummary()
	tl, p, sum, objs := NewTimeline(&out, h, d), NewProfile(h, d), ioctl.NewSummary(h), ioctl.NewObjects(d, nil)
	for ev := range events {
		c := d.Decode(ev)
		tl.Add(ev, &c)
		p.Add(ev, &c)
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
	x := &exported{timeline: out.Bytes(), report: sum.Report(), api: calls.Report(), tree: objs.Tree()}
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
	if d.mapped != r.MapLive || d.mapPeak != r.MapPeak {
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
	files, err := filepath.Glob("../corpus/*.nvt")
	if err != nil || len(files) < 6 {
		t.Fatalf("%d recordings: %v", len(files), err)
	}
	return files
}
