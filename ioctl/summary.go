package ioctl

import (
	"cmp"
	"encoding/hex"
	"math/bits"
	"slices"
	"strings"

	"nvtrace/ioctl/procmap"
	"nvtrace/rm"
	"nvtrace/traces"
)

// Bounds of what a Summary remembers of a hostile or endless run. Counts go on
// beyond them, under "other".
const (
	maxCalls    = 1 << 14 // distinct calls
	maxFailures = 1 << 12
	maxUnknowns = 1 << 10
	maxTasks    = 1 << 16
	maxMaps     = 1 << 18
	sampleBytes = 64 // bytes kept of an unknown call

	maxRemarkBytes = 1 << 20 // of the notes; of the gaps
)

// Summary counts what a recording holds. It is for one goroutine.
type Summary struct {
	report   Report
	calls    map[Key]*callCount
	failures map[failureKey]*FailureCount
	unknowns map[Key]*UnknownCount
	procs    map[int32]*Process
	last     *Process // of the event before, whose thread is lastTID; nil: look both up
	lastTID  int32
	threads  map[int32]int32 // tid -> pid
	opens    map[openKey]*OpenCount
	maps     procmap.Map[liveMap]
	notes    int // bytes of the notes
	gaps     int // of the gaps
	mapped   map[mapKind]*MapCount
	abi      *rm.ABI
	name     []byte
}

type failureKey struct {
	key    Key
	status rm.Status
	errno  int32
}

type openKey struct {
	dev   string
	errno int32
}

type liveMap struct {
	length uint64
	of     *MapCount
}

type mapKind struct {
	dev  string
	what string
}

// callCount is a CallCount with the histogram of its durations.
type callCount struct {
	CallCount
	hist histogram
}

// Report is a Summary's result as plain data, for tables and JSON. Times are in
// nanoseconds, sizes in bytes. All lists are in a fixed order.
type Report struct {
	Driver    string           `json:"driver,omitempty"`
	Tables    string           `json:"tables,omitempty"` // driver version whose tables stand in for those of Driver
	Argv      []string         `json:"argv,omitempty"`
	Events    uint64           `json:"events"`
	Ioctls    uint64           `json:"ioctls"`
	Own       uint64           `json:"own,omitempty"`      // ioctls that are nvtrace's own work, in none of the other numbers
	Failed    uint64           `json:"failed"`             // ioctls that the system call or the resource manager refused
	Unknown   uint64           `json:"unknown"`            // ioctls that the tables do not know, or whose parameters have another size
	Closed    uint64           `json:"closed"`             // control commands of the closed parts of the driver
	Opaque    uint64           `json:"opaque"`             // named ioctls whose parameters have no public layout, or were not read
	IoctlTime int64            `json:"ioctl_time"`         // in all ioctls together
	First     int64            `json:"first"`              // time of the first event
	Last      int64            `json:"last"`               // end of the last one
	Lost      uint64           `json:"lost"`               // events that could not be recorded
	Truncated uint64           `json:"truncated"`          // calls whose memory was not copied whole
	Untimed   uint64           `json:"untimed"`            // ioctls without exit: counted, but not in times and failures
	Complete  bool             `json:"complete"`           // the record that ends a recording was there
	Processes []Process        `json:"processes"`          // by start
	Calls     []CallCount      `json:"calls"`              // by total time, then number, then name
	Failures  []FailureCount   `json:"failures"`           // by number, then first time
	Unknowns  []UnknownCount   `json:"unknowns"`           // all three kinds, by number, then name
	Opens     []OpenCount      `json:"opens"`              // by node
	Maps      []MapCount       `json:"maps"`               // by peak, then node
	MapLive   uint64           `json:"map_live"`           // bytes of device memory mapped at the end
	MapPeak   uint64           `json:"map_peak"`           // at most
	Notes     []string         `json:"notes"`              // in order
	Gaps      []string         `json:"gaps,omitempty"`     // what the recording lacks, in order
	Captured  *traces.Captured `json:"captured,omitempty"` // what capturing code images came to
	Cost      *traces.Cost     `json:"cost"`               // nvtrace's own, if the recording is complete
	Other     uint64           `json:"other_calls"`        // ioctls beyond the number of distinct calls that are kept apart

	// Notes, and gaps, that are not listed: the first 1,024 are, of up to 1 MiB.
	MoreNotes uint64 `json:"more_notes,omitempty"`
	MoreGaps  uint64 `json:"more_gaps,omitempty"`
}

