package ioctl

import (
	"bytes"
	"io"
	"testing"

	"nvtrace/traces"
)

// BenchmarkDecode is the cost of decoding one event of a start-up.
func BenchmarkDecode(b *testing.B) {
	w := startup(b)
	d := NewDecoder(w.header())
	b.ReportAllocs()
	i, parts := 0, 0
	for b.Loop() {
		c := d.Decode(w.events[i%len(w.events)])
		parts += len(c.Parts)
		i++
	}
	if i > len(w.events) && parts == 0 {
		b.Fatal("nothing decoded")
	}
}

// BenchmarkLine is the cost of decoding and printing one.
func BenchmarkLine(b *testing.B) {
	w := startup(b)
	d := NewDecoder(w.header())
	var buf []byte
	b.ReportAllocs()
	i, n := 0, 0
	for b.Loop() {
		buf = d.appendLine(buf[:0], w.events[i%len(w.events)], nil)
		n += len(buf)
		i++
	}
	b.ReportMetric(float64(n)/float64(i), "bytes/line")
}

// BenchmarkJSON is the cost of decoding one and exporting it.
func BenchmarkJSON(b *testing.B) {
	w := startup(b)
	d := NewDecoder(w.header())
	var buf []byte
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		c := d.Decode(w.events[i%len(w.events)])
		buf = d.AppendJSON(buf[:0], w.events[i%len(w.events)], &c)
		i++
	}
}

// BenchmarkSummary is the cost of decoding and counting one.
func BenchmarkSummary(b *testing.B) {
	w := startup(b)
	d := NewDecoder(w.header())
	s := NewSummary(w.header())
	b.ReportAllocs()
	n := uint64(0)
	for b.Loop() {
		e := w.events[n%uint64(len(w.events))]
		c := d.Decode(e)
		s.Add(e, &c)
		n++
	}
	if s.Report().Events != n {
		b.Fatal("miscounted")
	}
}

// BenchmarkWatch is the cost of finding and copying a call's memory, without
// the cost of reading another process.
func BenchmarkWatch(b *testing.B) {
	w := newWorld(b, testDriver)
	name := w.new("NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS")
	arg := w.new("NVOS54_PARAMETERS").set("cmd", 0x20800110).set("params", w.place(name.b)).set("paramsSize", 132)
	at := w.place(arg.b)
	mem := vectorMem{w.mem}
	e := &traces.Event{}
	b.ReportAllocs()
	for b.Loop() {
		e.Reset()
		e.Kind, e.Dev, e.Rdev = traces.KindIoctl, "nvidiactl", 195<<8|255
		e.Args = [6]uint64{5, uint64(escReq(escControl, 32)), at}
		w.w.Enter(e, mem)
		w.w.Exit(e, mem)
	}
	if len(e.Mem) != 2 {
		b.Fatal(len(e.Mem))
	}
}

// BenchmarkLog is `nvtrace log`: a million events are read from a compressed
// recording, decoded and printed.
func BenchmarkLog(b *testing.B) {
	const n = 1_000_000
	w := startup(b)
	var file bytes.Buffer
	wr, err := traces.NewWriter(&file, w.header(), &traces.WriterOptions{Compress: true})
	if err != nil {
		b.Fatal(err)
	}
	for i := range n {
		e := *w.events[1+i%(len(w.events)-1)]
		e.Time += int64(i) * 1000
		wr.Write(&e)
	}
	if err := wr.Close(); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		r, err := traces.NewReader(bytes.NewReader(file.Bytes()))
		if err != nil {
			b.Fatal(err)
		}
		d := NewDecoder(&r.Header)
		var buf []byte
		lines, text := 0, 0
		for e, err := range r.All() {
			if err != nil {
				b.Fatal(err)
			}
			buf = d.appendLine(buf, e, nil)
			lines++
			if len(buf) > 64<<10 {
				k, _ := io.Discard.Write(buf)
				text += k
				buf = buf[:0]
			}
		}
		if lines != n || text < 100*n {
			b.Fatal(lines, text)
		}
		r.Close()
	}
	b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}
