package record

import (
	"bytes"
	"runtime"
	"sync"
	"testing"

	"nvtrace/ptrace"
	"nvtrace/traces"
)

// startQueue runs a consumer.
func startQueue(f func(*traces.Event), idle func()) *queue {
	q := newQueue(apart(f), idle)
	go q.consume()
	return q
}

// apart has a function take the events of blocks.
func apart(f func(*traces.Event)) func([]byte) {
	var u traces.Unbatcher
	return func(block []byte) {
		if err := u.Each(block, f); err != nil {
			panic(err)
		}
	}
}

// payload makes an event with n bytes in and out; changed tells them apart.
func payload(i, n int, changed bool) *traces.Event {
	in := bytes.Repeat([]byte{byte(i)}, n)
	out := in
	if changed {
		out = bytes.Repeat([]byte{byte(i) + 1}, n)
	}
	return &traces.Event{Kind: traces.KindIoctl, Ret: int64(i), Mem: []traces.Seg{
		{Addr: uint64(i), Len: uint32(n), In: in, Out: out}, {Addr: 1, Len: 4, In: []byte{}, Out: nil},
	}}
}

// TestQueueOrder puts events of many sizes whose memory the caller uses again at
// once, and gets them all, whole and in order.
func TestQueueOrder(t *testing.T) {
	const n = 8000
	size := func(i int) int {
		if i%1000 == 999 {
			return 3 << 20
		}
		return []int{0, 1, 40, 900, 1 << 14}[i%5]
	}
	next, bad := 0, 0
	q := startQueue(func(ev *traces.Event) {
		want := payload(next, size(next), next%3 == 0)
		if ev.Ret != int64(next) || len(ev.Mem) != 2 || !bytes.Equal(ev.Mem[0].In, want.Mem[0].In) ||
			!bytes.Equal(ev.Mem[0].Out, want.Mem[0].Out) || ev.Mem[0].Changed() != want.Mem[0].Changed() ||
			ev.Mem[1].In == nil || ev.Mem[1].Out != nil {
			bad++
		}
		next++
	}, func() {})
	for i := range n {
		ev := payload(i, size(i), i%3 == 0)
		q.put(ev)
		clear(ev.Mem[0].In)
		clear(ev.Mem[0].Out)
		clear(ev.Mem)
	}
	q.close()
	if next != n || bad != 0 {
		t.Errorf("%d of %d events came, %d of them wrong", next, n, bad)
	}
}

// TestQueueWakes: each event is seen without another one or the end to push it,
// and idle is called behind it.
func TestQueueWakes(t *testing.T) {
	seen, flushed := make(chan int64, 1), make(chan bool, 1)
	q := startQueue(func(ev *traces.Event) { seen <- ev.Ret }, func() {
		select {
		case flushed <- true:
		default:
		}
	})
	for i := range int64(50) {
		q.put(&traces.Event{Ret: i})
		if got := <-seen; got != i {
			t.Fatalf("event %d instead of %d", got, i)
		}
		<-flushed
	}
	q.close()
}

// TestQueueBounded: a consumer that stands still makes the producer wait, with no
// more than the limit pending; when it goes on, nothing is missing.
func TestQueueBounded(t *testing.T) {
	const size, n = 4 << 20, 64 // 256 MiB
	var mu sync.Mutex
	put, got, most := 0, 0, 0
	first, release := make(chan bool), make(chan bool)
	q := startQueue(func(*traces.Event) {
		if got == 0 {
			close(first)
			<-release
		}
		mu.Lock()
		got++
		most = max(most, put-got)
		mu.Unlock()
	}, func() {})
	ev := payload(1, size, false)
	done := make(chan bool)
	go func() {
		for range n {
			q.put(ev)
			mu.Lock()
			put++
			mu.Unlock()
		}
		close(done)
	}()
	<-first
	for full := false; !full; runtime.Gosched() {
		q.mu.Lock()
		full = q.bytes+q.fill.Size() > maxPending
		q.mu.Unlock()
	}
	select {
	case <-done:
		t.Error("the producer did not wait")
	default:
	}
	close(release)
	<-done
	q.close()
	// Two batches, each one event over the limit at most, and the one in hand.
	if limit := 2*(maxPending/size+1) + 1; got != n || most > limit {
		t.Errorf("%d of %d events, %d pending at once, limit %d", got, n, most, limit)
	}
	if c := cap(q.buf); c > maxKept || len(q.free) > freeBatches {
		t.Errorf("%d bytes and %d batches kept after a burst", c, len(q.free))
	}
}

