// Package nccl finds the collectives of NCCL in recorded library calls: which communicator and which
// of its operations a call is, what it moves, and when the GPU ran it.
//
// It knows one process. What the ranks of a job mean together is for whoever has all of them.
package nccl

import (
	"encoding/binary"
	"hash/fnv"
	"slices"
	"strings"

	"nvtrace/nvattach/api"
	"nvtrace/traces"
)

// Comm is a communicator, or what one rank knows of it.
type Comm struct {
	// ID is equal in all ranks of the communicator: a hash of its unique id, or, of a split, of its parent
	// and color. 0: it was made before recording began, or in a way that tells no id.
	ID     uint64
	Rank   int32 // of this process in it; -1: not known
	Size   int32 // ranks; -1: not known
	Parent uint64
	Color  int32 // of a split
	Key    int32 // likewise: the order of ranks
	Since  int64 // when it was made; -1: not known
	Ended  int64 // when it was destroyed or aborted; -1: it was not
	Abort  bool
}

// Op is a call of a collective, or of a send or receive.
type Op struct {
	Comm   int32  // index in [Follower.Comms]
	Name   string // "AllReduce"
	Type   int8   // ncclDataType_t, -1: none
	Red    int32  // ncclRedOp_t, -1: none
	Root   int32  // root, or peer of a send or receive; -1: none
	Count  uint64 // elements, as the program says it
	Seq    uint64 // which of the communicator's collectives it is, from 1 on; of a send or receive, which of those to or from the peer
	Stream uint64
	PID    int32
	TID    int32
	// Group is the number of operations in the same group of calls, 0 where it stands alone.
	Group int32

	Enter, Exit int64 // of the call, of a group's end; Exit is -1 where it has not returned
	Result      int32 // ncclResult_t; 0 of a call that has not returned
	Launch      int64 // when its kernel's launch began, in the call; -1: none was recorded
	Begin, End  int64 // on the GPU; -1: not known
	NotOver     bool  // the GPU was not over with it when that was looked at last
}

// PointToPoint reports whether the operation is between two ranks.
func (o *Op) PointToPoint() bool { return o.Name == "Send" || o.Name == "Recv" }

// typeNames and typeSizes are those of ncclDataType_t (nccl.h).
var (
	typeNames = [...]string{"int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2"}
	typeSizes = [...]uint64{1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1}
	redNames  = [...]string{"sum", "prod", "max", "min", "avg"}
)

// TypeName is the type of the elements, "" where there is none, or a later version's.
func (o *Op) TypeName() string {
	if o.Type < 0 || int(o.Type) >= len(typeNames) {
		return ""
	}
	return typeNames[o.Type]
}

// RedName is the reduction: "sum"; "" for none, or a program's own.
func (o *Op) RedName() string {
	if o.Red < 0 || int(o.Red) >= len(redNames) {
		return ""
	}
	return redNames[o.Red]
}

// TypeNamed is the type that has a name, -1 for none that is known.
func TypeNamed(name string) int8 { return int8(slices.Index(typeNames[:], name)) }

// RedNamed is the reduction that has a name, likewise.
func RedNamed(name string) int32 { return int32(slices.Index(redNames[:], name)) }

// Bytes is how much this rank gives, or gets where it gives nothing; 0 where the type's size is not known.
func (o *Op) Bytes() uint64 {
	if o.Type < 0 || int(o.Type) >= len(typeSizes) {
		return 0
	}
	return o.Count * typeSizes[o.Type]
}

// In returns how long the operation lasted as its rank saw it: in the call up to the launch of the kernel, in
// which NCCL may wait for others, and on the GPU; ok is false where it is not over, or no GPU time is known: the
// call itself only puts it into a queue. begin and end are when the rank came to it and when it was over.
func (o *Op) In() (begin, end, in int64, ok bool) {
	if o.NotOver || o.Exit < 0 || o.End < 0 || o.Launch < 0 {
		return o.Enter, -1, 0, false
	}
	return o.Enter, max(o.End, o.Exit), max(o.Launch-o.Enter, 0) + o.End - o.Begin, true
}

