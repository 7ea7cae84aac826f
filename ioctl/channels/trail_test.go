package channels

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"nvtrace/ptrace/proc"
	"nvtrace/rm/channel"
)

// refusing is memory without that of GPUs, as where kernel or driver let nobody read it.
type refusing struct{ Memory }

var errRefused = errors.New("refused")

func (r refusing) Read(address uint64, b []byte) error {
	maps, err := r.Maps()
	if err != nil {
		return err
	}
	if m := proc.At(maps, address); m != nil && isGPU(m.Path) {
		return errRefused
	}
	return r.Memory.Read(address, b)
}

// TestBlind wants a process of which no ring can be read to be at what its rings say: its channels are found by their pushbuffers.
func TestBlind(t *testing.T) {
	for _, kind := range []string{"idle", "spin", "queue", "event", "copy", "graph", "spin.h200"} {
		t.Run(kind, func(t *testing.T) {
			seen := view(t, kind)
			v, err := NewView(1, refusing{seen.memory})
			if err != nil {
				t.Fatal(err)
			}
			if v.Channels() != seen.Channels() || v.Rings() != RingsRefused || seen.Rings() != "" {
				t.Errorf("%d channels, want %d; rings %q and %q", v.Channels(), seen.Channels(), v.Rings(), seen.Rings())
			}
			a, b := v.Look(true), seen.Look(true)
			if got, want := lines(&a), lines(&b); !slices.Equal(got, want) {
				t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
			}
			for i, c := range a.Channels {
				if c.Device != "/dev/nvidia0" || c.Address != "" || c.Tracker == "" || c.Passed != b.Channels[i].Passed {
					t.Errorf("%+v, by its ring %+v", c, b.Channels[i])
				}
			}
			same := func(a, b ChannelPieces) bool {
				return slices.EqualFunc(a.Pieces, b.Pieces, func(a, b Piece) bool {
					return a.Index == b.Index && a.Address == b.Address && slices.Equal(a.Words, b.Words)
				})
			}
			if !slices.EqualFunc(v.Pieces(8), seen.Pieces(8), same) {
				t.Error("other pieces than the rings have")
			}
		})
	}
}

// blindLine is a channel of a machine whose pushbuffer is used again and again.
func (l *machineLine) wrap(size uint64) {
	begin := l.push &^ (size - 1)
	if l.push+0x800 > begin+size {
		l.push = begin
	}
}

// record submits an event: a release with a time, to a place of its own.
func (l *machineLine) record(event uint64, payload uint32) {
	var w channel.Writer
	w.Release(hopperCompute, computeSubchannel, channel.Semaphore{Address: event, Payload: uint64(payload)})
	w.Release(hopperCompute, computeSubchannel, channel.Semaphore{Address: l.tracker, Payload: uint64(l.put + 1)})
	l.submit(&w, 0)
}

// TestBlindFollow wants each kernel of two channels without rings seen, whose pushbuffers begin anew again and again, among
// events that count as trackers do.
func TestBlindFollow(t *testing.T) {
	m := begun(2)
	l := m.lines[1]
	const events = systemBase + 0x6000
	var spans []Span
	w, err := NewWatch(refusing{m}, func() int64 { return m.host }, func(s *Span) { spans = append(spans, *s) })
	if err != nil {
		t.Fatal(err)
	}
	w.follow = true
	if w.Channels() != 2 || w.Rings() != RingsRefused {
		t.Fatalf("%d channels, rings %q", w.Channels(), w.Rings())
	}
	for range 4 {
		m.look(t, w, 10)
	}
	const n, size = 2000, 0x4000
	for i := range n {
		if l.wrap(size); i%3 == 0 {
			l.record(events, uint32(i/3))
			m.look(t, w, 700)
			l.pass()
			m.write32(events, uint32(i/3))
			m.write64(events+8, uint64(m.host+m.ahead))
			l.wrap(size)
		}
		l.launch(0x7f0000002000, false)
		m.look(t, w, 700)
		m.host += 100
		l.pass()
		m.look(t, w, 3000)
		m.host += 500
		l.over(int(l.put) - 1)
		m.look(t, w, 600)
		if i == n/2 {
			if err := w.Refresh(); err != nil {
				t.Fatal(err)
			}
		}
	}
	c := w.Counts()[1]
	if w.Channels() != 2 || c.Completions != n+(n+2)/3 || c.Skipped != 0 || len(spans) < n-1 {
		t.Errorf("%d channels, %d spans of %d kernels, %+v", w.Channels(), len(spans), n, c)
	}
	for _, s := range spans {
		if s.Work.Program != 0x7f0000002000 || s.Dur < 2000 || s.Dur > 6000 {
			t.Fatalf("%+v", s)
		}
	}
}

