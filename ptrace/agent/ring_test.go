package agent

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"nvtrace/ptrace"
)

// newRing makes a ring of a process that does not exist, in memory of our own.
func newRing(a *Agent, slot int) *ring {
	p := a.procs[1]
	if p == nil {
		p = &Process{a: a, PID: 1, started: true, shared: make([]byte, sharedSize), rings: make([]*ring, maxSlots)}
		p.hooks = []*hookSite{{hook: &Hook{Name: "f"}}}
		a.procs[1] = p
	}
	r := &ring{p: p, slot: slot, tid: 100 + slot, hole: ^uint64(0), head: sharedRings + slot*rheadSize, data: make([]byte, ringSize)}
	p.rings[slot] = r
	a.rings = append(a.rings, r)
	return r
}

// reserve does what the agent does.
func (r *ring) reserve(size int, kind, state byte) []byte {
	head := load64(r.p.shared, r.head)
	if room := int(ringSize - head%ringSize); size > room {
		h := r.data[head%ringSize:]
		binary.LittleEndian.PutUint32(h[recSize:], uint32(room))
		h[recKind], h[recState] = kindPad, stateVoid
		store64(h, recPos, head)
		head += uint64(room)
	}
	h := r.data[head%ringSize:][:size]
	clear(h)
	binary.LittleEndian.PutUint32(h[recSize:], uint32(size))
	h[recKind], h[recState] = kind, state
	store64(h, recPos, head)
	store64(r.p.shared, r.head, head+uint64(size))
	return h
}

func end(h []byte, t int64) []byte {
	binary.LittleEndian.PutUint64(h[recEnd:], uint64(t))
	return h
}

// collector keeps the ends of records.
func collector() (*Agent, *[]int64) {
	var ends []int64
	a := New(&Options{Record: func(_ *Process, r *Record) { ends = append(ends, r.End) }})
	return a, &ends
}

func (a *Agent) giveAll() {
	for {
		if _, ok := a.Peek(); !ok {
			return
		}
		a.Deliver()
	}
}

// TestMerge: records of several threads come by time; none before one that is
// about to be completed.
func TestMerge(t *testing.T) {
	a, ends := collector()
	x, y := newRing(a, 0), newRing(a, 1)
	now := nanotime() - visible
	end(x.reserve(128, kindIoctl, stateDone), now-50)
	end(y.reserve(128, kindIoctl, stateDone), now-60)
	open := x.reserve(192, kindIoctl, stateEnding)
	end(y.reserve(128, kindIoctl, stateDone), now-40)
	long := x.reserve(128, kindIoctl, stateInCall)
	end(y.reserve(128, kindReturn, stateVoid), now-45)
	a.Collect()
	a.giveAll()
	if len(*ends) != 2 || (*ends)[0] != now-60 || (*ends)[1] != now-50 {
		t.Fatalf("given out: %v of %d", *ends, now)
	}
	end(open, now-45)[recState] = stateDone
	a.Collect()
	a.giveAll()
	if len(*ends) != 4 || (*ends)[2] != now-45 || (*ends)[3] != now-40 {
		t.Fatalf("given out: %v of %d", *ends, now)
	}
	if len(x.pend) != 1 || len(y.pend) != 0 || x.tail != 128+192 {
		t.Errorf("left: %v, %v", x.pend, y.pend)
	}
	// A thread that ends in a call.
	long[recState] = stateInCall
	x.end(nanotime() - visible)
	var last Record
	a.o.Record = func(_ *Process, r *Record) { last = *r }
	a.Collect()
	a.giveAll()
	if !last.Unfinished || last.TID != 100 || !a.Active() {
		t.Errorf("%+v", last)
	}
	y.end(nanotime() - visible)
	a.Collect()
	a.giveAll()
	if a.Active() {
		t.Error("active without rings")
	}
}

