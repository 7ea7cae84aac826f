package api

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"nvtrace/traces"
)

// maxCounted is how many functions a Summary keeps apart; what is beyond is
// counted together, as "(other)".
const maxCounted = 1 << 14

// CallCount counts the calls of one function. Times are in nanoseconds.
type CallCount struct {
	Library    string `json:"library"` // as [Library.String], or the file's name
	Name       string `json:"name"`
	Calls      uint64 `json:"calls"`
	Failed     uint64 `json:"failed"`     // whose status is an error
	Unfinished uint64 `json:"unfinished"` // whose return was not seen; they are not in the times
	Total      int64  `json:"total"`      // from entry to return; of recursive calls the outermost
	Self       int64  `json:"self"`       // without the calls and the recorded system calls inside
	Max        int64  `json:"max"`
	Ioctls     uint64 `json:"ioctls"`     // made during the calls, also in calls inside of them
	IoctlTime  int64  `json:"ioctl_time"` // in them
	// Counted is how many of the calls were counted in the program: of those, Self and Max
	// are not known, and Total has calls inside of others of the same function twice.
	Counted uint64 `json:"counted,omitempty"`
	// Within are the functions within whose calls counted ones were made, by how many: not of those that were made
	// within none.
	Within []CountedWithin `json:"within,omitempty"`
	// Buckets are the counted calls by time: below 32 ns, below 64 ns, …
	Buckets []uint64 `json:"buckets,omitempty"`

	module  Library
	purpose Purpose
}

// CountedWithin are counted calls within those of another function.
type CountedWithin struct {
	Name  string `json:"name"`
	Calls uint64 `json:"calls"`
}

// maxWithin is how many functions are kept apart of those within whose calls one was counted.
const maxWithin = 1 << 8

// within adds counted calls within those of another function.
func (c *CallCount) within(name string, calls uint64) {
	i := slices.IndexFunc(c.Within, func(w CountedWithin) bool { return w.Name == name })
	switch {
	case i >= 0:
	case len(c.Within) < maxWithin:
		c.Within = append(c.Within, CountedWithin{Name: strings.Clone(name)})
		i = len(c.Within) - 1
	default:
		i = maxWithin - 1
		c.Within[i].Name = "(other)"
	}
	c.Within[i].Calls += calls
}

// Report is a Summary's result.
type Report struct {
	Calls      uint64      `json:"calls"`
	Failed     uint64      `json:"failed"`
	Unfinished uint64      `json:"unfinished"`
	Counted    uint64      `json:"counted,omitempty"` // calls that were counted in the program; they are not in Time
	Time       int64       `json:"time"`              // in outermost calls
	Ioctls     uint64      `json:"ioctls"`            // during calls
	IoctlTime  int64       `json:"ioctl_time"`        // in them
	Functions  []CallCount `json:"functions"`         // by total time, then calls, then library and name
}

type countKey struct{ library, name string }

// Summary counts library calls and the ioctls that they caused. It is for one
// goroutine.
type Summary struct {
	report Report
	counts map[countKey]*CallCount
	// recent remembers counts by [slot].
	recent [256]struct {
		name, path string
		library    Library
		count      *CallCount
	}
}

// NewSummary returns an empty Summary.
func NewSummary() *Summary { return &Summary{counts: make(map[countKey]*CallCount)} }

// Add counts an event; t is the Tracker that has just taken it in, and f what
// it returned.
func (s *Summary) Add(ev *traces.Event, t *Tracker, f *Frame) {
	for _, e := range t.Ended() {
		s.end(e, nil)
	}
	switch {
	case ev.Kind == traces.KindCount:
		s.counted(ev, t)
	case f == nil:
	case ev.Kind == traces.KindReturn:
		s.end(f, ev)
	case ev.Kind == traces.KindIoctl:
		s.report.Ioctls++
		if ev.Flags&(traces.FlagNoExit|traces.FlagUnfinished) == 0 {
			s.report.IoctlTime += max(ev.Dur, 0)
		}
	}
}

// LibraryName is what the library of a call is called in tables: its name, or
// its file's; both where it is linked into another file.
func (f *Frame) LibraryName() string {
	file := f.Path[strings.LastIndexByte(f.Path, '/')+1:]
	switch {
	case f.Module.Library == Runtime && file != "" && !strings.HasPrefix(file, libraryInfo[Runtime].files[0]):
		return f.Module.Library.String() + " in " + file
	case f.Module.Library != Unknown:
		return f.Module.Library.String()
	}
	return file
}

