package export

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"github.com/google/pprof/profile"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/ioctl"
	"nvtrace/rm"
	"nvtrace/traces"
)

// Profile gathers a recording's calls as a profile for pprof. A sample's stack
// is the program, the library calls during which it happened, the outermost
// first, the system call (an ioctl's name), the control command or class,
// and the kind of object that it is about; other system calls have the device node
// and, for mmap, what is mapped. A library call has a sample too, whose stack ends
// with it. Frames of library calls are of a file "api/driver", by the library. The labels are pid, tid and status. The values are
//
//	calls  count        how often
//	time   nanoseconds  in the calls whose duration is known; of a library's without
//	                    what has samples of its own
//	bytes  bytes        memory on the GPU, in the host and on the fabric that the
//	                    calls allocated, and lengths of the mappings that they made
//	gpu    nanoseconds  that GPUs worked for the calls: stacks end with the kernel, and have the
//	                    labels kernel, stream, context and, where that is known, device
//	allocated, live     bytes that calls of the CUDA driver allocated, and that were not given
//	                    back by the end, or at Profile.At
//
// Where stacks were recorded, the functions and lines of the program that led to a call are in front of it.
//
// Memory grows with the number of different samples, up to a bound. What is
// beyond that is counted as "(other)". A Profile is for one goroutine.
type Profile struct {
	// Demangle, if not nil, names functions and kernels for people. Rank is the label of that name, "" for none. At is
	// the time that live memory is of, 0 for the end. All may be set before the first event.
	Demangle func(name string) string
	Rank     string
	At       int64

	scene
	p           *profile.Profile
	frames      map[frameKey]*profile.Location
	samples     map[sampleKey]*profile.Sample
	first, last int64
	start       int64
	until       int64 // end of the latest part
	name        []byte
	nodes       []apiNode // of library calls; 0 is none
	stacks      map[apiKey]int32
	working     map[callKey]int32 // stacks of calls that GPUs work for
	live        map[memoryKey]liveMemory
}

// memoryKey identifies memory of a process's, on a GPU.
type memoryKey struct {
	pid  int32
	addr uint64
}

// liveMemory is memory, and where it counts.
type liveMemory struct {
	sample *profile.Sample
	bytes  uint64
}

// frameKey identifies a function of the profile, and a line in it.
type frameKey struct {
	name, file string
	line       int
}

// sampleKey identifies a sample: the innermost and outermost frame stand for
// the part of the stack that the call's key does not determine.
type sampleKey struct {
	task    taskKey
	program *profile.Location
	api     int32 // the library calls around it
	call    ioctl.Key
	leaf    *profile.Location // nil none
	errno   int32
	status  rm.Status
	state   uint8 // of the result: see stateOf

	stream, context uint64 // of a GPU's work, whose leaf is a kernel
}

// Indices of a sample's values.
const (
	valueCalls = iota
	valueTime
	valueBytes
	valueGPU
	valueAllocated
	valueLive
	values
)

// NewProfile returns an empty Profile. The events that it will be given are
// decoded by d; h, which may be nil, is the recording's header.
func NewProfile(h *traces.Header, d *ioctl.Decoder) *Profile {
	p := &Profile{
		p: &profile.Profile{
			SampleType: []*profile.ValueType{
				{Type: "calls", Unit: "count"},
				{Type: "time", Unit: "nanoseconds"},
				{Type: "bytes", Unit: "bytes"},
				{Type: "gpu", Unit: "nanoseconds"},
				{Type: "allocated", Unit: "bytes"},
				{Type: "live", Unit: "bytes"},
			},
			DefaultSampleType: "time",
			PeriodType:        &profile.ValueType{Type: "calls", Unit: "count"},
			Period:            1,
		},
		frames: make(map[frameKey]*profile.Location), samples: make(map[sampleKey]*profile.Sample),
		first: math.MaxInt64, last: math.MinInt64,
		nodes: make([]apiNode, 1), stacks: make(map[apiKey]int32), working: make(map[callKey]int32), live: make(map[memoryKey]liveMemory),
	}
	p.init(h, d)
	file := "nvtrace"
	if h != nil {
		p.start = h.Start
		if len(h.Argv) > 0 {
			file = clean(programName(h.Argv[0]))
		}
		for _, c := range [][2]string{{"command", commandLine(h.Argv)}, {"driver", h.Driver}, {"kernel", h.Kernel}, {"nvtrace", h.Tool}} {
			if c[1] != "" {
				p.p.Comments = append(p.p.Comments, c[0]+": "+clean(clip(c[1], maxText)))
			}
		}
	}
	// What is claimed to be there keeps pprof from looking for it in a binary.
	p.p.Mapping = []*profile.Mapping{{ID: 1, Limit: math.MaxInt64, File: file, HasFunctions: true, HasFilenames: true, HasLineNumbers: true, HasInlineFrames: true}}
	return p
}

