package api

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"

	"nvtrace/traces"
)

// Bounds of what a Tracker keeps of a hostile or endless recording.
const (
	maxDepth   = 256     // open calls of a thread; deeper ones are not followed
	maxThreads = 1 << 16 // with open calls
	maxLookups = 1 << 14 // functions that were looked up
)

// Frame is a call that has been entered. It is valid until the Tracker that it
// is from has given it out as ended, and Add is called again.
type Frame struct {
	Function *Function // nil: not in the tables
	Module   Module
	Name     string
	Path     string // the library's file
	PID, TID int32
	Args     [6]uint64
	Stack    []uint64 // words of the stack that were recorded
	Start    int64
	End      int64  // of an ended call; -1 where it was not seen to return
	Depth    int    // 0: outermost
	Parent   *Frame // nil: none

	// What has happened during the call, also in calls inside of it.
	Calls      uint64 // library calls
	Ioctls     uint64
	IoctlTime  int64 // of those whose duration is known
	innerCalls int64 // time of the calls directly inside
	innerSys   int64 // time of the device system calls directly inside

	// Note is the user's own; it is kept for reuse with length 0.
	Note []byte
	// Mark is the users' own, each with an index of its own; a new frame's are 0.
	Mark [markUsers]int

	purpose  Purpose
	launches bool           // a kernel
	inner    bool           // a call inside of it was one that changes memory
	alone    bool           // see Alone
	array    uint64         // bytes of the array that it creates; 0: it creates none, or they are not known
	changes  []MemoryChange // what it did to memory, when it has returned
	text     []byte         // the name that a lookup asks for
	caller   string         // the file that a call of the C library came from, where that is known
}

// Who marks frames: several may follow one tracker.
const (
	LinesMark   = iota // lines of a log
	TablesMark         // tables
	ProfileMark        // profiles and timelines, of which there is one at a time
	markUsers
)

// Self is the time in the call itself: without the calls directly inside of it,
// and without the recorded system calls. It is meant for ended calls.
func (f *Frame) Self() int64 {
	if f.End < 0 {
		return 0
	}
	return max(f.End-f.Start-f.innerCalls-f.innerSys, 0)
}

// Purpose is what the call was made for: that of the outermost call that has one, so that what
// a library does on the way counts as what the program asked for. It is NoPurpose for
// calls inside of such a call.
func (f *Frame) Purpose() Purpose {
	if f.purpose == NoPurpose {
		return NoPurpose
	}
	for p := f.Parent; p != nil; p = p.Parent {
		if p.purpose != NoPurpose {
			return NoPurpose
		}
	}
	return f.purpose
}

// Dur is the duration of an ended call, 0 where it was not seen to return.
func (f *Frame) Dur() int64 { return max(f.End-f.Start, 0) }

// Alone reports whether a call of the runtime's stands for what it would have a driver do: simulated GPUs had
// a runtime that called no driver, and recordings of them are read still. Of a process that has not called the driver yet it may be so of a call
// that is not over, and turn out not to be.
func (f *Frame) Alone() bool { return f.alone && f.Calls == 0 }

// Tracker follows the library calls of all threads and says during which one
// anything else happened. It is for one goroutine.
type Tracker struct {
	Names Names // what the handles of kernels stand for

	threads map[threadKey]*callStack
	mapped  mappings
	driven  map[int32]bool // processes that have called the driver
	found   map[lookupKey]lookup
	free    []*Frame
	ended   []*Frame

	// What most events ask for again: the thread of the one before, and functions.
	last   threadKey
	stack  *callStack // of last; nil: not known
	recent [256]struct {
		key lookupKey
		l   lookup
	}

	returned *Frame                 // by the latest Add
	kept     map[threadKey][]*Frame // calls that name handles, of those that were dropped otherwise
	idle     int                    // how often threads have come to be in no call since forgetIdle; 0: none is in none
}

type threadKey struct{ pid, tid int32 }

type lookupKey struct{ path, name string }

