package nccl

import (
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nvtrace/nvattach/api"
	"nvtrace/traces"
)

const lib, driver = "/usr/lib/libnccl.so.2", "/usr/lib/libcuda.so.1"

// play gives a Follower the events of a process.
type play struct {
	pid     int32
	now     int64
	tracker *api.Tracker
	f       *Follower
}

func newPlay(pid int32) *play { return &play{pid, 100, api.NewTracker(), New()} }

func (p *play) add(ev *traces.Event) {
	ev.PID, ev.TID, ev.FD = p.pid, p.pid, -1
	p.f.Add(ev, p.tracker.Add(ev))
}

// enter begins a call; the function that it returns ends it.
func (p *play) enter(name, path string, mem []traces.Seg, args ...uint64) func(ret int64, out ...traces.Seg) {
	start := p.now
	ev := &traces.Event{Kind: traces.KindCall, Time: start, Name: name, Path: path, Mem: mem}
	copy(ev.Args[:], args)
	p.add(ev)
	p.now += 10
	return func(ret int64, out ...traces.Seg) {
		p.add(&traces.Event{Kind: traces.KindReturn, Time: start, Dur: p.now - start, Name: name, Path: path, Ret: ret, Mem: out})
		p.now += 10
	}
}

// stack is the words of a call's stack.
func stack(words ...uint64) []traces.Seg {
	var b []byte
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return []traces.Seg{{Addr: 0x7000, Len: uint32(len(b)), In: b}}
}

// written is what a call has written to an address.
func written(at, value uint64) traces.Seg {
	return traces.Seg{Addr: at, Len: 8, Out: binary.LittleEndian.AppendUint64(nil, value)}
}

// initRank makes a communicator of a unique id.
func (p *play) initRank(handle, id uint64, size, rank uint64) {
	words := make([]uint64, 16)
	words[0] = id
	p.enter("ncclCommInitRank", lib, stack(words...), 0x1000, size, rank)(0, written(0x1000, handle))
}

func (p *play) allReduce(handle, count, stream uint64) func(int64, ...traces.Seg) {
	return p.enter("ncclAllReduce", lib, stack(stream), 0, 0, count, 7, 0, handle)
}

// launch launches a kernel, which the GPU runs for so long.
func (p *play) launch(stream uint64, dur int64) {
	at := p.now
	p.enter("cuLaunchKernelEx", driver, nil, 1, 2)(0)
	p.add(&traces.Event{
		Kind: traces.KindGPU, Time: p.now, Name: "cuLaunchKernelEx", Path: driver,
		Args: [6]uint64{uint64(at), uint64(at) + 50, uint64(dur), stream},
	})
}

func TestCollectives(t *testing.T) {
	p := newPlay(1)
	p.initRank(0xc0, 99, 4, 3)
	done := p.allReduce(0xc0, 1024, 0x55) // at 120
	p.launch(0x55, 500)                   // at 130
	done(0)
	p.enter("ncclBcast", lib, nil, 0, 16, 9, 2, 0xc0, 0x55)(0)

	// A wrapper of NCCL's own is one call.
	outer := p.enter("ncclBroadcast", lib, nil, 0, 0, 8, 1, 1, 0xc0)
	p.enter("pncclBroadcast", lib, nil, 0, 0, 8, 1, 1, 0xc0)(0)
	outer(0)

	want := []Op{
		{Name: "AllReduce", Type: 7, Red: 0, Root: -1, Count: 1024, Seq: 1, Stream: 0x55, PID: 1, TID: 1, Enter: 120, Exit: 150, Launch: 130, Begin: 180, End: 680},
		{Name: "Broadcast", Type: 9, Red: -1, Root: 2, Count: 16, Seq: 2, Stream: 0x55, PID: 1, TID: 1, Enter: 160, Exit: 170, Launch: -1, Begin: -1, End: -1},
		{Name: "Broadcast", Type: 1, Red: -1, Root: 1, Count: 8, Seq: 3, Stream: p.f.Ops[2].Stream, PID: 1, TID: 1, Enter: 180, Exit: p.f.Ops[2].Exit, Launch: -1, Begin: -1, End: -1},
	}
	if d := cmp.Diff(want, p.f.Ops); d != "" {
		t.Error(d)
	}
	o := &p.f.Ops[0]
	if begin, end, in, ok := o.In(); begin != 120 || end != 680 || in != 10+500 || !ok || o.Bytes() != 4096 || o.TypeName() != "float32" || o.RedName() != "sum" {
		t.Errorf("in it from %d to %d for %d, %v; %d bytes of %s, %s", begin, end, in, ok, o.Bytes(), o.TypeName(), o.RedName())
	}
	c := p.f.Comms[0]
	if c.Rank != 3 || c.Size != 4 || c.ID == 0 {
		t.Errorf("%+v", c)
	}
}

// TestTracked: times that were seen in the GPU's channels are as good as those of events.
func TestTracked(t *testing.T) {
	p := newPlay(1)
	p.initRank(0xc0, 99, 2, 0)
	done := p.allReduce(0xc0, 1, 0x55)
	at := p.now
	p.enter("cuLaunchKernelEx", driver, nil, 1, 2)(0)
	ev := &traces.Event{Time: p.now, Name: "cuLaunchKernelEx", Path: driver}
	ev.SetWork(&traces.Work{By: traces.ByTracker, Call: at, Start: at + 50, Dur: 700, Stream: 0x55, Margin: 1000})
	p.add(ev)
	done(0)
	if o := &p.f.Ops[0]; !p.f.GPU || o.Begin != at+50 || o.End != at+750 {
		t.Errorf("%+v", o)
	}
}

