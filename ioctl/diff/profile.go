// Package diff compares what two recordings did with the driver, and what two
// driver versions understand.
//
// It knows which facts of a call are the program's doing (what it called, how
// often, with which result and size, in which order) and which are accidents of
// one run (handles, addresses, descriptors, process ids, times): only the
// former can differ. Names come from packages ioctl and rm; printing goes no
// further than text in memory.
package diff

import (
	"strconv"
	"strings"

	"nvtrace/ioctl"
	"nvtrace/rm"
	"nvtrace/traces"
)

// Options tune a comparison. The zero value, and nil, are good defaults.
type Options struct {
	// Window is how many calls apart the same call may stand in two runs and
	// still count as moved; 0 means 100, negative compares no order.
	Window int
	// MaxCalls is how many calls of a run are kept for comparing their order (4
	// bytes each); 0 means 4 million. What comes later is compared by count only.
	MaxCalls int
}

const (
	defaultWindow   = 100
	defaultMaxCalls = 4 << 20
)

// Section says what a difference is about.
type Section string

// The sections, in the order of a report.
const (
	SectionNode    Section = "node"    // device nodes that were opened
	SectionMmap    Section = "mmap"    // mappings, by node and by what they show
	SectionEscape  Section = "ioctl"   // requests on nvidiactl and nvidiaN other than controls and allocations
	SectionControl Section = "control" // control commands
	SectionClass   Section = "class"   // allocations, by class
	SectionUVM     Section = "uvm"     // requests of nvidia-uvm and nvidia-uvm-tools
	SectionOther   Section = "other"   // requests of the other nodes
	SectionLibrary Section = "library" // calls of CUDA's libraries
	SectionKernel  Section = "kernel"  // kernels that were launched, by mangled name
)

// sections is their order.
var sections = [...]Section{SectionNode, SectionMmap, SectionEscape, SectionControl, SectionClass, SectionUVM, SectionOther, SectionLibrary, SectionKernel}

// Key identifies what was called across runs and driver versions: by its name,
// as numbers are reused for other commands between versions.
type Key struct {
	Section Section
	Name    string // an unknown one's is made of its number
}

// stat is what a run did with one key.
type stat struct {
	key     Key
	nr      uint32 // the number behind the name, for printing
	hasNr   bool
	unnamed bool // the tables have no name: key.Name is made of the number
	count   uint64
	results map[result]uint64
	id      uint32 // 1-based, within the profile
}

// result is how a call ended.
type result struct {
	kind  resultKind
	value uint32
	name  string // resultLibrary
}

type resultKind uint8

const (
	resultStatus   resultKind = iota // value is an rm.Status
	resultErrno                      // value is an errno
	resultReturned                   // the system call succeeded and there is no status
	resultUnseen                     // the exit was not recorded
	resultLibrary                    // value is what a library's function returned, name its name
)

// Profile is what a comparison needs of one recording. It takes memory for the
// distinct things that were called, and 4 bytes a call for their order.
//
// A Profile is for one goroutine.
type Profile struct {
	// Name is what to call the run in a report; the file's name, say.
	Name string

	header   traces.Header
	window   int
	room     int // calls that may still be kept
	cut      uint64
	calls    uint64 // of the driver
	library  uint64 // of CUDA's libraries
	kernels  uint64 // events of launched kernels
	lost     uint64
	complete bool

	byKey   map[Key]*stat
	byCall  map[ioctl.Key]*stat
	stats   []*stat
	sizes   map[Key]*Sizes
	structs map[*rm.Struct]struct{}
	abi     *rm.ABI

	procs   []*process
	byPID   map[int32]*process
	threads map[int32]*thread
	buf     []byte
}

// process is a process that made device calls, in the order of their first.
type process struct {
	name    string // its executable's, "" not known
	threads []*thread
}

// thread is a thread's calls in order, as ids, repetitions left out.
type thread struct {
	seq []uint32
}

