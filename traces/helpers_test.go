package traces

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// randomEvent makes an event of any shape, with what the format must keep.
func randomEvent(r *rand.Rand) *Event {
	e := &Event{
		Kind:  KindOpen + Kind(r.IntN(int(KindEnd-KindOpen)+1)),
		Flags: Flags(r.Uint32()) & (1<<12 - 1) & Flags(r.Uint32()),
		PID:   r.Int32(), TID: r.Int32(),
		Time: r.Int64N(1 << 50), Dur: r.Int64N(1 << 20),
		Ret: int64(r.Uint64()), FD: int32(r.IntN(70)) - 1, File: r.Uint32() >> r.IntN(32),
		Dev: []string{"", "nvidiactl", "nvidia0", "nvidia-caps/nvidia-cap1"}[r.IntN(4)], Rdev: r.Uint64() >> r.IntN(64),
		Child: r.Int32(),
	}
	if r.IntN(2) == 0 {
		e.TID = e.PID
	}
	for i := range r.IntN(7) {
		e.Args[i] = r.Uint64() >> r.IntN(64)
	}
	if r.IntN(4) == 0 {
		e.Path = randomText(r)
		e.Text = randomText(r)
		e.Name = randomText(r)
		for range r.IntN(4) {
			e.Argv = append(e.Argv, randomText(r))
		}
	}
	if r.IntN(16) == 0 {
		e.Kind, e.Name = KindOther, "x"+randomText(r)[:0]+"later"
	}
	for range r.IntN(4) {
		s := Seg{Addr: r.Uint64(), Len: uint32(r.IntN(300))}
		s.In = randomBytes(r, int(s.Len))
		switch r.IntN(4) {
		case 0:
			s.Out = s.In
		case 1:
			s.Out = randomBytes(r, int(s.Len))
		}
		switch r.IntN(6) {
		case 0: // a fault in the middle
			s.In = s.In[:len(s.In)/2]
			s.Out = nil
		case 1: // not read at entry
			s.In = nil
		case 2: // nothing could be read
			s.In, s.Out = []byte{}, []byte{}
		}
		e.Mem = append(e.Mem, s)
	}
	if r.IntN(8) == 0 {
		e.Image = &Image{
			SHA256: "ab12", Size: r.Int64(), Format: "fatbin", File: randomText(r), Offset: r.Int64N(1 << 40),
			Handle: r.Uint64() >> r.IntN(64), Origin: "breakpoint", Replaced: randomText(r),
		}
	}
	if e.Kind == KindCaptured {
		e.Captured = &Captured{randomText(r), r.Uint64(), r.Uint64(), r.Uint64(), r.Uint64(), r.Uint64(), r.Uint64()}
	}
	if e.Kind == KindEnd {
		e.Cost = &Cost{r.Uint64(), r.Uint64(), r.Uint64(), int64(r.Uint64()), int64(r.Uint64())}
	}
	return e
}

func randomBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b[:r.IntN(n+1)] {
		b[i] = byte(r.Uint32())
	}
	return b
}

func randomText(r *rand.Rand) string {
	pieces := []string{"a", "/dev/nvidia0", "\n", "\x00", "\xff\xfe", "é", "𝄞", "\"", "\\", "\u2028", "\u202e", "\x7f", "\xed\xb2\x80", "<&>", "\t\r\b\f", "\u009b31m"}
	var s string
	for range r.IntN(6) {
		s += pieces[r.IntN(len(pieces))]
	}
	return s
}

// normal brings an event into the form that reading gives it.
func normal(e *Event) *Event {
	c := e.Clone()
	if len(c.Argv) == 0 {
		c.Argv = nil
	}
	if len(c.Mem) == 0 {
		c.Mem = nil
	}
	for i := range c.Mem {
		s := &c.Mem[i]
		if s.In != nil && s.Out != nil && bytes.Equal(s.In, s.Out) {
			s.Out = s.In
		}
	}
	return c
}

// diffEvents compares two events in normal form; cmp alone is slow.
func diffEvents(want, got *Event) string {
	if reflect.DeepEqual(want, got) {
		return ""
	}
	return cmp.Diff(want, got, cmpopts.IgnoreUnexported(Event{}))
}

// readAll reads a whole recording; events are copies.
func readAll(t testing.TB, data []byte) (*Header, []*Event, error) {
	t.Helper()
	r, err := NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	var events []*Event
	for e, err := range r.All() {
		if err != nil {
			return &r.Header, events, err
		}
		events = append(events, normal(e))
	}
	if int(r.Events()) != len(events) {
		t.Fatalf("Events() = %d after %d events", r.Events(), len(events))
	}
	return &r.Header, events, nil
}

var testHeader = &Header{
	Schema: 1, Tool: "v0.1", Start: 1_760_000_000_000_000_000, Arch: "amd64", Kernel: "6.8.0", Driver: "580.159.04",
	Argv: []string{"./app", "--x", "a\nb"}, PID: 4711, UVMMajor: 235,
	Host: "node7", Boot: "6f2c2f0e-93b6-4a38-9d0c-5b3c1e0f6a11", GPUs: []string{"GPU-51a0a5ad-3d4d-0f0e-8f5e-7c0b3c1d2e3f"},
	Container: "3f4b1c", Rank: map[string]string{"WORLD_SIZE": "8", "RANK": "3"}, API: "driver,runtime",
}

// errWriter fails after n bytes.
type errWriter struct {
	n      int
	err    error
	writes int
	bytes.Buffer
}

func (w *errWriter) Write(p []byte) (int, error) {
	w.writes++
	if len(p) <= w.n {
		w.n -= len(p)
		return w.Buffer.Write(p)
	}
	n, _ := w.Buffer.Write(p[:w.n])
	w.n = 0
	return n, w.err
}

var _ io.Writer = (*errWriter)(nil)

var errFull = errors.New("no space left on device")