type lookup struct {
	module   Module
	f        *Function
	purpose  Purpose
	launches bool       // a kernel
	array    *allocator // creates arrays; nil: it does not
}

// callStack is a thread's open calls.
type callStack struct {
	open []*Frame
	over int // calls beyond maxDepth
}

// NewTracker returns a Tracker that has seen nothing yet.
func NewTracker() *Tracker {
	return &Tracker{threads: make(map[threadKey]*callStack), found: make(map[lookupKey]lookup), driven: make(map[int32]bool)}
}

// Add takes in the next event and returns the innermost call during which it
// happened, nil for none. For a call that is its own frame, for a return that of
// the call that returns, nil where that was not seen.
//
// A return also ends the calls inside that have not returned: longjmp left them.
// They, and calls that end with their thread or program, are in Ended.
func (t *Tracker) Add(ev *traces.Event) *Frame {
	t.recycle()
	t.Names.add(ev)
	key := threadKey{ev.PID, ev.TID}
	switch ev.Kind {
	case traces.KindCall:
		if ev.Flags&traces.FlagKept != 0 {
			t.keep(key, ev)
			return nil
		}
		return t.call(key, ev)
	case traces.KindReturn:
		if t.endKept(key, ev) {
			return nil
		}
		return t.ret(key, ev)
	case traces.KindExit:
		t.endThread(key)
		if ev.TID == ev.PID {
			t.endProcess(ev.PID)
			delete(t.driven, ev.PID)
		}
		return nil
	case traces.KindExec:
		t.endProcess(ev.PID)
		return nil
	case traces.KindEnd:
		t.endThreads(func(threadKey) bool { return true })
		return nil
	}
	f := t.current(key)
	if ev.Kind >= traces.KindOpen && ev.Kind <= traces.KindIoctl && f != nil {
		f.system(ev)
	}
	return f
}

// keep takes in a call that stands for a handle, and is not counted.
func (t *Tracker) keep(key threadKey, ev *traces.Event) {
	if len(t.kept) >= maxThreads || len(t.kept[key]) >= maxDepth {
		return
	}
	if t.kept == nil {
		t.kept = make(map[threadKey][]*Frame)
	}
	t.kept[key] = append(t.kept[key], t.enter(key, ev))
}

// endKept reports whether an event ends a call without counting it: one that was kept for what it names,
// or one of those before which calls were dropped.
func (t *Tracker) endKept(key threadKey, ev *traces.Event) bool {
	for i, f := range slices.Backward(t.kept[key]) {
		if f.Name != ev.Name {
			continue
		}
		t.Names.returned(f, ev)
		t.free = append(t.free, t.kept[key][i:]...)
		if t.kept[key] = t.kept[key][:i]; i == 0 {
			delete(t.kept, key)
		}
		return true
	}
	if ev.Flags&traces.FlagKept == 0 {
		return false
	}
	if s := t.thread(key); s != nil {
		for at := s.find(ev); at >= 0 && len(s.open) > at; {
			t.pop(s, -1)
		}
	}
	t.recycle() // they are not of those that Ended returns
	return true
}

// Current returns a thread's innermost open call, nil for none.
func (t *Tracker) Current(pid, tid int32) *Frame { return t.current(threadKey{pid, tid}) }

// Ended returns the calls that the latest Add ended without a return of their
// own, each thread's innermost first. Threads have no order among them.
func (t *Tracker) Ended() []*Frame { return t.ended }

// slot is a place for what is remembered of a function.
func slot(name string) uint8 {
	n := len(name)
	if n < 4 {
		return uint8(n)
	}
	return uint8(n) + 7*name[n-1] + 29*name[n-3] + 53*name[n/2] + 101*name[2*n/3]
}

func (t *Tracker) lookup(path, name string) lookup {
	k := lookupKey{path, name}
	r := &t.recent[slot(name)]
	if r.key != k || name == "" {
		r.key, r.l = k, t.search(k)
	}
	return r.l
}