// TestMergePatience: a record that is never completed delays others for a
// moment only.
func TestMergePatience(t *testing.T) {
	a, ends := collector()
	x, y := newRing(a, 0), newRing(a, 1)
	x.reserve(128, kindCall, stateEnding)
	store64(x.p.shared, x.head, load64(x.p.shared, x.head)+128) // and one without a header
	end(y.reserve(128, kindIoctl, stateDone), nanotime())
	for begin := nanotime(); len(*ends) == 0; {
		a.Collect()
		a.giveAll()
		if nanotime()-begin > 100*patience {
			t.Fatal("it is waited for")
		}
	}
}

// TestCollectorPaused: a record that was completed long after the look at the rings began keeps its time;
// one that says it ends in the future does not.
func TestCollectorPaused(t *testing.T) {
	a, _ := collector()
	x := newRing(a, 0)
	ended := nanotime()
	end(x.reserve(128, kindCall, stateDone), ended)
	future := ended + 3600e9
	end(x.reserve(128, kindCall, stateDone), future)
	a.look(ended - 3*patience)
	if got := x.pend[0].end; got != ended {
		t.Errorf("ended %d ns earlier than it says", ended-got)
	}
	if got := x.pend[1].end; got > nanotime() || got < ended {
		t.Errorf("ended at %d, %d ns in the future", got, got-nanotime())
	}
}

// TestRingHoles: a thread was stopped, or has left for good, before it could write
// the headers of records. Others come nevertheless, and so do those when they are written.
func TestRingHoles(t *testing.T) {
	a, ends := collector()
	r := newRing(a, 0)
	wait := func(n int) {
		t.Helper()
		for begin := nanotime(); len(*ends) < n; {
			a.Collect()
			a.giveAll()
			if nanotime()-begin > 100*patience {
				t.Fatalf("%d records of %d", len(*ends), n)
			}
		}
	}
	hole := func(size uint64) (at uint64) {
		at = load64(r.p.shared, r.head)
		store64(r.p.shared, r.head, at+size)
		return at
	}
	write := func(at uint64, size uint32, end int64) {
		h := r.data[at%ringSize:][:size]
		binary.LittleEndian.PutUint32(h[recSize:], size)
		binary.LittleEndian.PutUint64(h[recEnd:], uint64(end))
		h[recKind], h[recState] = kindIoctl, stateDone
		store64(h, recPos, at)
	}
	end(r.reserve(128, kindIoctl, stateDone), 1)
	one, two := hole(192), hole(128)
	end(r.reserve(128, kindIoctl, stateDone), nanotime())
	three := hole(256)
	end(r.reserve(128, kindIoctl, stateDone), nanotime())
	wait(3)
	if len(r.holes) != 2 || r.tail != one {
		t.Errorf("holes %v, tail %d", r.holes, r.tail)
	}
	write(two, 128, nanotime())
	wait(4)
	if r.tail != one {
		t.Errorf("tail %d", r.tail)
	}
	write(one, 192, 7) // its time is that of long ago
	wait(5)
	if r.tail != three {
		t.Errorf("tail %d, want %d", r.tail, three)
	}
	end(r.reserve(128, kindIoctl, stateDone), nanotime())
	wait(6)
	for i := range (*ends)[1:] {
		if (*ends)[i] > (*ends)[i+1] {
			t.Errorf("out of order: %v", *ends)
		}
	}
	r.end(nanotime())
	a.Finish()
	a.giveAll()
	if len(*ends) != 6 || a.Active() || a.stats.Garbage != 0 {
		t.Errorf("%d records, active %v, %+v", len(*ends), a.Active(), a.stats)
	}
}

// TestRingWrap: records of all sizes, through the end of the ring many times.
func TestRingWrap(t *testing.T) {
	a, ends := collector()
	r := newRing(a, 0)
	for i := range 5000 {
		end(r.reserve(128+i%700*64, kindIoctl, stateDone), int64(i))
		a.Collect()
		a.giveAll()
	}
	if len(*ends) != 5000 || a.stats.Garbage != 0 || r.tail != load64(r.p.shared, r.head) || r.tail < 10*ringSize {
		t.Errorf("%d records, %+v, tail %d", len(*ends), a.stats, r.tail)
	}
}