// NewProfile returns an empty Profile of a recording with that header (nil:
// unknown).
func NewProfile(h *traces.Header, o *Options) *Profile {
	if o == nil {
		o = &Options{}
	}
	p := &Profile{
		window: o.Window, room: o.MaxCalls,
		byKey: make(map[Key]*stat), byCall: make(map[ioctl.Key]*stat),
		sizes: make(map[Key]*Sizes), structs: make(map[*rm.Struct]struct{}),
		byPID: make(map[int32]*process), threads: make(map[int32]*thread),
	}
	if p.window == 0 {
		p.window = defaultWindow
	}
	if p.room <= 0 {
		p.room = defaultMaxCalls
	}
	if h != nil {
		p.header = *h
		if len(h.Argv) > 0 {
			p.byPID[h.PID] = &process{name: baseName(h.Argv[0])}
		}
	}
	return p
}

// Add takes in one event and its call, as d has decoded it. Events must come in
// the order of the recording; those that a filter leaves out are simply not
// given.
func (p *Profile) Add(ev *traces.Event, c *ioctl.Call, d *ioctl.Decoder) {
	switch ev.Kind {
	case traces.KindExec:
		p.exec(ev)
	case traces.KindFork:
		p.fork(ev)
	case traces.KindExit:
		delete(p.threads, ev.TID)
		if ev.TID == ev.PID {
			delete(p.byPID, ev.PID) // the id may come again
		}
	case traces.KindLost:
		p.lost += uint64(max(ev.Ret, 0))
	case traces.KindEnd:
		p.complete = true
	case traces.KindKernel:
		s := p.entry(Key{SectionKernel, ev.Name})
		s.count++
		s.results[result{kind: resultReturned}]++
		p.kernels++
	case traces.KindOpen, traces.KindMmap, traces.KindIoctl:
		if ev.Flags&(traces.FlagRestarted|traces.FlagImplicit) != 0 {
			return // the repetition counts; an inferred one is not the program's call
		}
		abi := d.ABI(ev.PID)
		p.abi = abi
		s := p.statOf(ev, c, abi)
		s.count++
		s.results[resultOf(ev, c)]++
		p.calls++
		p.note(ev, c, s.key)
		p.order(ev, s.id)
	}
}

// AddLibrary takes in a call of a library's function that has ended, in the
// order of the ends; r is how, seen false where its return was not recorded.
func (p *Profile) AddLibrary(function string, r ioctl.Returned, seen bool) {
	s := p.entry(Key{SectionLibrary, function})
	s.count++
	p.library++
	switch {
	case !seen:
		s.results[result{kind: resultUnseen}]++
	case !r.Known:
		s.results[result{kind: resultReturned}]++
	case r.Code == 0:
		s.results[result{kind: resultStatus, value: uint32(rm.OK)}]++
	default:
		s.results[result{resultLibrary, uint32(r.Code), r.Name}]++
	}
}

// statOf returns the entry for a call, making it at the first one.
func (p *Profile) statOf(ev *traces.Event, c *ioctl.Call, abi *rm.ABI) *stat {
	if ev.Kind != traces.KindIoctl { // rare, and named by more than the call's Key
		return p.entry(p.keyOf(ev, c, abi))
	}
	ck := c.Key()
	s := p.byCall[ck]
	if s == nil {
		s = p.entry(p.keyOf(ev, c, abi))
		s.nr, s.hasNr = c.Nr, true
		s.unnamed = c.HasSub && c.Sub == "" || c.Name == ""
		if c.HasSub && (s.key.Section == SectionControl || s.key.Section == SectionClass) {
			s.nr = c.SubNr
		}
		p.byCall[ck] = s
	}
	return s
}

func (p *Profile) entry(k Key) *stat {
	s := p.byKey[k]
	if s == nil {
		s = &stat{key: k, results: make(map[result]uint64), id: uint32(len(p.stats)) + 1}
		p.byKey[k] = s
		p.stats = append(p.stats, s)
	}
	return s
}

// Escapes that make objects (nv_escape.h): NV_ESC_RM_ALLOC is what programs use
// today, so that only the others are named with the class.
const (
	escControl = 0x2a
	escAlloc   = 0x2b
)