// counted adds calls that were counted in the program.
func (s *Summary) counted(ev *traces.Event, t *Tracker) {
	l := t.lookup(ev.Path, ev.Name)
	c := s.count(&Frame{Module: l.module, Name: ev.Name, Path: ev.Path})
	calls, returned, nonzero := ev.Args[0], ev.Args[1], ev.Args[3]
	unfinished := calls - min(returned, calls)
	c.Calls, c.Counted, c.Unfinished = c.Calls+calls, c.Counted+calls, c.Unfinished+unfinished
	c.Total += int64(ev.Args[2] &^ (1 << 63))
	if ev.Text != "" {
		c.within(ev.Text, calls)
	}
	s.report.Calls, s.report.Counted, s.report.Unfinished = s.report.Calls+calls, s.report.Counted+calls, s.report.Unfinished+unfinished
	if l.f != nil && l.f.Result.Status {
		c.Failed, s.report.Failed = c.Failed+nonzero, s.report.Failed+nonzero
	}
	var buckets []uint64
	if json.Unmarshal([]byte(ev.Data), &buckets) != nil || len(buckets) > maxBuckets {
		return
	}
	for i, n := range buckets {
		if i == len(c.Buckets) {
			c.Buckets = append(c.Buckets, 0)
		}
		c.Buckets[i] += n
	}
}

// maxBuckets bounds what a recording may have us remember of a function.
const maxBuckets = 64

func (s *Summary) count(f *Frame) *CallCount {
	r := &s.recent[slot(f.Name)]
	if r.count == nil || r.name != f.Name || r.path != f.Path || r.library != f.Module.Library {
		r.name, r.path, r.library, r.count = f.Name, f.Path, f.Module.Library, s.search(f)
	}
	return r.count
}

func (s *Summary) search(f *Frame) *CallCount {
	k := countKey{f.LibraryName(), f.Name}
	c := s.counts[k]
	if c == nil {
		if len(s.counts) >= maxCounted {
			k = countKey{name: "(other)"}
			if c = s.counts[k]; c != nil {
				return c
			}
		}
		c = &CallCount{Library: strings.Clone(k.library), Name: strings.Clone(k.name), module: f.Module.Library, purpose: purposeOf(f.Module, k.name)}
		s.counts[countKey{c.Library, c.Name}] = c
	}
	return c
}

// end counts a call that has ended; ev is its return, nil if that was not seen.
func (s *Summary) end(f *Frame, ev *traces.Event) {
	c := s.count(f)
	c.Calls++
	s.report.Calls++
	recursive := false
	for p := f.Parent; p != nil; p = p.Parent {
		recursive = recursive || p.Name == f.Name && p.Path == f.Path
	}
	if !recursive {
		c.Ioctls += f.Ioctls
		c.IoctlTime += f.IoctlTime
	}
	if ev == nil || ev.Flags&traces.FlagUnfinished != 0 {
		c.Unfinished++
		s.report.Unfinished++
		return
	}
	if f.Function.Failed(ev.Ret) {
		c.Failed++
		s.report.Failed++
	}
	dur := f.Dur()
	c.Self += f.Self()
	c.Max = max(c.Max, dur)
	if !recursive {
		c.Total += dur
	}
	if f.Parent == nil {
		s.report.Time += dur
	}
}

// Made returns how many calls were made for a purpose: those of the driver, which the runtime's lead
// to, or those of the runtime where there are none.
func (r *Report) Made(p Purpose) uint64 {
	var n [2]uint64
	for i := range r.Functions {
		switch c := &r.Functions[i]; {
		case c.purpose != p:
		case c.module == Driver:
			n[0] += c.Calls
		case c.module == Runtime:
			n[1] += c.Calls
		}
	}
	return cmp.Or(n[0], n[1])
}

// Report returns what was counted so far: of calls, those that have ended.
func (s *Summary) Report() *Report {
	r := s.report
	r.Functions = make([]CallCount, 0, len(s.counts))
	for _, c := range s.counts {
		f := *c
		f.Within = slices.SortedFunc(slices.Values(c.Within), func(a, b CountedWithin) int {
			return cmp.Or(cmp.Compare(b.Calls, a.Calls), strings.Compare(a.Name, b.Name))
		})
		r.Functions = append(r.Functions, f)
	}
	slices.SortFunc(r.Functions, func(a, b CallCount) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(b.Calls, a.Calls), strings.Compare(a.Library, b.Library), strings.Compare(a.Name, b.Name))
	})
	return &r
}