// TestRecordBounds: segments that lie elsewhere than in the record are refused.
func TestRecordBounds(t *testing.T) {
	le := binary.LittleEndian
	for _, c := range []struct {
		size, in, out, inoff, outoff uint32
		n                            byte
		ok                           bool
	}{
		{16, 16, 16, 160, 176, 1, true},
		{16, 8, 0, 160, 0, 1, true},
		{0, 0, 0, 0, 0, 0, true},
		{16, 17, 0, 160, 0, 1, false},
		{16, 16, 0, 180, 0, 1, false},
		{16, 16, 0, 0, 0, 1, false},
		{math.MaxUint32, math.MaxUint32, 0, 1, 0, 1, false},
		{16, 16, 16, 160, math.MaxUint32, 1, false},
		{16, 16, 16, 160, 176, 3, false},
		{16, 16, 16, 160, 176, 255, false},
	} {
		given := 0
		a := New(&Options{Record: func(*Process, *Record) { given++ }})
		r := newRing(a, 0)
		h := end(r.reserve(192, kindIoctl, stateDone), 1)
		h[recNSeg] = c.n
		le.PutUint32(h[recordSize+8:], c.size)
		le.PutUint32(h[recordSize+12:], c.in)
		le.PutUint32(h[recordSize+16:], c.out)
		le.PutUint32(h[recordSize+20:], c.inoff)
		le.PutUint32(h[recordSize+24:], c.outoff)
		a.Collect()
		a.giveAll()
		if (given == 1) != c.ok {
			t.Errorf("%+v: %d records", c, given)
		}
	}
}

// FuzzRing: whatever a program writes into its ring, the reader stays within its
// bounds.
func FuzzRing(f *testing.F) {
	a, _ := collector()
	r := newRing(a, 0)
	end(r.reserve(192, kindIoctl, stateDone), 5)
	r.reserve(128, kindCall, stateEnding)
	r.reserve(256, kindReturn, stateDone)
	f.Add(load64(r.p.shared, r.head), append([]byte(nil), r.data[:1024]...), uint64(0), uint8(0))
	f.Add(uint64(1)<<63, []byte{1, 2, 3}, uint64(7), uint8(1))
	f.Fuzz(func(t *testing.T, head uint64, data []byte, later uint64, how uint8) {
		a, ends := collector()
		r := newRing(a, 0)
		copy(r.data, data)
		for round, h := range []uint64{head, later, head + later} {
			store64(r.p.shared, r.head, h)
			before := len(*ends)
			a.Collect()
			a.giveAll()
			if n := len(*ends) - before; n > ringSize/shortSize || len(r.pend) > ringSize/64 {
				t.Fatalf("%d records, %d pending", n, len(r.pend))
			}
			if r.tail > r.seen || r.seen > h && !r.spoil && r.seen != 0 && round == 0 {
				t.Fatalf("tail %d, seen %d, head %d", r.tail, r.seen, h)
			}
			if how>>round&1 != 0 {
				r.relieve()
			}
		}
		if how&8 != 0 {
			r.end(nanotime())
		}
		a.Finish()
		a.giveAll()
	})
}

// TestStoppedSecondRing: a thread stops for a call that lies where its first ring, which
// waits to be read, has another one.
func TestStoppedSecondRing(t *testing.T) {
	a := New(&Options{})
	first, second := newRing(a, 0), newRing(a, 1)
	second.tid = first.tid
	p := first.p
	p.byTID = map[int]*ring{first.tid: second}
	var got []uint64
	p.hooks = []*hookSite{{hook: &Hook{Name: "f", Stop: true, OnStop: func(_ *ptrace.Task, _ *Process, r *Record) { got = append(got, r.Args[0]) }}}}
	pos := load64(p.shared, second.head)
	if load64(p.shared, first.head) != pos {
		t.Fatal("the rings begin at different positions")
	}
	for i, r := range []*ring{first, second} {
		b := end(r.reserve(recordSize, kindCall, stateDone), nanotime())
		binary.LittleEndian.PutUint64(b[recArgs:], uint64(i+1))
	}
	p.stopped(&ptrace.Task{TID: first.tid, PID: 1}, pos)
	if !slices.Equal(got, []uint64{2}) {
		t.Errorf("OnStop was called for %v, want [2]", got)
	}
}