// Process is one process of the recording.
type Process struct {
	PID      int32    `json:"pid"`
	Parent   int32    `json:"parent,omitempty"`
	Exe      string   `json:"exe,omitempty"`
	Argv     []string `json:"argv,omitempty"`
	Start    int64    `json:"start"`
	End      int64    `json:"end"` // -1: it had not ended
	Threads  int      `json:"threads"`
	Ioctls   uint64   `json:"ioctls"`
	Failed   uint64   `json:"failed"`
	Time     int64    `json:"time"` // in ioctls
	Status   int64    `json:"status"`
	Exited   bool     `json:"exited"`
	Attached bool     `json:"attached,omitempty"`
}

// CallCount counts the ioctls of one name.
type CallCount struct {
	Device string `json:"device"`
	Name   string `json:"name"`
	Sub    string `json:"sub,omitempty"`
	Calls  uint64 `json:"calls"`
	Failed uint64 `json:"failed"`
	Total  int64  `json:"total"` // of the timed calls
	Mean   int64  `json:"mean"`
	P50    int64  `json:"p50"` // from a histogram of 8 steps an octave: at most 12.5 % above the true value
	P99    int64  `json:"p99"`
	Max    int64  `json:"max"`
	First  int64  `json:"first"`
}

// FailureCount counts failures of one call with one result.
type FailureCount struct {
	Device string `json:"device"`
	Name   string `json:"name"`
	Sub    string `json:"sub,omitempty"`
	Status string `json:"status"` // RM status or errno
	Count  uint64 `json:"count"`
	First  int64  `json:"first"`
	PID    int32  `json:"pid"` // of the first
}

// UnknownCount counts calls that the tables do not know.
type UnknownCount struct {
	Device string `json:"device"`
	Name   string `json:"name"`
	Sub    string `json:"sub,omitempty"`
	Why    string `json:"why"`
	Count  uint64 `json:"count"`
	First  int64  `json:"first"`
	Size   int    `json:"size"`            // of the first one's argument or parameters
	Bytes  string `json:"bytes,omitempty"` // its beginning, in hexadecimal
}

// OpenCount counts opens of one node with one result.
type OpenCount struct {
	Node  string `json:"node"`
	Error string `json:"error,omitempty"`
	Count uint64 `json:"count"`
}

// MapCount counts mappings of one kind of memory through one node.
type MapCount struct {
	Node  string `json:"node"`
	What  string `json:"what"` // "doorbell", "vidmem", "managed memory", …
	Maps  uint64 `json:"maps"`
	Live  uint64 `json:"live"` // bytes at the end
	Peak  uint64 `json:"peak"`
	Total uint64 `json:"total"` // bytes of all mappings
}

// NewSummary returns an empty Summary of a recording with that header, which
// may be nil.
func NewSummary(h *traces.Header) *Summary {
	s := &Summary{
		calls: make(map[Key]*callCount), failures: make(map[failureKey]*FailureCount),
		unknowns: make(map[Key]*UnknownCount), procs: make(map[int32]*Process), threads: make(map[int32]int32),
		opens: make(map[openKey]*OpenCount), mapped: make(map[mapKind]*MapCount),
		abi: rm.Newest(),
	}
	s.report.First = -1
	if h != nil {
		s.report.Driver, s.report.Argv = h.Driver, h.Argv
		if v, err := rm.ParseVersion(h.Driver); err == nil {
			s.abi = rm.Load(v)
			if !s.abi.Exact() {
				s.report.Tables = s.abi.Version().String()
			}
		}
		if h.PID != 0 {
			s.process(h.PID, 0)
		}
	}
	return s
}