func (t *Tracker) search(k lookupKey) lookup {
	path, name := k.path, k.name
	l, ok := t.found[k]
	if !ok {
		l.module = moduleOf(path, name)
		l.f = l.module.Lookup(name)
		if l.f != nil {
			l.launches, l.purpose, l.array = launches(l.f), purposeOf(l.module, name), arrayOf(l.module, name)
		}
		if len(t.found) >= maxLookups {
			clear(t.found)
		}
		t.found[k] = l
	}
	return l
}

// thread returns the open calls of a thread, nil if none are known.
func (t *Tracker) thread(key threadKey) *callStack {
	if key != t.last || t.stack == nil {
		t.last, t.stack = key, t.threads[key]
	}
	return t.stack
}

func (t *Tracker) current(key threadKey) *Frame {
	if s := t.thread(key); s != nil && len(s.open) > 0 {
		return s.open[len(s.open)-1]
	}
	return nil
}

// recycle takes back the frames that the previous Add ended.
func (t *Tracker) recycle() {
	for _, f := range t.ended {
		if len(t.free) < maxDepth {
			t.free = append(t.free, f)
		}
	}
	clear(t.ended)
	t.ended = t.ended[:0]
	if t.returned != nil {
		t.free = append(t.free, t.returned)
		t.returned = nil
	}
}

func (t *Tracker) frame() *Frame {
	n := len(t.free)
	if n == 0 {
		return &Frame{}
	}
	f := t.free[n-1]
	t.free = t.free[:n-1]
	*f = Frame{Stack: f.Stack[:0], Note: f.Note[:0], text: f.text[:0], changes: f.changes[:0]}
	return f
}

func (t *Tracker) call(key threadKey, ev *traces.Event) *Frame {
	s := t.thread(key)
	if s == nil {
		if len(t.threads) >= maxThreads && !t.forgetIdle() {
			return t.lone(key, ev)
		}
		s = &callStack{}
		t.threads[key], t.last, t.stack = s, key, s
	}
	if len(s.open) >= maxDepth {
		s.over++
		return t.lone(key, ev)
	}
	f := t.enter(key, ev)
	switch f.Module.Library {
	case Driver:
		if !t.driven[ev.PID] && len(t.driven) < maxThreads {
			t.driven[ev.PID] = true
		}
	case Runtime:
		f.alone = f.Function != nil && !t.driven[ev.PID] && !slices.ContainsFunc(s.open, func(p *Frame) bool { return p.Module.Library == Runtime })
	}
	if n := len(s.open); n > 0 {
		f.Parent, f.Depth = s.open[n-1], n
		for p := f.Parent; p != nil; p = p.Parent {
			p.Calls++
		}
		if f.launches {
			t.Names.inherit(f)
		}
	}
	if ev.Flags&traces.FlagNoExit != 0 { // its return will not be seen
		f.End = -1
		t.ended = append(t.ended, f)
		return f
	}
	s.open = append(s.open, f)
	return f
}

// lone is the frame of a call that is not followed.
func (t *Tracker) lone(key threadKey, ev *traces.Event) *Frame {
	f := t.enter(key, ev)
	f.End = -1
	if f.Parent = t.current(key); f.Parent != nil {
		f.Depth = f.Parent.Depth + 1
	}
	t.ended = append(t.ended, f)
	return f
}

func (t *Tracker) enter(key threadKey, ev *traces.Event) *Frame {
	f := t.frame()
	l := t.lookup(ev.Path, ev.Name)
	f.Function, f.Module, f.Name, f.Path, f.launches, f.purpose = l.f, l.module, ev.Name, ev.Path, l.launches, l.purpose
	f.PID, f.TID, f.Args, f.Start = key.pid, key.tid, ev.Args, ev.Time
	if l.f != nil && l.f.Stack > 0 && len(ev.Mem) > 0 && ev.Mem[0].Len == uint32(8*l.f.Stack) {
		for b := ev.Mem[0].In; len(b) >= 8 && len(f.Stack) < maxStack; b = b[8:] {
			f.Stack = append(f.Stack, binary.LittleEndian.Uint64(b))
		}
	}
	if l.array != nil {
		if s, ok := l.array.shape(f, ev); ok {
			f.array = s.bytes()
		}
	}
	t.Names.entered(f, ev)
	if readsVariable(f) {
		f.caller = ev.Text
		b := segment(ev.Mem, f.Args[0], false)
		if i := bytes.IndexByte(b, 0); i >= 0 {
			b = b[:i]
		}
		f.text = append(f.text[:0], b[:min(len(b), maxName)]...)
	}
	return f
}