// Bounds of what a Follower keeps.
const (
	MaxOps   = 1 << 20
	maxComms = 1 << 14
	maxKeys  = 1 << 16
)

// Follower finds the collectives of a recording. It is for one goroutine.
type Follower struct {
	Ops   []Op
	Comms []Comm
	More  uint64 // operations beyond MaxOps
	// GPU says that times of GPUs are in the recording.
	GPU bool

	taken   int64 // operations that Ops had before its first; indices of operations count them
	handles map[handleKey]int32
	states  []commState // by index of Comms
	threads map[threadKey]*thread
	waiting map[launchKey][]int64 // operations by the launch of their kernel
}

type (
	handleKey struct {
		pid    int32
		handle uint64
	}
	threadKey struct{ pid, tid int32 }
	launchKey struct {
		threadKey
		at int64
	}
)

// commState is what is counted in a communicator.
type commState struct {
	collectives uint64
	peers       map[peerKey]uint64
	children    uint64 // splits and the like
}

type peerKey struct {
	peer int32
	send bool
}

// thread is what a thread is at.
type thread struct {
	depth   int     // of groups
	group   []int64 // operations of the group
	running []int64 // those whose kernels are launched by what the thread is in now
}

// New returns a Follower that has seen nothing yet.
func New() *Follower {
	return &Follower{
		handles: make(map[handleKey]int32), threads: make(map[threadKey]*thread), waiting: make(map[launchKey][]int64),
	}
}

// op returns an operation, nil if it was taken out of Ops.
func (f *Follower) op(i int64) *Op {
	if i < f.taken {
		return nil
	}
	return &f.Ops[i-f.taken]
}

// inside reports whether a call of NCCL's is around a frame, which is then NCCL's own.
func inside(f *api.Frame) bool {
	for p := f.Parent; p != nil; p = p.Parent {
		if p.Module.Library == api.NCCL {
			return true
		}
	}
	return false
}

// stem is a function's name without what it begins and ends with: "AllReduce" of pncclAllReduceConfig.
func stem(name string) string {
	name = strings.TrimPrefix(strings.TrimPrefix(name, "p"), "nccl")
	if s, ok := strings.CutSuffix(name, "Config"); ok && !strings.HasPrefix(name, "Comm") {
		name = s
	}
	if name == "Bcast" {
		return "Broadcast"
	}
	return name
}

// collective are the functions that move data.
var collective = map[string]bool{
	"AllReduce": true, "AllGather": true, "ReduceScatter": true, "Reduce": true, "Broadcast": true, "AlltoAll": true,
	"AllToAll": true, "Gather": true, "Scatter": true, "Send": true, "Recv": true,
}

// Add takes in an event; frame is what the tracker that follows the recording says of it.
func (f *Follower) Add(ev *traces.Event, frame *api.Frame) {
	switch ev.Kind {
	case traces.KindCall:
		if frame == nil {
			return
		}
		if frame.Module.Library == api.NCCL && !inside(frame) {
			f.call(ev, frame)
		} else if frame.Module.Library == api.Driver && strings.Contains(frame.Name, "Launch") {
			f.launch(ev, frame)
		}
	case traces.KindReturn:
		if frame != nil && frame.Module.Library == api.NCCL && !inside(frame) && ev.Flags&traces.FlagUnfinished == 0 {
			f.returned(ev, frame)
		}
	case traces.KindGPU:
		f.work(ev)
	case traces.KindExit, traces.KindExec:
		if ev.TID == ev.PID || ev.Kind == traces.KindExec {
			for k := range f.handles {
				if k.pid == ev.PID {
					delete(f.handles, k)
				}
			}
		}
		delete(f.threads, threadKey{ev.PID, ev.TID})
	}
}

func (f *Follower) thread(ev *traces.Event) *thread {
	key := threadKey{ev.PID, ev.TID}
	t := f.threads[key]
	if t == nil {
		if len(f.threads) >= maxKeys {
			clear(f.threads)
		}
		t = new(thread)
		f.threads[key] = t
	}
	return t
}