// Add counts one event and its call, in constant time.
func (s *Summary) Add(ev *traces.Event, c *Call) {
	r := &s.report
	if c.Own {
		if ev.Kind == traces.KindIoctl {
			r.Own++
		}
		return
	}
	r.Events++
	if r.First < 0 {
		r.First = ev.Time
	}
	r.Last = max(r.Last, ev.Time+ev.Dur)
	if ev.Flags&traces.FlagTruncated != 0 {
		r.Truncated++
	}
	var p *Process
	if ev.PID != 0 {
		p = s.process(ev.PID, ev.Time)
		s.thread(p, ev)
	}
	switch ev.Kind {
	case traces.KindIoctl:
		s.ioctl(ev, c, p)
	case traces.KindOpen:
		s.open(ev, c)
	case traces.KindMmap:
		s.mmap(ev, c)
	case traces.KindMunmap:
		if c.Errno == 0 {
			s.munmap(ev.PID, ev.Args[0])
		}
	case traces.KindFork:
		if ev.Flags&traces.FlagThread == 0 {
			child := s.process(ev.Child, ev.Time)
			child.Parent = ev.PID
			if p != nil && child.Exe == "" {
				child.Exe, child.Argv = p.Exe, p.Argv
			}
		}
	case traces.KindExec:
		if p != nil {
			p.Exe, p.Argv = ev.Path, slices.Clone(ev.Argv)
		}
		s.unmapAll(ev.PID)
	case traces.KindExit:
		s.exit(ev, p)
	case traces.KindNote:
		r.Notes = remark(r.Notes, ev.Text, &s.notes, &r.MoreNotes)
	case traces.KindCaptured:
		if ev.Captured != nil {
			captured := *ev.Captured
			r.Captured = &captured
		}
	case traces.KindGap:
		r.Gaps = remark(r.Gaps, ev.Text, &s.gaps, &r.MoreGaps)
	case traces.KindLost:
		r.Lost += uint64(max(ev.Ret, 0))
	case traces.KindEnd:
		r.Complete = true
		if ev.Cost != nil {
			cost := *ev.Cost
			r.Cost = &cost
		}
	}
}

// remark adds a text to a list of size bytes, or counts it where there is no room for it.
func remark(list []string, text string, size *int, more *uint64) []string {
	if len(list) >= maxUnknowns || *size+len(text) > maxRemarkBytes {
		*more++
		return list
	}
	*size += len(text)
	return append(list, text)
}

func (s *Summary) process(pid int32, at int64) *Process {
	if s.last != nil && s.last.PID == pid {
		return s.last
	}
	p := s.procs[pid]
	if p == nil {
		p = &Process{PID: pid, Start: at, End: -1}
		if len(s.procs) < maxTasks {
			s.procs[pid] = p
		}
	}
	return p
}

func (s *Summary) thread(p *Process, ev *traces.Event) {
	if s.last == p && s.lastTID == ev.TID && ev.Flags&traces.FlagAttached == 0 {
		return
	}
	s.last, s.lastTID = nil, 0
	if ev.Flags&traces.FlagAttached != 0 {
		p.Attached = true
	}
	if old, ok := s.threads[ev.TID]; !ok || old != ev.PID {
		if len(s.threads) >= maxTasks {
			return
		}
		s.threads[ev.TID] = ev.PID
		p.Threads++
	}
	s.last, s.lastTID = p, ev.TID
}

func (s *Summary) exit(ev *traces.Event, p *Process) {
	delete(s.threads, ev.TID)
	s.last = nil
	if p == nil || ev.TID != ev.PID {
		return
	}
	p.Exited, p.Status, p.End = true, ev.Ret, ev.Time
	s.unmapAll(ev.PID)
}

func (s *Summary) ioctl(ev *traces.Event, c *Call, p *Process) {
	r := &s.report
	r.Ioctls++
	key := c.Key()
	n := s.calls[key]
	if n == nil {
		if len(s.calls) >= maxCalls {
			r.Other++
			n = &callCount{} // counted in the totals only
		} else {
			n = &callCount{CallCount: CallCount{Device: key.Device.String(), First: ev.Time}}
			n.Name, n.Sub = s.names(c)
			s.calls[key] = n
		}
	}
	n.Calls++
	p = cmp.Or(p, &Process{})
	p.Ioctls++
	if ev.Flags&(traces.FlagNoExit|traces.FlagUnfinished) != 0 {
		r.Untimed++
	} else {
		n.Total += ev.Dur
		n.Max = max(n.Max, ev.Dur)
		n.hist.add(ev.Dur)
		r.IoctlTime += ev.Dur
		p.Time += ev.Dur
		if c.Failed() && ev.Flags&traces.FlagRestarted == 0 {
			r.Failed++
			n.Failed++
			p.Failed++
			s.failure(ev, c, key)
		}
	}
	if c.Unknown != Known {
		s.unknown(ev, c, key)
	}
	if c.Nr == escUnmapMemory && !c.Failed() && c.HasStatus && (c.Device == DeviceCtl || c.Device == DeviceGPU) && c.Argument() != nil {
		// NVOS34.pLinearAddress: the user's address. The munmap itself may not be recorded.
		s.munmap(ev.PID, load64(c.Argument().In, 16))
	}
}