// TestBlindLaps wants a channel found again whose pushbuffer went round between two looks.
func TestBlindLaps(t *testing.T) {
	m := begun(1)
	l := m.lines[0]
	v, err := NewView(1, refusing{m})
	if err != nil {
		t.Fatal(err)
	}
	for lap := range 3 {
		for range 100 {
			l.wrap(0x8000)
			l.launch(0x7f0000002000, false)
			l.pass()
			l.over(int(l.put) - 1)
		}
		l.wrap(0x8000)
		l.launch(0x7f0000003000+uint64(lap)<<8, true)
		l.pass()
		l.wrap(0x8000)
		l.launch(0x7f0000004000, true)
		v.channels[0].trail.beside.again = time.Time{}
		r := v.Look(false)
		c := &r.Channels[0]
		if len(c.Running) != 1 || c.Running[0].Program != []string{"0x7f0000003000", "0x7f0000003100", "0x7f0000003200"}[lap] || len(c.Waiting) != 1 || c.Waiting[0].Program != "0x7f0000004000" {
			t.Errorf("lap %d: runs %+v, waits %+v", lap, c.Running, c.Waiting)
		}
		l.over(int(l.put) - 2)
		l.pass()
		l.over(int(l.put) - 1)
		if r = v.Look(false); r.Channels[0].Busy {
			t.Errorf("lap %d: %+v, want it idle", lap, r.Channels[0])
		}
	}
}

// moving is memory of a process that goes on while it is read.
type moving struct {
	refusing
	step func()
}

func (m moving) Read(address uint64, b []byte) error {
	err := m.refusing.Read(address, b)
	for range len(b) >> 14 {
		m.step()
	}
	return err
}

// TestBlindMoving wants a channel found whose pushbuffer goes round again and again while memory is searched.
func TestBlindMoving(t *testing.T) {
	m := begun(2)
	l := m.lines[1]
	for range 600 {
		l.wrap(0x2_0000)
		l.launch(0x7f0000002000, false)
		l.pass()
		l.over(int(l.put) - 1)
	}
	first := l.put
	v, err := NewView(1, moving{refusing{m}, func() {
		l.wrap(0x2_0000)
		l.launch(0x7f0000003000, false)
		l.pass()
		l.over(int(l.put) - 1)
	}})
	if err != nil {
		t.Fatal(err)
	}
	l.wrap(0x2_0000)
	l.launch(0x7f0000004000, false)
	l.pass()
	v.memory = refusing{m}
	v.channels[len(v.channels)-1].trail.beside.again = time.Time{}
	r := v.Look(false)
	c := &r.Channels[len(r.Channels)-1]
	if v.Channels() != 2 || l.put-first < 1000 || len(c.Running) != 1 || c.Running[0].Program != "0x7f0000004000" {
		t.Errorf("%d channels, %d submissions meanwhile, %+v", v.Channels(), l.put-first, c)
	}
}

// TestBlindOfTwo wants no GPU told of a channel that may be of either.
func TestBlindOfTwo(t *testing.T) {
	m := begun(1)
	m.Mappings = append(m.Mappings, proc.Mapping{Start: 0x3_0000_0000, End: 0x3_0001_0000, Path: "/dev/nvidia1", Write: true})
	v, err := NewView(1, refusing{m})
	if err != nil {
		t.Fatal(err)
	}
	if r := v.Look(false); len(r.Channels) != 1 || r.Channels[0].Device != "" {
		t.Errorf("%+v", r.Channels)
	}
	w, err := NewWatch(refusing{m}, func() int64 { return m.host }, func(*Span) {})
	if err != nil || w.Channels() != 0 || w.Rings() != RingsOfSeveral {
		t.Errorf("%d channels are watched, rings %q, %v", w.Channels(), w.Rings(), err)
	}
}

