package channels

import (
	"testing"

	"nvtrace/rm/channel"
)

// replay submits the launch of a graph whose QMDs can't be read, as libcuda does (seen on an H200): the launch waits for the one
// before it, and sets a word to which the graph then adds n.
func (l *machineLine) replay(n uint32) {
	const qmd = 0x2_04c0_0000 // in the GPU's memory
	slot := uint64(systemBase + 0x7000)
	base := 100 * l.put
	var w channel.Writer
	if l.put > 1 {
		w.Acquire(hopperHost, 0, channel.Semaphore{Address: slot, Payload: uint64(base-100) + uint64(n)})
	}
	w.Methods(hopperCompute, computeSubchannel, "SEND_PCAS_A", qmd>>8)
	w.Methods(hopperCompute, computeSubchannel, "SEND_SIGNALING_PCAS2_B", 0xa)
	w.Inline(hopperCompute, computeSubchannel, slot, []uint32{base})
	w.Release(hopperCompute, computeSubchannel, channel.Semaphore{Address: l.tracker, Payload: uint64(l.put + 1)})
	l.submit(&w, 0)
}

// added has the latest graph that was passed add to its semaphore.
func (l *machineLine) added(n uint32) { l.m.write32(systemBase+0x7000, 100*(l.passed-1)+n) }

// TestReplays wants launches of a graph that can't be read as they are: running, and waiting for one another.
func TestReplays(t *testing.T) {
	m := begun(1)
	l := m.lines[0]
	const n = 2 // of its kernels nothing comes behind
	for range 3 {
		l.replay(n)
	}
	l.pass()
	l.added(0)
	look := func() *ChannelReport {
		t.Helper()
		v, err := NewView(1, m)
		if err != nil {
			t.Fatal(err)
		}
		r := v.Look(false)
		return &r.Channels[0]
	}
	for _, added := range []uint32{0, 1} { // the second is on its way
		l.added(added)
		c := look()
		if len(c.Running) != 1 || c.Running[0].QMD != "0x204c00000" || c.Running[0].Began == 0 || len(c.Waiting) != 2 {
			t.Errorf("with %d added: running %+v, %d wait", added, c.Running, len(c.Waiting))
		}
		if c.Blocked == nil || c.Blocked.Channel == nil || *c.Blocked.Channel != 0 {
			t.Errorf("with %d added it waits for %+v", added, c.Blocked)
		}
	}
	l.added(n)
	if c := look(); len(c.Running) != 0 || c.Blocked != nil || len(c.Waiting) != 2 {
		t.Errorf("when it is over: %+v", c)
	}
	for range 2 {
		l.pass()
		l.added(n)
	}
	if c := look(); c.Busy {
		t.Errorf("when all are over: %+v", c)
	}
}

// TestFollowReplays wants the times of such launches, and no idle time in them.
func TestFollowReplays(t *testing.T) {
	m := begun(1)
	l := m.lines[0]
	w, spans := m.watch(t, true)
	*spans = nil
	const n, rounds = 2, 6
	for i := range rounds {
		l.replay(n)
		if i == 0 {
			l.replay(n) // its end tells how often the graph adds
		}
		for l.passed < l.put {
			m.host += 500
			l.pass()
			l.added(0)
			for range 5 {
				m.look(t, w, 1000)
			}
			l.added(1)
			m.look(t, w, 1000)
			l.added(n)
			m.look(t, w, 1000)
		}
		for range 50 { // idle
			m.look(t, w, 1000)
		}
	}
	if len(*spans) != rounds+1 {
		t.Fatalf("%d spans of %d launches", len(*spans), rounds+1)
	}
	for i, s := range *spans {
		if s.Work.Kind != GraphSpan || s.Work.Graph != 0x204c00000 || s.Dur < 3000 || s.Dur > 9000 {
			t.Errorf("launch %d: %+v", i, s)
		}
	}
	if c := w.Counts()[0]; len(c.Missed) != 0 {
		t.Errorf("missed: %v", c.Missed)
	}
}

// TestOldKernels wants no time for a kernel that was over before its channel was found: it would be the time since its begin.
func TestOldKernels(t *testing.T) {
	m := newMachine(2)
	l, other := m.lines[0], m.lines[1]
	l.launch(0x7f0000001000, false)
	l.pass()
	l.over(0)
	var spans []Span
	w, err := NewWatch(m, func() int64 { return m.host }, func(s *Span) { spans = append(spans, *s) })
	if err != nil {
		t.Fatal(err)
	}
	w.follow = true
	run := func() { // by which the clocks are compared
		t.Helper()
		l.launch(0x7f0000002000, false)
		m.look(t, w, 1000)
		l.pass()
		m.look(t, w, 1000)
		l.over(int(l.put) - 1)
		for range 60 { // in which each channel has its turn
			m.look(t, w, 1000)
		}
	}
	run()
	other.launch(0x7f0000003000, false)
	other.pass()
	other.over(0)
	m.host += 4e9
	if err := w.Refresh(); err != nil {
		t.Fatal(err)
	}
	run()
	run()
	if w.Channels() != 2 || len(spans) == 0 {
		t.Fatalf("%d channels, %d spans", w.Channels(), len(spans))
	}
	for _, s := range spans {
		if s.Work.Program != 0x7f0000002000 || s.Dur > 1e6 {
			t.Errorf("%+v", s)
		}
	}
}

// TestFirstKernel wants the end of a kernel that ran when the watch began: its begin is known as soon as the clock is.
func TestFirstKernel(t *testing.T) {
	m := begun(1)
	l := m.lines[0]
	l.launch(0x7f0000002000, false)
	l.pass()
	begin := m.host
	m.host += 1e9
	w, spans := m.watch(t, true)
	m.look(t, w, 1e6)
	l.over(1)
	end := m.host
	m.look(t, w, 1000)
	if c := w.Counts()[0]; len(*spans) != 0 || len(c.Missed) != 0 {
		t.Fatalf("before the clock is known: %+v, missed %v", *spans, c.Missed)
	}
	m.host += 5e6
	l.launch(0x7f0000003000, false)
	m.look(t, w, 1000)
	l.pass()
	m.look(t, w, 1000)
	if len(*spans) != 1 {
		t.Fatalf("%+v, want the first kernel", *spans)
	}
	s := (*spans)[0]
	near := func(a, b int64) bool { return a-b < 2500 && b-a < 2500 }
	if s.Work.Program != 0x7f0000002000 || !near(s.Start, begin) || !near(s.Start+s.Dur, end) {
		t.Errorf("%+v, want from %d to %d", s, begin, end)
	}
}