// comm returns the communicator of a call; it is made up where it was made before recording began.
func (f *Follower) comm(ev *traces.Event, frame *api.Frame) int32 {
	handle, _ := frame.Arg("comm", ev)
	key := handleKey{ev.PID, handle}
	if i, ok := f.handles[key]; ok {
		return i
	}
	return f.made(key, Comm{Rank: -1, Size: -1, Since: -1})
}

// made takes in a new communicator.
func (f *Follower) made(key handleKey, c Comm) int32 {
	c.Ended = -1
	if len(f.Comms) >= maxComms {
		return f.handles[key] // the first one stands for all, which nobody will compare: none has its ID
	}
	i := int32(len(f.Comms))
	f.Comms, f.states = append(f.Comms, c), append(f.states, commState{peers: make(map[peerKey]uint64)})
	f.handles[key] = i
	return i
}

func number(frame *api.Frame, ev *traces.Event, names ...string) int64 {
	for _, name := range names {
		if v, ok := frame.Arg(name, ev); ok {
			return int64(v)
		}
	}
	return -1
}

func (f *Follower) call(ev *traces.Event, frame *api.Frame) {
	t := f.thread(ev)
	switch name := stem(frame.Name); name {
	case "GroupStart":
		t.depth++
	case "GroupEnd":
		if t.depth == 1 {
			t.running = append(t.running[:0], t.group...)
		}
	case "CommDestroy", "CommAbort":
		i := f.comm(ev, frame)
		handle, _ := frame.Arg("comm", ev)
		if f.Comms[i].Ended < 0 {
			f.Comms[i].Ended, f.Comms[i].Abort = ev.Time, name == "CommAbort"
		}
		delete(f.handles, handleKey{ev.PID, handle})
	default:
		if collective[name] {
			f.begin(ev, frame, t, name)
		}
	}
}

// begin takes in an operation.
func (f *Follower) begin(ev *traces.Event, frame *api.Frame, t *thread, name string) {
	at := f.comm(ev, frame)
	s := &f.states[at]
	op := Op{
		Comm: at, Name: name, PID: ev.PID, TID: ev.TID, Enter: ev.Time, Exit: -1, Launch: -1, Begin: -1, End: -1,
		Type: int8(number(frame, ev, "datatype")), Red: int32(number(frame, ev, "op")), Root: int32(number(frame, ev, "root", "peer")),
		Count: uint64(max(number(frame, ev, "count", "sendcount", "recvcount"), 0)),
	}
	op.Stream, _ = frame.Arg("stream", ev)
	if op.PointToPoint() {
		key := peerKey{op.Root, name == "Send"}
		if len(s.peers) >= maxKeys {
			clear(s.peers)
		}
		s.peers[key]++
		op.Seq = s.peers[key]
	} else {
		s.collectives++
		op.Seq = s.collectives
	}
	if len(f.Ops) >= MaxOps {
		f.More++
		return
	}
	i := f.taken + int64(len(f.Ops))
	f.Ops = append(f.Ops, op)
	if t.depth > 0 {
		t.group = append(t.group, i)
	} else {
		t.running = append(t.running[:0], i)
	}
}

// launch notes that a call of NCCL's launches a kernel.
func (f *Follower) launch(ev *traces.Event, frame *api.Frame) {
	t := f.threads[threadKey{ev.PID, ev.TID}]
	if t == nil || len(t.running) == 0 || !inside(frame) {
		return
	}
	for _, i := range t.running {
		if o := f.op(i); o != nil && o.Launch < 0 {
			o.Launch = ev.Time
		}
	}
	if len(f.waiting) >= maxKeys {
		clear(f.waiting)
	}
	f.waiting[launchKey{threadKey{ev.PID, ev.TID}, ev.Time}] = append([]int64(nil), t.running...)
}

