package view

import (
	"testing"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/ioctl"
	"nvtrace/traces"
)

// addWork counts a work of a GPU.
func (m *Meter) addWork(pid int32, start, took uint64) {
	m.Work(m.Of[pid], &traces.Event{Kind: traces.KindGPU, PID: pid, Args: [6]uint64{0, start, took}})
}

// TestWorked: works of several streams and GPUs are told of in no order; the time in which there was one
// at least is the same in any, and what is kept for it is bounded.
func TestWorked(t *testing.T) {
	works := [][2]uint64{{100, 50}, {400, 10}, {90, 20}, {120, 5}, {0, 10}, {150, 30}, {300, 200}, {200, 0}}
	const want = 10 + 90 + 200
	for turn := range works {
		m := NewMeter()
		m.Of[1] = new(Counters)
		for i := range works {
			w := works[(turn+i)%len(works)]
			m.addWork(1, w[0], w[1])
		}
		if got := m.Of[1].Busy; got != want {
			t.Errorf("from work %d on: busy for %d, want %d", turn, got, want)
		}
	}
	// The works of one stream behind those of another, as many as are surely kept.
	m := NewMeter()
	m.Of[1] = new(Counters)
	for stream := range uint64(2) {
		for i := range uint64(maxSpans / 2) {
			m.addWork(1, 100*i+50*stream, 40)
		}
	}
	if got := m.Of[1].Busy; got != 40*maxSpans {
		t.Errorf("two streams: busy for %d, want %d", got, 40*maxSpans)
	}
	for i := range uint64(10 * maxSpans) {
		m.addWork(1, 1e6+100*i, 40)
	}
	if n := len(m.worked[1].spans); n > maxSpans {
		t.Errorf("%d spans are kept", n)
	}
	m.addWork(1, 0, 1e9) // what is not kept is not counted twice
	if got := m.Of[1].Busy; got > 1e9 {
		t.Errorf("busy for %d of %d", got, int(1e9))
	}
	// Processes beyond those that there is room for do not keep others from being counted.
	for pid := int32(2); len(m.worked) < maxMetered; pid++ {
		m.Of[pid] = new(Counters)
		m.addWork(pid, 0, 1)
	}
	before := m.Of[2].Busy
	m.addWork(2, 10, 7)
	if got := m.Of[2].Busy - before; got != 7 {
		t.Errorf("with %d processes one was busy for %d, want 7", maxMetered, got)
	}
}

// TestMeterAddsUp: what is counted by process is what is counted in all.
func TestMeterAddsUp(t *testing.T) {
	sum := Counters{}
	m := NewMeter()
	feed := observe.NewFeed(ioctl.NewDecoder(nil), m)
	feed.Follow()
	for i := range int64(100) {
		ev := &traces.Event{Kind: traces.KindCall, PID: int32(1 + i%3), TID: 1, Time: 10 * i, FD: -1, Name: "cuMemcpyHtoD_v2", Path: "/usr/lib/libcuda.so.1", Args: [6]uint64{1, 2, uint64(i)}}
		feed.Event(ev)
		ev = &traces.Event{Kind: traces.KindReturn, PID: ev.PID, TID: 1, Time: 10*i + 5, Dur: 5, FD: -1, Name: ev.Name, Path: ev.Path}
		feed.Event(ev)
	}
	for _, c := range m.Of {
		sum = sum.Plus(c)
	}
	if want := (Counters{Calls: 100, callTime: 500, ToGPU: Copies{N: 100, Bytes: 99 * 100 / 2}}); sum != want || m.All != want {
		t.Errorf("%+v and %+v, want %+v", sum, m.All, want)
	}
}