// names returns the names of a call as strings of their own.
func (s *Summary) names(c *Call) (name, sub string) {
	s.name = c.AppendName(s.name[:0])
	name = string(s.name)
	s.name = c.AppendSub(s.name[:0], s.abi)
	return name, string(s.name)
}

func (s *Summary) failure(ev *traces.Event, c *Call, key Key) {
	k := failureKey{key: key, errno: c.Errno}
	if c.HasStatus {
		k.status = c.Status
	}
	f := s.failures[k]
	if f == nil {
		if len(s.failures) >= maxFailures {
			return
		}
		f = &FailureCount{Device: key.Device.String(), First: ev.Time, PID: ev.PID}
		f.Name, f.Sub = s.names(c)
		switch {
		case k.status == rm.OK:
			f.Status = errnoName(c.Errno)
		case c.Errno == 0:
			f.Status = c.StatusName()
		default:
			f.Status = errnoName(c.Errno) + " " + c.StatusName()
		}
		s.failures[k] = f
	}
	f.Count++
}

func (s *Summary) unknown(ev *traces.Event, c *Call, key Key) {
	switch c.Unknown {
	case ClosedControl:
		s.report.Closed++
	case UnknownBytes:
		s.report.Opaque++
	default:
		s.report.Unknown++
	}
	u := s.unknowns[key]
	if u == nil {
		if len(s.unknowns) >= maxUnknowns {
			return
		}
		u = &UnknownCount{Device: key.Device.String(), Why: c.Unknown.String(), First: ev.Time}
		u.Name, u.Sub = s.names(c)
		if len(c.Parts) > 0 {
			last := &c.Parts[len(c.Parts)-1]
			u.Size = last.Len
			u.Bytes = hex.EncodeToString(last.In[:min(len(last.In), sampleBytes)])
		}
		s.unknowns[key] = u
	}
	u.Count++
}

func (s *Summary) open(ev *traces.Event, c *Call) {
	k := openKey{ev.Dev, c.Errno}
	if k.dev == "" {
		k.dev = strings.TrimPrefix(ev.Path, "/dev/")
	}
	o := s.opens[k]
	if o == nil {
		if len(s.opens) >= maxUnknowns {
			return
		}
		o = &OpenCount{Node: k.dev}
		if c.Errno != 0 {
			o.Error = errnoName(c.Errno)
		}
		s.opens[k] = o
	}
	o.Count++
}

func (s *Summary) mmap(ev *traces.Event, c *Call) {
	if c.Errno != 0 || ev.Ret == 0 || s.maps.Len() >= maxMaps {
		return
	}
	kind := mapKind{dev: ev.Dev, what: "object"}
	if l := c.Link; l != nil {
		if kind.what = MapName(l.Kind); l.Managed {
			kind.what = "managed memory"
		}
	}
	s.munmap(ev.PID, uint64(ev.Ret)) // MAP_FIXED, or an munmap that was not recorded
	if s.mapped[kind] == nil && len(s.mapped) >= maxUnknowns {
		kind = mapKind{dev: "others"} // there are no machines with so many nodes
	}
	n := s.mapped[kind]
	if n == nil {
		n = &MapCount{Node: kind.dev, What: kind.what}
		s.mapped[kind] = n
	}
	length := ev.Args[1]
	n.Maps++
	n.Total += length
	n.Live += length
	n.Peak = max(n.Peak, n.Live)
	s.maps.Put(ev.PID, uint64(ev.Ret), liveMap{length, n})
	s.report.MapLive += length
	s.report.MapPeak = max(s.report.MapPeak, s.report.MapLive)
}

// munmap ends the mapping that begins at addr. Unmapping a part, or a range
// over several, is not something that the driver's libraries do.
func (s *Summary) munmap(pid int32, addr uint64) {
	if m, ok := s.maps.Take(pid, addr); ok {
		s.unmapped(m)
	}
}

