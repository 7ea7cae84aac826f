package traces

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// readings is what reading a file comes to.
type readings struct {
	text     []byte // the events
	err      string
	events   uint64
	complete bool
}

// inOrder reads a file an event after another.
func inOrder(t *testing.T, name string, skipTo int64) (got readings) {
	t.Helper()
	r, err := Open(name)
	if err != nil {
		return readings{err: err.Error()}
	}
	defer r.Close()
	if skipTo > 0 {
		_ = r.SkipTo(skipTo)
	}
	e := new(Event)
	for err = r.Next(e); err == nil; err = r.Next(e) {
		got.text = AppendEvent(got.text, e)
	}
	if !errors.Is(err, io.EOF) || errors.As(err, new(*DamageError)) {
		got.err = err.Error()
	}
	got.events, got.complete = r.Events(), r.Complete()
	return got
}

// inBatches reads a file by Batches.
func inBatches(t *testing.T, name string, skipTo int64) (got readings) {
	t.Helper()
	r, err := Open(name)
	if err != nil {
		return readings{err: err.Error()}
	}
	defer r.Close()
	if skipTo > 0 {
		_ = r.SkipTo(skipTo)
	}
	if err := r.Batches(func(events []Event, _ int64) {
		for i := range events {
			got.text = AppendEvent(got.text, &events[i])
		}
	}); err != nil {
		got.err = err.Error()
	}
	got.events, got.complete = r.Events(), r.Complete()
	return got
}

func sameReadings(t *testing.T, what, name string, skipTo int64) (err string) {
	t.Helper()
	want, got := inOrder(t, name, skipTo), inBatches(t, name, skipTo)
	if !bytes.Equal(got.text, want.text) || got.err != want.err || got.events != want.events || got.complete != want.complete {
		t.Errorf("%s: %d events, complete %v, error %q; an event after another: %d, %v, %q; the same text: %v",
			what, got.events, got.complete, got.err, want.events, want.complete, want.err, bytes.Equal(got.text, want.text))
	}
	return want.err
}

// TestBatches: blocks that are decoded at the same time give what they give one after another, byte
// by byte, up to the same error where a file is damaged.
func TestBatches(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	dir := t.TempDir()
	file := func(name string, o *WriterOptions, events int) []byte {
		var b bytes.Buffer
		w, err := NewWriter(&b, testHeader, o)
		if err != nil {
			t.Fatal(err)
		}
		for i := range events {
			e := sampleEvent()
			e.Time, e.Ret, e.TID = int64(i)*1000, int64(i), int32(1+i%3)
			e.Mem = e.Mem[:i%(len(e.Mem)+1)]
			w.Write(e)
			if i%1000 == 0 { // a record of its own
				w.Write(&Event{Kind: KindNote, FD: -1, Time: e.Time, Text: fmt.Sprintf("the note %d", i)})
			}
		}
		w.Write(&Event{Kind: KindEnd, FD: -1, Cost: &Cost{Events: 1}})
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	at := filepath.Join(dir, "run.nvt")
	try := func(what string, b []byte, skipTo int64) string {
		t.Helper()
		if err := os.WriteFile(at, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return sameReadings(t, what, at, skipTo)
	}
	small := WriterOptions{Blocks: true, Compress: true, FlushBytes: 10_000, FlushInterval: -1}
	blocks := file("blocks", &small, 2500)
	if err := try("blocks", blocks, 0); err != "" {
		t.Fatal(err)
	}
	if r, err := Open(at); err != nil {
		t.Fatal(err)
	} else if _, _, ok := r.boundary(); !ok || r.Close() != nil {
		t.Error("its blocks can't be read at the same time")
	}
	for _, from := range []int64{1, 1_200_000, 2_499_000, 1 << 40} {
		try(fmt.Sprint("blocks from ", from), blocks, from)
	}
	for i, o := range forms {
		try(fmt.Sprint("form ", i), file("form", &o, 2000), 0)
	}
	large := small
	large.FlushBytes = 2 * maxAhead
	try("large blocks", file("large", &large, 25_000), 0)
	try("large blocks behind small ones", append(bytes.Clone(blocks), file("large", &large, 25_000)...), 0)
	try("with text", append(bytes.Clone(blocks), file("text", &forms[1], 100)...), 0)

	r, damaged := rand.New(rand.NewPCG(1, 2)), 0
	for i := range 60 {
		b := bytes.Clone(blocks)
		what := ""
		switch i % 3 {
		case 0:
			b = b[:r.IntN(len(b))]
			what = fmt.Sprint("cut at ", len(b))
		case 1:
			n := r.IntN(len(b))
			b[n] ^= byte(1 + r.IntN(255))
			what = fmt.Sprint("changed at ", n)
		case 2:
			n := r.IntN(len(b))
			b = append(b[:n:n], append([]byte{byte(r.IntN(256))}, b[n:]...)...)
			what = fmt.Sprint("one more byte at ", n)
		}
		if try(what, b, int64(i%2)*1_200_000) != "" {
			damaged++
		}
	}
	if damaged < 40 {
		t.Errorf("only %d of 60 were damaged", damaged)
	}

	// A block that is whole, and contradicts itself at some event.
	plain := small
	plain.Compress = false
	b := file("plain", &plain, 2500)
	for range 20 {
		b := bytes.Clone(b)
		for n := bytes.IndexByte(b, '\n') + 1 + r.IntN(len(b)/2); n < len(b); n += 1 + r.IntN(20_000) {
			b[n] ^= 0x80
		}
		try("contradictions", compressBlocks(t, b), 0)
	}
}

// compressBlocks compresses a recording of blocks as a writer does, whatever is in them.
func compressBlocks(t *testing.T, plain []byte) []byte {
	t.Helper()
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	head := bytes.IndexByte(plain, '\n') + 1
	out := enc.EncodeAll(plain[:head], nil)
	for rest := plain[head:]; len(rest) > 0; {
		n := bytes.Index(rest[1:], []byte(blockMagic)) + 1
		if n == 0 {
			n = len(rest)
		}
		out = enc.EncodeAll(rest[:n], out)
		rest = rest[n:]
	}
	return out
}