// ret ends the call that returns, and those inside of it.
func (t *Tracker) ret(key threadKey, ev *traces.Event) *Frame {
	s := t.thread(key)
	if s == nil {
		return nil
	}
	at := s.find(ev)
	if at < 0 {
		if s.over > 0 { // of one that was too deep
			s.over--
		}
		return nil
	}
	for len(s.open)-1 > at {
		t.pop(s, -1)
	}
	f := s.open[at]
	end := int64(-1)
	if ev.Flags&traces.FlagUnfinished == 0 {
		end = f.Start + max(ev.Dur, 0)
		t.Names.returned(f, ev)
	}
	t.pop(s, end)
	t.ended = t.ended[:len(t.ended)-1] // it has its return
	if f.purpose == Allocating {
		t.remember(f, ev)
	}
	t.returned = f
	return f
}

// find returns which open call an event is the return of, -1 for none: the
// innermost of its name that began when the return says, else of its name.
func (s *callStack) find(ev *traces.Event) int {
	for _, start := range [2]int64{ev.Time, ev.Time - ev.Dur} { // a recorder may give either end of the call
		for i, f := range slices.Backward(s.open) {
			if f.Start == start && f.Name == ev.Name {
				return i
			}
		}
		if s.over > 0 { // it may be the return of one that is not followed
			return -1
		}
	}
	for i, f := range slices.Backward(s.open) {
		if f.Name == ev.Name {
			return i
		}
	}
	return -1
}

// pop ends a thread's innermost call.
func (t *Tracker) pop(s *callStack, end int64) {
	n := len(s.open) - 1
	f := s.open[n]
	s.open[n] = nil
	s.open = s.open[:n]
	f.End = end
	if f.Parent != nil && end >= 0 {
		f.Parent.innerCalls += end - f.Start
	}
	t.ended = append(t.ended, f)
	if n == 0 {
		t.idle++
	}
}

// forgetIdle forgets threads that are in no call, and reports whether there were any.
func (t *Tracker) forgetIdle() bool {
	if t.idle == 0 {
		return false
	}
	for k, s := range t.threads {
		if len(s.open) == 0 {
			delete(t.threads, k)
		}
	}
	t.idle, t.stack = 0, nil
	return true
}

func (t *Tracker) endThread(key threadKey) {
	s := t.threads[key]
	if s == nil {
		return
	}
	for len(s.open) > 0 {
		t.pop(s, -1)
	}
	delete(t.threads, key)
	delete(t.kept, key)
	t.stack = nil
}

func (t *Tracker) endProcess(pid int32) {
	t.endThreads(func(k threadKey) bool { return k.pid == pid })
}

// endThreads ends the calls of threads, in the order of their ids.
func (t *Tracker) endThreads(which func(threadKey) bool) {
	var keys []threadKey
	for k := range t.threads {
		if which(k) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b threadKey) int { return cmp.Or(cmp.Compare(a.pid, b.pid), cmp.Compare(a.tid, b.tid)) })
	for _, k := range keys {
		t.endThread(k)
	}
}

// system counts a system call: an ioctl in all calls that it happened during.
func (f *Frame) system(ev *traces.Event) {
	dur := int64(0)
	if ev.Flags&(traces.FlagNoExit|traces.FlagUnfinished) == 0 {
		dur = max(ev.Dur, 0)
	}
	f.innerSys += dur
	if ev.Kind != traces.KindIoctl {
		return
	}
	for ; f != nil; f = f.Parent {
		f.Ioctls++
		f.IoctlTime += dur
	}
}
