package traces

import (
	"bytes"
	"io"
	"testing"
)

// BenchmarkAppendEvent is the cost of putting one event into text.
func BenchmarkAppendEvent(b *testing.B) {
	e := sampleEvent()
	buf := AppendEvent(nil, e)
	want := len(buf)
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendEvent(buf[:0], e)
	}
	if len(buf) != want {
		b.Fatal("wrong line")
	}
}

// BenchmarkRecord is the cost of recording one event, flushes included.
func BenchmarkRecord(b *testing.B) {
	for _, row := range []struct {
		name string
		o    WriterOptions
	}{{"jsonl", forms[0]}, {"jsonl.zst", forms[1]}, {"blocks", forms[2]}, {"nvt", forms[3]}} {
		b.Run(row.name, func(b *testing.B) {
			w, err := NewWriter(io.Discard, testHeader, &row.o)
			if err != nil {
				b.Fatal(err)
			}
			e := sampleEvent()
			b.ReportAllocs()
			n := uint64(0)
			for b.Loop() {
				e.Time += 10_000
				w.Write(e)
				n++
			}
			if err := w.Close(); err != nil || w.Events() != n {
				b.Fatal(err, w.Events())
			}
			b.ReportMetric(float64(w.Written())/float64(n), "bytes/event")
		})
	}
}

// BenchmarkRead reads a recording of 100,000 events.
func BenchmarkRead(b *testing.B) {
	const n = 100_000
	for _, row := range []struct {
		name string
		o    WriterOptions
	}{{"jsonl", forms[0]}, {"jsonl.zst", forms[1]}, {"blocks", forms[2]}, {"nvt", forms[3]}} {
		b.Run(row.name, func(b *testing.B) {
			var buf bytes.Buffer
			w, err := NewWriter(&buf, testHeader, &row.o)
			if err != nil {
				b.Fatal(err)
			}
			e := sampleEvent()
			for range n {
				e.Time += 10_000
				w.Write(e)
			}
			if err := w.Close(); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, got, err := readAllFrom(bytes.NewReader(buf.Bytes())); got != n || err != nil {
					b.Fatal(got, err)
				}
			}
			b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
