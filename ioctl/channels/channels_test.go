package channels

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"nvtrace/ioctl/channels/internal/snapshot"
	"nvtrace/rm/channel"
)

// view opens a snapshot of testdata/work.c on an H100 (driver 580), which internal/take made.
func view(t testing.TB, kind string) *View {
	t.Helper()
	s, err := snapshot.Load("testdata/" + kind + ".snapshot.gz")
	if err != nil {
		t.Fatal(err)
	}
	v, err := NewView(1, s)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// jobText says a job in a line, without addresses.
func jobText(j *JobReport) string {
	if j.Kind == "copy" {
		return fmt.Sprintf("copy %d", j.Bytes)
	}
	text := fmt.Sprintf("%s %s %s", j.Name, channel.Dimensions(*j.Grid), channel.Dimensions(*j.Block))
	if j.Graph > 0 {
		text += fmt.Sprintf(" graph %d", j.Graph)
	}
	return text
}

// lines says what a report's busy channels are at.
func lines(r *Report) (list []string) {
	for i := range r.Channels {
		c := &r.Channels[i]
		for j := range c.Running {
			list = append(list, fmt.Sprintf("%d runs %s", c.Channel, jobText(&c.Running[j])))
		}
		for j := range c.Waiting {
			list = append(list, fmt.Sprintf("%d has waiting %s", c.Channel, jobText(&c.Waiting[j])))
		}
		if c.Blocked != nil {
			by := -1
			if c.Blocked.Channel != nil {
				by = *c.Blocked.Channel
			}
			list = append(list, fmt.Sprintf("%d waits for %d", c.Channel, by))
		}
	}
	return list
}

// TestLook holds what is found in a process's memory against what its program has asked the GPU for.
func TestLook(t *testing.T) {
	spinning := "1 runs wait_for_flag 2x3 32x2"
	for kind, want := range map[string][]string{
		"idle":  nil,
		"spin":  {spinning},
		"queue": append([]string{spinning}, append(slices.Repeat([]string{"1 has waiting add_one 3907 256"}, 5), "1 waits for 1")...),
		"event": {spinning, "2 has waiting add_one 7813 128", "2 waits for 1"},
		"copy":  {"1 runs wait_for_flag 1 1", "10 has waiting copy 67108864", "10 waits for 1"},
		"graph": {"1 runs add_one 3907 256 graph 3", "1 runs wait_for_flag 1 1 graph 3", "1 runs add_one 15625 64 graph 3"},
	} {
		t.Run(kind, func(t *testing.T) {
			v := view(t, kind)
			if v.Channels() != 20 {
				t.Errorf("%d channels, want 20: 8 of compute engines, 12 of copy engines", v.Channels())
			}
			r := v.Look(true)
			if r.Error != "" {
				t.Error(r.Error)
			}
			if got := lines(&r); !slices.Equal(got, want) {
				t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
			}
			for _, c := range r.Channels {
				for _, j := range c.Running {
					// The GPU's clock is that of the host, from 1970 on.
					if j.Began < 1795798239e9 || j.Began > 1795798300e9 {
						t.Errorf("%s began at %d", j.Name, j.Began)
					}
				}
			}
		})
	}
}

// TestArguments wants a launch's arguments as the program has given them.
func TestArguments(t *testing.T) {
	r := view(t, "spin").Look(true)
	j := r.Channels[1].Running[0]
	words := strings.Fields(j.Arguments)
	if len(words) != 2 || words[1] != "11223344" {
		t.Errorf("arguments %q, want an address and 11223344", j.Arguments)
	}
	if j.Name != "wait_for_flag" || j.Named != InMemory {
		t.Errorf("name %q from %q, want it from the process's memory", j.Name, j.Named)
	}
	if j.Shared != 4096+1024 || j.Registers == 0 {
		t.Errorf("%d bytes of shared memory and %d registers, want 4096 and the system's 1024, and some", j.Shared, j.Registers)
	}
}

// TestParamsInProcess wants a launch's arguments by the kernel's parameters, of which the image in the process's
// memory tells: on an H200.
func TestParamsInProcess(t *testing.T) {
	r := view(t, "spin.h200").Look(true)
	if got, want := lines(&r), []string{"1 runs wait_for_flag 2x3 32x2"}; !slices.Equal(got, want) {
		t.Fatalf("%q, want %q", got, want)
	}
	p := r.Channels[1].Running[0].Params
	if len(p) != 2 || p[0].Offset != 0 || p[0].Size != 8 || p[1].Offset != 8 || p[1].Size != 4 || p[1].Value != "0x11223344" {
		t.Errorf("parameters %+v, want an address of 8 bytes and 0x11223344 of 4", p)
	}
}

// TestViewAt wants a process's channels at the places that ioctls have told to be at what those are at that were found
// by shape, which are the same.
func TestViewAt(t *testing.T) {
	found := view(t, "spin.h200")
	var places []Place
	for i, c := range found.channels {
		// In the recording of the same process (cmd/nvtrace's TestPlaces).
		want := Place{Ring: 0x200600000 + 0x3000*uint64(i), UserData: 0x200602000 + 0x3000*uint64(i), Entries: 1024}
		if got := (Place{c.Ring, c.UserData, c.Entries}); got != want {
			t.Errorf("channel %d is found at %+v, want %+v", i, got, want)
		}
		places = append(places, want)
	}
	gone := Place{Ring: 0x10000, UserData: 0x20000, Entries: 1024}
	v, err := newViewAt(1, found.memory, append(places, gone, Place{Ring: places[0].Ring, UserData: places[0].UserData, Entries: 1 << 30}))
	if err != nil {
		t.Fatal(err)
	}
	a, b := v.Look(true), found.Look(true)
	if got, want := lines(&a), lines(&b); v.Channels() != 20 || !slices.Equal(got, want) || len(want) != 1 {
		t.Errorf("%d channels, at %q, want 20 at %q", v.Channels(), got, want)
	}
	if a.Channels[0].Device != "/dev/nvidia0" {
		t.Errorf("on %s", a.Channels[0].Device)
	}
}

// TestPushbuffer wants each channel's pieces to read without a rest.
func TestPushbuffer(t *testing.T) {
	v := view(t, "queue")
	list := v.Pieces(lookDepth)
	if err := v.SearchNames(list); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, cp := range list {
		r := v.Reader(cp.Of)
		for _, p := range cp.Pieces {
			if err := r.Fprint(&out, p.Words, p.Address, v.Names.Of); err != nil {
				t.Fatal(err)
			}
		}
	}
	text := out.String()
	for _, want := range []string{
		"; launch wait_for_flag (program ", "; wait until 0x204637aa4 circular >= 6", "SEND_PCAS_A QMD_ADDRESS_SHIFTED8=",
		"; copy 67108864 bytes from ", "  SET_OBJECT",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the text has no %q", want)
		}
	}
	for line := range strings.Lines(text) {
		if strings.Contains(line, "op0") || strings.Contains(line, "op2") || strings.Contains(line, "op6") || strings.Contains(line, "the piece ends before") {
			t.Errorf("a piece isn't read: %s", line)
		}
	}
}