// work takes in what a GPU did.
func (f *Follower) work(ev *traces.Event) {
	w := ev.Work()
	if !w.By.Called() {
		return
	}
	f.GPU = true
	key := launchKey{threadKey{ev.PID, ev.TID}, w.Call}
	ops, ok := f.waiting[key]
	if !ok {
		return
	}
	delete(f.waiting, key)
	// A group may have operations on several streams, and launches a kernel for each.
	exact := false
	for _, i := range ops {
		o := f.op(i)
		exact = exact || o != nil && o.Stream == w.Stream
	}
	for _, i := range ops {
		o := f.op(i)
		if o == nil || exact && o.Stream != w.Stream {
			continue
		}
		if o.Begin < 0 || w.Start < o.Begin {
			o.Begin = w.Start
		}
		if ev.Flags&traces.FlagUnfinished != 0 {
			o.NotOver = true
		} else {
			o.End = max(o.End, w.Start+w.Dur)
		}
	}
}

func (f *Follower) returned(ev *traces.Event, frame *api.Frame) {
	t := f.thread(ev)
	end := frame.Start + max(ev.Dur, 0)
	switch name := stem(frame.Name); name {
	case "GroupEnd":
		if t.depth > 0 {
			t.depth--
		}
		if t.depth == 0 {
			for _, i := range t.group {
				if o := f.op(i); o != nil {
					o.Exit, o.Result, o.Group = end, int32(ev.Ret), int32(len(t.group))
				}
			}
			t.group, t.running = t.group[:0], t.running[:0]
		}
	case "CommInitRank", "CommInitRankConfig", "CommInitRankScalable", "CommSplit", "CommShrink":
		f.commMade(ev, frame, name)
	default:
		if collective[name] && t.depth == 0 {
			for _, i := range t.running {
				if o := f.op(i); o != nil {
					o.Exit, o.Result = end, int32(ev.Ret)
				}
			}
			t.running = t.running[:0]
		}
	}
}

// commMade takes in a communicator that a call has returned.
func (f *Follower) commMade(ev *traces.Event, frame *api.Frame, name string) {
	const inProgress = 7 // ncclInProgress: nccl.h
	if ev.Ret != 0 && ev.Ret != inProgress {
		return
	}
	c := Comm{Rank: -1, Size: -1, Since: frame.Start + max(ev.Dur, 0)}
	var id []byte
	to := "newcomm"
	switch name {
	case "CommInitRank", "CommInitRankConfig":
		to = "comm"
		c.Rank, c.Size = int32(number(frame, ev, "rank")), int32(number(frame, ev, "nranks"))
		const words = 128 / 8 // ncclUniqueId: nccl.h
		if len(frame.Stack) >= words {
			for _, w := range frame.Stack[:words] {
				id = binary.LittleEndian.AppendUint64(id, w)
			}
		}
	case "CommInitRankScalable":
		c.Rank, c.Size = int32(number(frame, ev, "myrank")), int32(number(frame, ev, "nranks"))
		at, _ := frame.Arg("commIds", ev)
		for i := range ev.Mem {
			if s := &ev.Mem[i]; s.Addr == at && len(s.Out) == 128 {
				id = s.Out
			}
		}
	default:
		parent, _ := frame.Arg("comm", ev)
		i, known := f.handles[handleKey{ev.PID, parent}]
		if !known {
			break
		}
		f.states[i].children++ // also where this rank is in no part
		if f.Comms[i].ID == 0 {
			break
		}
		c.Parent = f.Comms[i].ID
		id = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, c.Parent), f.states[i].children)
		if name == "CommSplit" {
			c.Color, c.Key = int32(number(frame, ev, "color")), int32(number(frame, ev, "key"))
			id = binary.LittleEndian.AppendUint32(id, uint32(c.Color))
		} else if f.Comms[i].Size >= 0 {
			c.Size = f.Comms[i].Size - int32(number(frame, ev, "excludeRanksCount"))
		}
	}
	if id != nil {
		h := fnv.New64a()
		_, _ = h.Write(id)
		c.ID = h.Sum64()
	}
	if handle, ok := frame.Arg(to, ev); ok && handle != 0 {
		f.made(handleKey{ev.PID, handle}, c)
	}
}
