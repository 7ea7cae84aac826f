package traces

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// forms are the forms of a recording.
var forms = []WriterOptions{{}, {Compress: true}, {Blocks: true}, {Blocks: true, Compress: true}}

// record writes events with small flushes and returns the recording.
func record(t testing.TB, events []*Event, o *WriterOptions) []byte {
	t.Helper()
	var buf bytes.Buffer
	w, err := NewWriter(&buf, testHeader, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		w.Write(e)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if w.Events() != uint64(len(events)) || w.Written() != uint64(buf.Len()) {
		t.Fatalf("Events %d of %d, Written %d of %d", w.Events(), len(events), w.Written(), buf.Len())
	}
	return buf.Bytes()
}

func randomEvents(seed uint64, n int) []*Event {
	r := rand.New(rand.NewPCG(seed, 0))
	events := make([]*Event, n)
	for i := range events {
		events[i] = randomEvent(r)
	}
	return events
}

// TestRoundTrip writes random events, plain and compressed, and reads the same ones.
func TestRoundTrip(t *testing.T) {
	for _, o := range forms {
		events := randomEvents(7, 800)
		for i := range events { // groups have more than one
			if i%3 != 0 {
				again := *events[i-i%3]
				again.Time, again.Dur = events[i].Time, again.Dur*int64(i&4)
				again.Ret *= int64(i & 2)
				events[i] = &again
			}
		}
		o.FlushBytes = 5000
		data := record(t, events, &o)
		h, got, err := readAll(t, data)
		if err != nil {
			t.Fatal(err)
		}
		want := *testHeader
		if o.Blocks {
			want.Schema = SchemaVersion
		}
		if d := cmp.Diff(&want, h); d != "" {
			t.Fatalf("header (-want +got):\n%s", d)
		}
		if len(got) != len(events) {
			t.Fatalf("%d events of %d", len(got), len(events))
		}
		for i := range events {
			if d := diffEvents(normal(events[i]), got[i]); d != "" {
				t.Fatalf("%+v, event %d (-written +read):\n%s", o, i, d)
			}
		}
	}
}

// TestCrash cuts a recording at every length, as a crash or a full disk would:
// what was flushed before is read, and the rest is told as damage.
func TestCrash(t *testing.T) {
	for _, o := range forms {
		events := randomEvents(3, 10)
		var buf bytes.Buffer
		o.FlushBytes, o.FlushInterval = 1<<20, -1
		w, err := NewWriter(&buf, testHeader, &o)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		flushed := map[int]int{buf.Len(): 0} // bytes written -> events in them
		for i, e := range events {
			w.Write(e)
			if i%5 == 4 {
				if err := w.Flush(); err != nil {
					t.Fatal(err)
				}
				flushed[buf.Len()] = i + 1
			}
		}
		data := buf.Bytes()
		want := 0
		for n := range len(data) + 1 {
			if k, ok := flushed[n]; ok {
				want = k
			}
			_, got, err := readAll(t, data[:n])
			if len(got) < want {
				t.Fatalf("%+v: %d of %d bytes: read %d events, %d were flushed: %v", o, n, len(data), len(got), want, err)
			}
			for i := range got {
				if text := AppendEvent(nil, got[i]); !bytes.Equal(text, AppendEvent(nil, events[i])) {
					t.Fatalf("event %d reads as %s", i, text)
				}
			}
			if n < len(AppendHeader(nil, testHeader)) {
				continue
			}
			_, whole := flushed[n]
			whole = whole || o.Blocks && o.Compress && flushed[n+indexFrame] != 0 // a block without what tells where it is
			if whole != (err == nil) && (o.Compress || data[n-1] != '\n') {
				t.Fatalf("%+v: %d bytes, whole %v: %v", o, n, whole, err)
			}
			var damage *DamageError
			if err != nil && want > 0 && (!errors.As(err, &damage) || int(damage.Events) != len(got)) {
				t.Fatalf("%d bytes: %v", n, err)
			}
		}
	}
}

func TestWriterError(t *testing.T) {
	for _, o := range forms {
		out := &errWriter{n: 3000, err: errFull}
		var told []error
		o.FlushBytes, o.OnError = 500, func(err error) { told = append(told, err) }
		w, err := NewWriter(out, testHeader, &o)
		if err != nil {
			t.Fatal(err)
		}
		events := randomEvents(5, 500)
		for _, e := range events {
			w.Write(e)
		}
		writes := out.writes
		w.Write(events[0])
		for _, err := range []error{w.Err(), w.Flush(), w.Close(), w.Close()} {
			if !errors.Is(err, errFull) || !strings.Contains(err.Error(), "after ") {
				t.Errorf("error %v", err)
			}
		}
		if len(told) != 1 || !errors.Is(told[0], errFull) {
			t.Errorf("OnError told %v", told)
		}
		if out.writes != writes {
			t.Errorf("%d writes after the error", out.writes-writes)
		}
		if _, got, err := readAll(t, out.Bytes()); len(got) == 0 || err == nil {
			t.Errorf("%d events of the truncated file, error %v", len(got), err)
		}
	}
}

func TestShortWrite(t *testing.T) {
	w, err := NewWriter(&errWriter{n: 10}, testHeader, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("a write that is short without an error: %v", err)
	}
}

func TestWriteAfterClose(t *testing.T) {
	w, err := NewWriter(io.Discard, testHeader, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	w.Write(&Event{})
	if w.Err() == nil {
		t.Error("no error")
	}
}

// TestFlushInterval checks that recorded time pushes records out.
func TestFlushInterval(t *testing.T) {
	var buf bytes.Buffer
	w, err := NewWriter(&buf, testHeader, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.Write(&Event{Kind: KindNote, FD: -1, Time: 0})
	w.Write(&Event{Kind: KindNote, FD: -1, Time: 199e6})
	if buf.Len() != 0 {
		t.Error("flushed too early")
	}
	w.Write(&Event{Kind: KindNote, FD: -1, Time: 150e6, Dur: 50e6})
	if n := bytes.Count(buf.Bytes(), []byte("\n")); n != 4 {
		t.Errorf("%d lines after 200 ms", n)
	}
	w.Write(&Event{Kind: KindNote, FD: -1, Time: 1e9})
	if w.Pending() == 0 {
		t.Error("the interval must begin anew with the next event")
	}
}

// create starts a recording in a file.
func create(name string, h *Header) (*Writer, error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	return NewFileWriter(f, h, nil)
}

func TestCreateOpen(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.nvt", "a.jsonl"} {
		path := filepath.Join(dir, name)
		w, err := create(path, testHeader)
		if err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(path); err != nil || len(data) == 0 {
			t.Errorf("%s: the header is not written at once: %v", name, err)
		} else if isZstd(data) != (name == "a.nvt") {
			t.Errorf("%s: starts % x", name, data[:4])
		}
		w.Write(&Event{Kind: KindEnd, FD: -1, Cost: &Cost{Events: 1}})
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		r, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, err := range r.All() {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if n != 1 || !r.Complete() || r.InputBytes() == 0 {
			t.Errorf("%s: %d events, complete %v, %d bytes", name, n, r.Complete(), r.InputBytes())
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if err := r.Next(new(Event)); err == nil {
			t.Error("Next after Close")
		}
	}
	if _, err := create(filepath.Join(dir, "a.txt"), testHeader); err == nil || !strings.Contains(err.Error(), ".nvt (compressed) or .jsonl") {
		t.Errorf("a.txt: %v", err)
	}
	if _, err := Open(filepath.Join(dir, "none.nvt")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Open: %v", err)
	}
	if _, err := os.Stat("/dev/full"); err == nil {
		link := filepath.Join(dir, "full.jsonl")
		if err := os.Symlink("/dev/full", link); err != nil {
			t.Fatal(err)
		}
		if _, err := create(link, testHeader); err == nil || !strings.Contains(err.Error(), "no space left") {
			t.Errorf("on a full disk: %v", err)
		}
	}
}

// TestWriteBlock: events that were gathered elsewhere come between those that were written one
// by one, and what can't take them says so.
func TestWriteBlock(t *testing.T) {
	var out bytes.Buffer
	w, err := NewWriter(&out, &Header{Tool: "test"}, &WriterOptions{Blocks: true})
	if err != nil {
		t.Fatal(err)
	}
	var b Batch
	var want []int64
	for round := range int64(3) {
		w.Write(&Event{Kind: KindClose, Time: 10 * round, FD: 3})
		want = append(want, 10*round)
		for i := range 2 + round {
			b.Add(&Event{Kind: KindClose, Time: 10*round + i + 1, FD: 3})
			want = append(want, 10*round+i+1)
		}
		if b.Len() != int(2+round) || b.Size() == 0 {
			t.Errorf("%d events of %d bytes in the batch", b.Len(), b.Size())
		}
		w.WriteBlock(b.AppendTo(nil))
		if b.Len() != 0 {
			t.Error("the batch was not emptied")
		}
	}
	if err := w.Close(); err != nil || w.Events() != uint64(len(want)) || w.Written() != uint64(out.Len()) {
		t.Errorf("%v; %d events, %d of %d bytes", err, w.Events(), w.Written(), out.Len())
	}
	r, err := NewReader(&out)
	if err != nil {
		t.Fatal(err)
	}
	var got []int64
	for e, err := range r.All() {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.Time)
	}
	if !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
	text, err := NewWriter(io.Discard, &Header{Tool: "test"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.Add(&Event{Kind: KindClose, FD: 3})
	if text.WriteBlock(b.AppendTo(nil)); text.Err() == nil {
		t.Error("a recording in text took a block")
	}
}