// scribbled is memory of which bytes have been changed.
type scribbled struct {
	*snapshot.Snapshot
	random func() uint64
	every  uint64
}

func (s *scribbled) Read(address uint64, b []byte) error {
	if err := s.Snapshot.Read(address, b); err != nil {
		return err
	}
	for i := range b {
		if s.random()%s.every == 0 {
			b[i] = byte(s.random())
		}
	}
	return nil
}

// FuzzScribble looks at processes that write over their own rings and pushbuffers: nothing may
// crash or hang, and no name may be told that the process doesn't have.
func FuzzScribble(f *testing.F) {
	for i := range uint64(12) {
		f.Add(i, uint16(1<<(i%12)))
	}
	var snapshots []*snapshot.Snapshot
	for _, name := range []string{"queue", "rmlaunch"} {
		s, err := snapshot.Load("testdata/" + name + ".snapshot.gz")
		if err != nil {
			f.Fatal(err)
		}
		snapshots = append(snapshots, s)
	}
	f.Fuzz(func(t *testing.T, seed uint64, every uint16) {
		s := snapshots[seed/6%2]
		state := seed
		random := func() uint64 { // splitmix64
			state += 0x9e3779b97f4a7c15
			z := state
			z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
			z = (z ^ z>>27) * 0x94d049bb133111eb
			return z ^ z>>31
		}
		v, err := NewView(1, s)
		if err != nil {
			t.Fatal(err)
		}
		if seed%2 == 0 { // found in peace, looked at while it scribbles
			v.memory = &scribbled{s, random, uint64(every) + 1}
		} else if v, err = NewView(1, &scribbled{s, random, uint64(every) + 1}); err != nil {
			return
		}
		v.Look(false)
		now := int64(0)
		w, err := NewWatch(v.memory, func() int64 { now += 1000; return now }, func(s *Span) {
			if s.Work.Kind == KernelSpan && s.Work.Program == 0 {
				t.Errorf("a kernel without a program: %+v", s)
			}
		})
		if err == nil {
			w.follow = seed%3 == 0
			for range 8 {
				_ = w.Look() // memory may be gone
			}
		}
		list := v.Pieces(8)
		for _, cp := range list {
			r := v.Reader(cp.Of)
			for _, p := range cp.Pieces {
				if err := r.Fprint(&strings.Builder{}, p.Words, p.Address, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// TestPosition wants a channel that doesn't get on to be where it was, and others to be elsewhere.
func TestPosition(t *testing.T) {
	positions := map[Position]string{}
	for _, kind := range []string{"spin", "queue", "event", "copy", "graph"} {
		v := view(t, kind)
		before, after := v.Look(false), v.Look(false)
		busy := 0
		for i := range before.Channels {
			a, ok := before.Channels[i].Position()
			b, ok2 := after.Channels[i].Position()
			if ok != before.Channels[i].Busy || ok != ok2 || a != b {
				t.Errorf("%s: channel %d is at %+v (%v), then at %+v (%v)", kind, i, a, ok, b, ok2)
			}
			if !ok {
				continue
			}
			busy++
			if other := positions[a]; other != "" {
				t.Errorf("channels of %s and %s are at %+v", kind, other, a)
			}
			positions[a] = kind
		}
		if busy == 0 {
			t.Errorf("%s: no channel is busy", kind)
		}
	}
}

// TestWaitingAgain wants kernels told that wait, although their semaphores have the value from the kernels that had them before.
func TestWaitingAgain(t *testing.T) {
	m := begun(1)
	l := m.lines[0]
	for range 2 * slotsOfLine {
		l.launch(0x7f0000002000, false)
		l.pass()
		l.over(int(l.put) - 1)
	}
	for range 4 {
		l.launch(0x7f0000003000, true)
	}
	l.pass()
	v, err := NewView(1, m)
	if err != nil {
		t.Fatal(err)
	}
	r := v.Look(false)
	if c := &r.Channels[0]; len(c.Running) != 1 || c.Behind != 3 || c.Blocked == nil || *c.Blocked.Channel != 0 {
		t.Errorf("%d run, %d wait for %+v; want 1 and 3, for its own kernel", len(c.Running), c.Behind, c.Blocked)
	}
}

// TestWaitsForRelease wants a channel named that another one waits for, though no kernel of it is to write what that waits for.
func TestWaitsForRelease(t *testing.T) {
	m := begun(2)
	first, second := m.lines[0], m.lines[1]
	const never = systemBase + 0x6000
	wait := func(l *machineLine, s channel.Semaphore) {
		var w channel.Writer
		w.Acquire(hopperHost, 0, s)
		w.Release(hopperCompute, computeSubchannel, channel.Semaphore{Address: l.tracker, Payload: uint64(l.put + 1)})
		l.submit(&w, 0)
	}
	wait(second, channel.Semaphore{Address: never, Payload: 1})
	wait(first, channel.Semaphore{Address: second.tracker, Payload: 2})
	v, err := NewView(1, m)
	if err != nil {
		t.Fatal(err)
	}
	r := v.Look(false)
	if b := r.Channels[0].Blocked; b == nil || b.Channel == nil || *b.Channel != 1 || b.By != ByRelease {
		t.Errorf("channel 0 waits for %+v, want channel 1", b)
	}
	if b := r.Channels[1].Blocked; b == nil || b.Channel != nil || *b.Value != 0 || b.Wanted != 1 {
		t.Errorf("channel 1 waits for %+v, want 1 where 0 stands", b)
	}
	m.write32(never, 1)
	second.pass()
	if r = v.Look(false); r.Channels[0].Blocked != nil || r.Channels[1].Busy {
		t.Errorf("%+v", r.Channels)
	}
}