// Observe implements observe.Observer: it counts the event, and keeps nothing of it. What an event
// that is not wanted says about objects and names matters to later ones.
func (p *Profile) Observe(e *observe.Event) {
	ev, c := e.Event, e.Call
	if e.Unwanted || !isCall(ev.Kind) || inferred(ev) {
		p.follow(e)
		return
	}
	p.span(ev)
	kind := p.kindOf(ev, c) // what the call is about may not outlive it
	p.take(e)
	p.library(ev, true)
	p.ledger.clean()
	s := p.sample(ev, c, kind)
	s.Value[valueCalls]++
	if ev.Flags&untimed == 0 {
		s.Value[valueTime] += ev.Dur
	}
	s.Value[valueBytes] = addBytes(s.Value[valueBytes], p.ledger.made)
}

// follow takes in an event that is no call to be counted.
func (p *Profile) follow(e *observe.Event) {
	ev := e.Event
	p.span(ev)
	p.take(e)
	p.library(ev, !e.Unwanted)
	switch ev.Kind {
	case traces.KindStack:
		p.calledFrom(ev)
	case traces.KindGPU:
		if !e.Unwanted {
			p.work(ev)
		}
	}
	p.ledger.clean()
}

// span takes in when something of the run happened: a profile is of the whole run, not
// of the time between its first and last call.
func (p *Profile) span(ev *traces.Event) {
	switch ev.Kind {
	case traces.KindNote, traces.KindLost, traces.KindGap, traces.KindEnd:
		return
	}
	p.first = min(p.first, ev.Time)
	p.last = max(p.last, ev.Time, ev.Time+ev.Dur)
}

// addBytes adds, and stays where a sum leaves what a profile can hold.
func addBytes(sum int64, n uint64) int64 {
	if n > uint64(math.MaxInt64-sum) {
		return math.MaxInt64
	}
	return sum + int64(n)
}

// kindOf names the kind of thing that a call is about: the kind of an ioctl's
// object as log lines have it ("chan"), or what a mapping shows.
func (p *Profile) kindOf(ev *traces.Event, c *ioctl.Call) string {
	switch {
	case ev.Kind == traces.KindMmap:
		return mapped(c)
	case ev.Kind != traces.KindIoctl:
		return ""
	case c.Class != nil:
		return c.Class.Nick
	case c.Object == 0:
		return ""
	}
	ref := rm.Ref{Client: c.Client, Handle: c.Object}
	if o := p.objects.Tree().Object(ref); o != nil && o.Class != nil {
		return o.Class.Nick
	}
	if c.Object == c.Client {
		return "client"
	}
	return "obj"
}

// states of a call's result.
const (
	stateOK uint8 = iota
	stateFailed
	stateUntimed
)

func stateOf(ev *traces.Event, c *ioctl.Call) uint8 {
	switch {
	case ev.Flags&untimed != 0:
		return stateUntimed
	case c.Failed():
		return stateFailed
	}
	return stateOK
}

// sample returns the sample that an event counts in.
func (p *Profile) sample(ev *traces.Event, c *ioctl.Call, kind string) *profile.Sample {
	k := sampleKey{task: taskKey{ev.PID, ev.TID}, program: p.programOf(ev.PID), api: p.stack(p.in), call: c.Key(), state: stateOf(ev, c)}
	file := ""
	if ev.Kind == traces.KindIoctl {
		file = k.call.Device.String()
	} else {
		file = node(ev)
		k.call = ioctl.Key{Kind: ev.Kind}
	}
	var leaves [3]*profile.Location // innermost first
	stack := leaves[:0]
	if kind != "" {
		stack = append(stack, p.frame(kind, file))
	}
	if ev.Kind != traces.KindIoctl && file != "" {
		stack = append(stack, p.frame(file, file))
	}
	if len(stack) > 0 {
		k.leaf = stack[0]
	}
	if k.state == stateFailed {
		if k.errno = c.Errno; c.HasStatus {
			k.status = c.Status
		}
	}
	s := p.samples[k]
	if s != nil {
		return s
	}
	if len(p.samples) >= maxSamples {
		return p.other()
	}
	if ev.Kind == traces.KindIoctl {
		if c.HasSub || c.Sub != "" {
			p.name = c.AppendSub(p.name[:0], p.dec.ABI(ev.PID))
			stack = append(stack, p.frame(string(p.name), file))
		}
		p.name = c.AppendName(p.name[:0])
	} else {
		p.name = append(p.name[:0], ev.Kind.String()...)
	}
	frames := append(append([]*profile.Location(nil), stack...), p.frame(string(p.name), file))
	s = p.newSample(append(p.appendStack(frames, k.api), k.program))
	p.label(s, k.task, "status", statusLabel(k.state, c))
	p.samples[k] = s
	return s
}