func (s *Summary) unmapped(m liveMap) {
	m.of.Live -= m.length
	s.report.MapLive -= m.length
}

// unmapAll ends a process's mappings, when it ends or starts another program.
func (s *Summary) unmapAll(pid int32) {
	for m := range s.maps.TakeAll(pid) {
		s.unmapped(m)
	}
}

// Report returns what was counted so far, in lists of its own.
func (s *Summary) Report() *Report {
	r := s.report
	r.First = max(r.First, 0)
	r.Processes = sorted(s.procs, func(p *Process) Process { return *p }, func(a, b *Process) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.PID, b.PID))
	})
	r.Calls = sorted(s.calls, func(n *callCount) CallCount {
		c := n.CallCount
		if timed := n.hist.n; timed > 0 {
			c.Mean = c.Total / int64(timed)
			c.P50, c.P99 = min(n.hist.quantile(50), c.Max), min(n.hist.quantile(99), c.Max)
		}
		return c
	}, func(a, b *CallCount) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(b.Calls, a.Calls), strings.Compare(a.Name, b.Name), strings.Compare(a.Sub, b.Sub), strings.Compare(a.Device, b.Device))
	})
	r.Failures = sorted(s.failures, func(f *FailureCount) FailureCount { return *f }, func(a, b *FailureCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.First, b.First), strings.Compare(a.Name, b.Name), strings.Compare(a.Sub, b.Sub), strings.Compare(a.Status, b.Status))
	})
	r.Unknowns = sorted(s.unknowns, func(u *UnknownCount) UnknownCount { return *u }, func(a, b *UnknownCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Name, b.Name), strings.Compare(a.Sub, b.Sub))
	})
	r.Opens = sorted(s.opens, func(o *OpenCount) OpenCount { return *o }, func(a, b *OpenCount) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Error, b.Error))
	})
	r.Maps = sorted(s.mapped, func(m *MapCount) MapCount { return *m }, func(a, b *MapCount) int {
		return cmp.Or(cmp.Compare(b.Peak, a.Peak), strings.Compare(a.Node, b.Node), strings.Compare(a.What, b.What))
	})
	r.Notes = append([]string{}, r.Notes...)
	return &r
}

// sorted returns the values of a map, each made into a T, in order.
func sorted[K comparable, V, T any](m map[K]V, make1 func(V) T, compare func(a, b *T) int) []T {
	unsorted, order := make([]T, 0, len(m)), make([]*T, 0, len(m))
	for _, v := range m {
		unsorted = append(unsorted, make1(v))
		order = append(order, &unsorted[len(unsorted)-1])
	}
	slices.SortFunc(order, compare)
	list := make([]T, 0, len(m))
	for _, p := range order {
		list = append(list, *p)
	}
	return list
}

// histogram counts durations in steps of an eighth of an octave.
type histogram struct {
	n           uint64
	first, last uint16 // bucket in use, if n is not 0
	buckets     [64 * 8]uint32
}

// bucketOf returns the bucket of a duration: the place of its highest bit and
// the three bits below.
func bucketOf(ns int64) int {
	v := uint64(max(ns, 0))
	if v < 8 {
		return int(v)
	}
	shift := bits.Len64(v) - 4
	return shift*8 + int(v>>shift)
}

// upper returns the largest duration in a bucket.
func upper(b int) int64 {
	if b < 16 {
		return int64(b)
	}
	shift := b/8 - 1
	return int64(b%8+9)<<shift - 1
}

func (h *histogram) add(ns int64) {
	at := bucketOf(ns)
	if h.n == 0 {
		h.first, h.last = uint16(at), uint16(at)
	}
	h.n++
	h.first, h.last = min(h.first, uint16(at)), max(h.last, uint16(at))
	if b := &h.buckets[at]; *b < 1<<32-1 {
		*b++
	}
}

// quantile returns the upper bound of the bucket in which the given percentile lies.
func (h *histogram) quantile(percent uint64) int64 {
	rank := (h.n*percent + 99) / 100
	seen := uint64(0)
	for b := h.first; b <= h.last; b++ {
		n := h.buckets[b]
		if seen += uint64(n); n > 0 && seen >= rank {
			return upper(int(b))
		}
	}
	return 0
}