// TestQueueDrops: where there is no room, calls are dropped with their returns and the calls
// inside, by the thread; what else there is comes, and how many are lost is told.
func TestQueueDrops(t *testing.T) {
	var got []traces.Event
	q := newQueue(apart(func(ev *traces.Event) { got = append(got, *ev.Clone()) }), func() {})
	// Nobody takes anything at first: there is room up to a call, which need not wait.
	q.max, q.drop = 200, &dropper{depth: make(map[int32]int)}
	const n = 1000
	put := 0
	for i := range n {
		for tid := range int32(2) {
			at := int64(i)
			for _, ev := range []traces.Event{
				{Kind: traces.KindCall, TID: tid, Time: at, Name: "outer"},
				{Kind: traces.KindCall, TID: tid, Time: at, Name: "inner"},
				{Kind: traces.KindReturn, TID: tid, Time: at, Name: "inner"},
				{Kind: traces.KindReturn, TID: tid, Time: at, Name: "outer"},
			} {
				q.put(&ev)
				put++
			}
		}
		if i == 10 {
			go q.consume() // from here on it is a race
		}
	}
	q.put(&traces.Event{Kind: traces.KindEnd})
	q.close()
	calls, lost := 0, int64(0)
	open := map[int32][]string{}
	for _, ev := range got {
		s := open[ev.TID]
		switch ev.Kind {
		case traces.KindCall:
			calls++
			open[ev.TID] = append(s, ev.Name)
		case traces.KindReturn:
			calls++
			if len(s) == 0 || s[len(s)-1] != ev.Name {
				t.Fatalf("%s of thread %d returns where %q are open", ev.Name, ev.TID, s)
			}
			open[ev.TID] = s[:len(s)-1]
		case traces.KindLost:
			lost += ev.Ret
		}
	}
	if calls+int(lost) != put || lost == 0 || len(open[0])+len(open[1]) > 0 || got[len(got)-1].Kind != traces.KindEnd {
		t.Errorf("%d of %d events came, %d were lost; open: %v", calls, put, lost, open)
	}
}

// TestQueueCountsStrings: arguments of programs are payload, too.
func TestQueueCountsStrings(t *testing.T) {
	var b batch
	b.add(&traces.Event{Kind: traces.KindExec, Argv: []string{string(make([]byte, 1<<20)), "x"}})
	if b.bytes < 1<<20 {
		t.Errorf("%d bytes counted", b.bytes)
	}
}

// collect is a sink that keeps everything.
type collect struct{ events []*traces.Event }

func (c *collect) Event(ev *traces.Event) { c.events = append(c.events, ev.Clone()) }
func (c *collect) Idle()                  {}

// runRecorded records a shell that has children and exits with 7.
func runRecorded(t *testing.T, o Options) ([]*traces.Event, Result) {
	t.Helper()
	sink := new(collect)
	o.Sinks = append(o.Sinks, sink)
	o.Ptrace.Argv, o.Ptrace.NoSignals = []string{"/bin/sh", "-c", "(exit 3); (exit 4); exit 7"}, true
	res, err := Run(t.Context(), &o)
	if err != nil {
		t.Fatal(err)
	}
	return sink.events, res
}

// panics is a sink with a fault.
type panics struct{ in string }

func (p *panics) Event(*traces.Event) {
	if p.in == "event" {
		panic("sink's fault")
	}
}

func (p *panics) Idle() {
	if p.in == "idle" {
		panic("sink's fault")
	}
}

// TestSinkPanics: the program and the other sinks must not suffer for a faulty
// one, which is reported once.
func TestSinkPanics(t *testing.T) {
	for _, where := range []string{"event", "idle"} {
		var faults []string
		o := Options{Sinks: []Sink{&panics{where}}, OnFault: func(s string) { faults = append(faults, s) }}
		events, res := runRecorded(t, o)
		if len(faults) != 1 || res.Status.ExitStatus() != 7 {
			t.Errorf("%s: faults %q, status %#x", where, faults, uint32(res.Status))
		}
		if n := len(events); n == 0 || events[n-1].Kind != traces.KindEnd || res.Cost.Events != uint64(n) && res.Cost.Events != uint64(n)-1 {
			t.Errorf("%s: %d events, %d recorded", where, n, res.Cost.Events)
		}
	}
}

// slow is a sink that begins when the program has ended.
type slow struct {
	collect
	ended chan bool
}

func (s *slow) Event(ev *traces.Event) {
	<-s.ended
	s.collect.Event(ev)
}

// TestSlowSink: what is pending when the program ends is not lost.
func TestSlowSink(t *testing.T) {
	late := &slow{ended: make(chan bool)}
	o := Options{Sinks: []Sink{late}}
	o.Ptrace.Ended = func(*ptrace.Result) { close(late.ended) }
	events, _ := runRecorded(t, o)
	if len(events) == 0 || len(late.events) != len(events) {
		t.Errorf("%d events, the slow sink got %d", len(events), len(late.events))
	}
}