// programOf returns the location of a process's program.
func (p *Profile) programOf(pid int32) *profile.Location {
	return p.frame(cmp.Or(p.names[pid], "(unknown program)"), "")
}

// label gives a sample its labels: those that all have, and pairs of a name and a value.
func (p *Profile) label(s *profile.Sample, task taskKey, more ...string) {
	s.Label = map[string][]string{"pid": {strconv.Itoa(int(task.pid))}, "tid": {strconv.Itoa(int(task.tid))}}
	if p.Rank != "" {
		s.Label["rank"] = []string{clean(p.Rank)}
	}
	for ; len(more) > 1; more = more[2:] {
		s.Label[more[0]] = []string{more[1]}
	}
}

func statusLabel(state uint8, c *ioctl.Call) string {
	switch state {
	case stateUntimed:
		return "not observed"
	case stateFailed:
		return result(c)
	}
	return "OK"
}

func (p *Profile) newSample(stack []*profile.Location) *profile.Sample {
	s := &profile.Sample{Location: stack, Value: make([]int64, values)}
	p.p.Sample = append(p.p.Sample, s)
	return s
}

// other returns the sample of what is beyond the bound.
func (p *Profile) other() *profile.Sample {
	s := p.samples[sampleKey{}]
	if s == nil {
		s = p.newSample([]*profile.Location{p.frame("(other)", "")})
		p.samples[sampleKey{}] = s
	}
	return s
}

// frame returns the location of a name. Its line has no number: names are all
// there is.
func (p *Profile) frame(name, file string) *profile.Location { return p.line(name, file, 0) }

// line returns the location of a line of a function's.
func (p *Profile) line(name, file string, line int) *profile.Location {
	k := frameKey{name, file, line}
	if l := p.frames[k]; l != nil {
		return l
	}
	if len(p.frames) >= maxFrames {
		if k = (frameKey{name: "(other)"}); p.frames[k] != nil {
			return p.frames[k]
		}
	}
	f := &profile.Function{ID: uint64(len(p.p.Function) + 1), Name: clean(k.name), SystemName: clean(k.name), Filename: clean(k.file)}
	l := &profile.Location{ID: f.ID, Mapping: p.p.Mapping[0], Address: f.ID, Line: []profile.Line{{Function: f, Line: int64(k.line)}}}
	p.p.Function = append(p.p.Function, f)
	p.p.Location = append(p.p.Location, l)
	p.frames[k] = l
	return l
}

// Part writes what was counted since the part before, as [Profile.Write] would write all of it: live memory is that at a time
// since the beginning.
func (p *Profile) Part(w io.Writer, now int64) error {
	all := p.p.Sample
	p.p.Sample = slices.Clone(all)
	p.p.Sample = slices.DeleteFunc(p.p.Sample, func(s *profile.Sample) bool {
		return !slices.ContainsFunc(s.Value, func(v int64) bool { return v != 0 })
	})
	p.p.DurationNanos, p.p.TimeNanos = max(now-p.until, 0), p.start+p.until
	p.until = now
	err := p.p.CheckValid()
	if err == nil {
		err = p.p.Compact().Write(w) // without the names that only other parts have
	}
	p.p.Sample = all
	for _, s := range all {
		clear(s.Value[:valueLive])
	}
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	return nil
}

// ValueTypes returns the names of a sample's values and their units.
func (p *Profile) ValueTypes() (list [][2]string) {
	for _, t := range p.p.SampleType {
		list = append(list, [2]string{t.Type, t.Unit})
	}
	return list
}

// Write writes the profile so far, gzipped profile.proto.
func (p *Profile) Write(w io.Writer) error {
	if p.first <= p.last {
		p.p.DurationNanos = p.last - p.first
		if p.start != 0 {
			p.p.TimeNanos = p.start + p.first
		}
	}
	if err := p.p.CheckValid(); err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	return p.p.Write(w)
}