// TestBlindProof wants nothing believed that does not hold together.
func TestBlindProof(t *testing.T) {
	for name, spoil := range map[string]func(m *machine, l *machineLine){
		"another payload":  func(m *machine, l *machineLine) { m.write32(l.tracker, 100) },
		"no time":          func(m *machine, l *machineLine) { m.write64(l.tracker+8, 0) },
		"nonsense between": func(m *machine, l *machineLine) { m.write32(l.ends[0], 0) },
		"tracker unmapped": func(m *machine, l *machineLine) { m.write32(l.ends[1]-16, 0x7) },
	} {
		m := begun(1)
		l := m.lines[0]
		l.launch(0x7f0000002000, false)
		l.pass()
		spoil(m, l)
		list, err := Find(refusing{m})
		if err != nil || len(list) != 0 {
			t.Errorf("%s: %d channels, %v", name, len(list), err)
		}
	}
	m := begun(1)
	m.lines[0].launch(0x7f0000002000, false)
	m.lines[0].pass()
	if list, err := Find(refusing{m}); err != nil || len(list) != 1 {
		t.Errorf("unspoilt: %d channels, %v", len(list), err)
	}
}

// dense is memory that is full of releases, as a hostile process may have it: each with another tracker, or the next payload of one.
type dense struct {
	trackers, gap uint64 // gap: words of nonsense between
	read          int
}

func (d *dense) Maps() ([]proc.Mapping, error) {
	return []proc.Mapping{
		{Start: barBase, End: barBase + 2<<20, Path: "/dev/nvidia0", Read: true, Write: true},
		{Start: systemBase, End: systemBase + 1<<18, Path: "/dev/nvidiactl", Read: true, Write: true},
	}, nil
}

func (d *dense) Read(address uint64, b []byte) error {
	if address < systemBase {
		return errRefused
	}
	d.read += len(b)
	size := 5 + d.gap
	for i := 0; i+4 <= len(b); i += 4 {
		n := (address + uint64(i) - systemBase) / 4
		tracker := systemBase + n/size%d.trackers*trackerSize
		word := uint32(0)
		switch n % size {
		case 0:
			word = 0x200426c0 // SET_REPORT_SEMAPHORE_A on subchannel 1
		case 1:
			word = uint32(tracker >> 32)
		case 2:
			word = uint32(tracker)
		case 3:
			word = uint32(n / size / d.trackers)
		case 4:
			word = 4
		}
		b[i], b[i+1], b[i+2], b[i+3] = byte(word), byte(word>>8), byte(word>>16), byte(word>>24)
	}
	return nil
}

// TestBlindHostile wants little read of a process that has nothing but releases.
func TestBlindHostile(t *testing.T) {
	for _, d := range []*dense{{trackers: 1000}, {trackers: 1, gap: 1}} {
		v, err := NewView(1, d)
		if err != nil {
			t.Fatal(err)
		}
		v.Look(false)
		const most = 1 << 29
		if v.Channels() > maxTrails || d.read > most {
			t.Errorf("%d trackers, %d words between: %d channels, %d bytes read", d.trackers, d.gap, v.Channels(), d.read)
		}
	}
}

// FuzzBlind looks at a process without rings that writes over its pushbuffers and trackers.
func FuzzBlind(f *testing.F) {
	for i := range uint64(8) {
		f.Add(i, uint16(1<<(2*i)))
	}
	f.Fuzz(func(t *testing.T, seed uint64, every uint16) {
		m := begun(1)
		l := m.lines[0]
		m.Mappings[1].End = l.push + 0x1_0000
		for range 20 {
			l.launch(0x7f0000002000, true)
			if l.put < 18 {
				l.pass()
				l.over(int(l.put) - 1)
			}
		}
		random := rand.New(rand.NewPCG(seed, 0)).Uint64
		scribbles := refusing{&scribbled{m.Snapshot, random, uint64(every) + 1}}
		v, err := NewView(1, refusing{m})
		if err != nil || v.Channels() != 1 {
			t.Fatal(v.Channels(), err)
		}
		if v.memory = scribbles; seed%2 != 0 {
			if v, err = NewView(1, scribbles); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			r := v.Look(false)
			for _, c := range r.Channels {
				for _, j := range slices.Concat(c.Running, c.Waiting) {
					if j.Kind == "kernel" && j.Program == "0x0" {
						t.Errorf("a kernel without a program: %+v", j)
					}
				}
			}
		}
		now := int64(0)
		w, err := NewWatch(v.memory, func() int64 { now += 1000; return now }, func(*Span) {})
		if err != nil {
			t.Fatal(err)
		}
		w.follow = seed%3 == 0
		for range 4 {
			_ = w.Look() // memory may be gone
		}
	})
}