func TestGroup(t *testing.T) {
	p := newPlay(1)
	p.initRank(0xc0, 99, 2, 0)
	p.enter("ncclGroupStart", lib, nil)(0)
	p.enter("ncclGroupStart", lib, nil)(0)
	p.allReduce(0xc0, 1, 0x55)(0)
	p.enter("ncclSend", lib, nil, 0, 5, 7, 1, 0xc0, 0x66)(0)
	p.enter("ncclGroupEnd", lib, nil)(0)
	if p.f.Ops[0].Exit >= 0 {
		t.Error("the inner group ends nothing")
	}
	end := p.enter("ncclGroupEnd", lib, nil)
	p.launch(0x55, 100)
	p.launch(0x66, 300)
	end(0)
	a, s := p.f.Ops[0], p.f.Ops[1]
	if a.Group != 2 || s.Group != 2 || a.Exit != p.now-10 || s.Exit != a.Exit || a.End-a.Begin != 100 || s.End-s.Begin != 300 {
		t.Errorf("%+v\n%+v", a, s)
	}
	if !s.PointToPoint() || s.Root != 1 || s.Seq != 1 || s.Count != 5 {
		t.Errorf("%+v", s)
	}

	// What hangs has no end.
	p.enter("ncclGroupStart", lib, nil)(0)
	p.allReduce(0xc0, 2, 0x55)(0)
	p.enter("ncclGroupEnd", lib, nil)
	if o := p.f.Ops[2]; o.Exit >= 0 || o.Seq != 2 {
		t.Errorf("%+v", o)
	}
	if _, _, _, ok := p.f.Ops[2].In(); ok {
		t.Error("it is over")
	}
}

// TestUnfinished: a GPU that was not seen to be through is not.
func TestUnfinished(t *testing.T) {
	p := newPlay(1)
	p.initRank(0xc0, 99, 2, 0)
	done := p.allReduce(0xc0, 1, 0x55)
	at := p.now
	p.enter("cuLaunchKernelEx", driver, nil, 1, 2)(0)
	done(0)
	p.add(&traces.Event{
		Kind: traces.KindGPU, Flags: traces.FlagUnfinished, Time: 1e9, Name: "cuLaunchKernelEx", Path: driver,
		Args: [6]uint64{uint64(at), uint64(at) + 50, 1e6, 0x55},
	})
	if o := p.f.Ops[0]; !o.NotOver || o.End >= 0 || o.Begin != at+50 {
		t.Errorf("%+v", o)
	}
}

// TestIdentity: all ranks of a communicator find the same ID, and ranks of others do not.
func TestIdentity(t *testing.T) {
	split := func(p *play, color, key, handle uint64) {
		p.enter("ncclCommSplit", lib, nil, 0xc0, color, key, 0x2000, 0)(0, written(0x2000, handle))
	}
	id := func(pid int32, color uint64) (list []uint64) {
		p := newPlay(pid)
		p.initRank(0xc0, 99, 4, uint64(pid))
		split(p, 1<<32-1, 0, 0) // NCCL_SPLIT_NOCOLOR: this rank gets none, others may
		split(p, color, 7, 0xd0)
		p.initRank(0xe0, 98, 4, uint64(pid))
		for _, c := range p.f.Comms {
			list = append(list, c.ID)
		}
		if c := p.f.Comms[1]; c.Parent != list[0] || c.Color != int32(color) || c.Key != 7 || c.Rank != -1 {
			t.Errorf("%+v", c)
		}
		return list
	}
	a, b, other := id(1, 5), id(2, 5), id(3, 6)
	if !cmp.Equal(a, b) {
		t.Errorf("%x, %x", a, b)
	}
	if a[0] != other[0] || a[1] == other[1] || a[0] == a[2] {
		t.Errorf("%x, %x", a, other)
	}

	// A handle that is destroyed, and given out again, is another communicator.
	p := newPlay(1)
	p.initRank(0xc0, 99, 2, 0)
	p.allReduce(0xc0, 1, 0)(0)
	p.enter("ncclCommAbort", lib, nil, 0xc0)(0)
	p.initRank(0xc0, 97, 2, 0)
	p.allReduce(0xc0, 1, 0)(0)
	if o := p.f.Ops; len(o) != 2 || o[0].Comm == o[1].Comm || o[1].Seq != 1 || !p.f.Comms[0].Abort || p.f.Comms[0].Ended < 0 {
		t.Errorf("%+v, %+v", o, p.f.Comms)
	}

	// Of one from before the recording no ID is known, and one that failed is none.
	p = newPlay(1)
	p.allReduce(0xaa, 1, 0)(0)
	p.enter("ncclCommInitRank", lib, stack(make([]uint64, 16)...), 0x1000, 2, 0)(5)
	if c := p.f.Comms; len(c) != 1 || c[0].ID != 0 || c[0].Rank != -1 {
		t.Errorf("%+v", c)
	}
}

func TestStem(t *testing.T) {
	for name, want := range map[string]string{
		"ncclAllReduce": "AllReduce", "pncclAllReduceConfig": "AllReduce", "ncclBcast": "Broadcast", "ncclCommInitRankConfig": "CommInitRankConfig",
	} {
		if got := stem(name); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
}
