package export

import (
	"io"
	"runtime"
	"testing"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/ioctl"
	"nvtrace/traces"
)

// benchEvents is how many events an iteration of the benchmarks has.
const benchEvents = 1_000_000

// replicate gives n events to f: those of a recording again and again, as
// processes that follow one another.
func replicate(one []*traces.Event, n int, f func(*traces.Event)) {
	span, files := int64(0), uint32(0)
	for _, ev := range one {
		span, files = max(span, ev.Time+ev.Dur), max(files, ev.File)
	}
	var c traces.Event
	for round := 0; n > 0; round++ {
		for _, ev := range one {
			if ev.Kind == traces.KindEnd {
				continue
			}
			if n--; n < 0 {
				return
			}
			c = *ev
			c.Time += int64(round) * span
			c.PID += int32(round) * 1000
			c.TID += int32(round) * 1000
			if c.Child != 0 {
				c.Child += int32(round) * 1000
			}
			if c.File != 0 {
				c.File += uint32(round) * files
			}
			f(&c)
		}
	}
}

// counter counts what is written.
type counter struct{ n int64 }

func (c *counter) Write(b []byte) (int, error) {
	c.n += int64(len(b))
	return len(b), nil
}

// BenchmarkExport exports 1,000,000 events of a real program over and over.
// "decode" is what each of them costs before a view sees it, "objects" that
// with the tree that both views need.
func BenchmarkExport(b *testing.B) {
	h, one := recording(b, "../../../../traces/corpus/vectoradd.nvt")
	run := func(name string, start func(d *ioctl.Decoder) (add observe.Observer, end func() int64)) {
		b.Run(name, func(b *testing.B) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			out := int64(0)
			for b.Loop() {
				d := ioctl.NewDecoder(h)
				o, end := start(d)
				replicate(one, benchEvents, following(d, o).Event)
				if out = end(); out <= 0 {
					b.Fatal("nothing came out")
				}
			}
			runtime.ReadMemStats(&after)
			events := float64(b.N) * benchEvents
			b.ReportMetric(events/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(float64(after.Mallocs-before.Mallocs)/events, "allocs/event")
			b.ReportMetric(float64(out)/benchEvents, "outbytes/event")
		})
	}
	run("decode", func(*ioctl.Decoder) (observe.Observer, func() int64) {
		n := int64(0)
		return observe.Func(func(*observe.Event) { n++ }), func() int64 { return n }
	})
	run("objects", func(d *ioctl.Decoder) (observe.Observer, func() int64) {
		var s scene
		s.init(h, d)
		return observe.Func(func(e *observe.Event) { s.take(e); s.ledger.clean() }), func() int64 { return int64(len(s.names)) }
	})
	run("timeline", func(d *ioctl.Decoder) (observe.Observer, func() int64) {
		var w counter
		t := NewTimeline(&w, h, d)
		return t, func() int64 {
			if err := t.Close(); err != nil {
				b.Fatal(err)
			}
			return w.n
		}
	})
	run("profile", func(d *ioctl.Decoder) (observe.Observer, func() int64) {
		p := NewProfile(h, d)
		return p, func() int64 {
			if err := p.Write(io.Discard); err != nil {
				b.Fatal(err)
			}
			return int64(len(p.p.Sample))
		}
	})
}