// keyOf names a call.
func (p *Profile) keyOf(ev *traces.Event, c *ioctl.Call, abi *rm.ABI) Key {
	b := p.buf[:0]
	defer func() { p.buf = b }()
	switch ev.Kind {
	case traces.KindOpen:
		return Key{SectionNode, nodeName(ev)}
	case traces.KindMmap:
		return Key{SectionMmap, mapName(c)}
	}
	switch c.Device {
	case ioctl.DeviceCtl, ioctl.DeviceGPU:
		switch {
		case c.HasSub && c.Nr == escControl:
			b = c.AppendSub(b, abi)
			return Key{SectionControl, string(b)}
		case c.HasSub && (c.Class != nil || c.Unknown == ioctl.UnknownClass):
			b = c.AppendSub(b, abi)
			if c.Nr != escAlloc {
				b = append(b, " by "...)
				b = c.AppendName(b)
			}
			return Key{SectionClass, string(b)}
		}
		b = c.AppendName(b)
		if c.HasSub {
			b = append(b, ' ')
			b = c.AppendSub(b, abi)
		}
		return Key{SectionEscape, string(b)}
	case ioctl.DeviceUVM, ioctl.DeviceUVMTools:
		b = c.AppendName(b)
		return Key{SectionUVM, string(b)}
	}
	b = append(b, c.Device.String()...)
	b = append(b, ' ')
	b = c.AppendName(b)
	return Key{SectionOther, string(b)}
}

// nodeName is the node that an open was for; a failed one has only its path.
func nodeName(ev *traces.Event) string {
	if ev.Dev != "" {
		return ev.Dev
	}
	return strings.TrimPrefix(ev.Path, "/dev/")
}

// mapName says what an mmap shows, not where.
func mapName(c *ioctl.Call) string {
	name := c.Device.String()
	switch {
	case c.Link == nil || c.Link.Managed:
	case c.Link.Class != nil:
		name += " " + c.Link.Class.Name
	default:
		name += " unknown object"
	}
	return name
}

func resultOf(ev *traces.Event, c *ioctl.Call) result {
	switch {
	case ev.Flags&(traces.FlagNoExit|traces.FlagUnfinished) != 0:
		return result{kind: resultUnseen}
	case c.Errno != 0:
		return result{kind: resultErrno, value: uint32(c.Errno)}
	case c.HasStatus:
		return result{kind: resultStatus, value: uint32(c.Status)}
	}
	return result{kind: resultReturned}
}

// exec notes a program's name.
func (p *Profile) exec(ev *traces.Event) {
	name := ev.Path
	if name == "" && len(ev.Argv) > 0 {
		name = ev.Argv[0]
	}
	if pr := p.byPID[ev.PID]; pr == nil || len(pr.threads) > 0 {
		// A new program in a process that was already in use plays another role.
		p.byPID[ev.PID] = &process{name: baseName(name)}
		delete(p.threads, ev.PID)
	} else {
		pr.name = baseName(name)
	}
}

// fork lets a child have its parent's name.
func (p *Profile) fork(ev *traces.Event) {
	if ev.Flags&traces.FlagThread != 0 {
		return
	}
	if parent := p.byPID[ev.PID]; parent != nil {
		p.byPID[ev.Child] = &process{name: parent.name}
	}
}

// order appends a call to its thread's sequence.
func (p *Profile) order(ev *traces.Event, id uint32) {
	if p.window < 0 {
		return
	}
	t := p.threads[ev.TID]
	if t == nil {
		pr := p.byPID[ev.PID]
		if pr == nil {
			pr = &process{}
			p.byPID[ev.PID] = pr
		}
		if len(pr.threads) == 0 {
			p.procs = append(p.procs, pr)
		}
		t = &thread{}
		pr.threads = append(pr.threads, t)
		p.threads[ev.TID] = t
	}
	if n := len(t.seq); n > 0 && t.seq[n-1] == id {
		return
	}
	if p.room == 0 {
		p.cut++
		return
	}
	p.room--
	t.seq = append(t.seq, id)
}

func baseName(path string) string {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			return path[i+1:]
		}
	}
	return path
}

// role names a thread in a report: by order of appearance, as ids are not the
// same in two runs.
func (pr *process) role(i, j int) string {
	s := "process " + strconv.Itoa(i+1)
	if pr.name != "" {
		s += " (" + pr.name + ")"
	}
	if j > 0 {
		s += ", thread " + strconv.Itoa(j+1)
	}
	return s
}
