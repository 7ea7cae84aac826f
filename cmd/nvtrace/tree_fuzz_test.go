package main

import (
	"encoding/json"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"nvtrace/internal/testrec"
	"nvtrace/ioctl"
	"nvtrace/ioctl/allow"
	"nvtrace/ioctl/diff"
	"nvtrace/rm"
	"nvtrace/traces"
)

// FuzzReports damages a recording's bytes: whatever programs and recordings
// hold, reports come out, a run does not differ from itself, lacks nothing of
// its own list, and every object of a drawing stands under its parent.
func FuzzReports(f *testing.F) {
	base := scripted()
	for seed := range uint64(40) {
		f.Add(seed, uint8(seed*7))
	}
	f.Fuzz(func(t *testing.T, seed uint64, n uint8) {
		r := rand.New(rand.NewPCG(seed, uint64(n)))
		events := make([]*traces.Event, len(base.Events))
		for i, e := range base.Events {
			events[i] = e.Clone()
		}
		for range n {
			damage(r, events)
		}
		var profiles [2]*diff.Profile
		c := allow.NewCollector()
		for i := range profiles {
			d := ioctl.NewDecoder(&base.Header)
			p := diff.NewProfile(&base.Header, nil)
			for _, ev := range events {
				call := d.Decode(ev)
				p.Add(ev, &call, d)
				if i == 0 {
					c.Add(ev, &call, d)
				}
			}
			profiles[i] = p
		}
		if r := diff.Compare(profiles[0], profiles[1]); !r.Same {
			t.Fatalf("differs from itself: %s", r.AppendText(nil))
		}
		d := ioctl.NewDecoder(&base.Header)
		k := allow.NewChecker(c.List)
		book := newFailureBook(d)
		for _, ev := range events {
			call := d.Decode(ev)
			k.Add(ev, &call, d)
			book.add(ev, &call, nil, d)
		}
		if l := k.Lacks(); len(l) > 0 {
			t.Fatalf("lacks %s", l[0].LackText())
		}
		reportAll(t, book)
	})
}

// damage changes something in some event.
func damage(r *rand.Rand, events []*traces.Event) {
	ev := events[r.IntN(len(events))]
	switch r.IntN(8) {
	case 0:
		ev.Flags ^= 1 << r.IntN(9)
	case 1:
		ev.Args[r.IntN(6)] = r.Uint64() >> r.IntN(64)
	case 2:
		ev.Ret = int64(r.Uint64()) >> r.IntN(64)
	case 3:
		ev.PID, ev.File = []int32{100, 200, 300}[r.IntN(3)], uint32(r.IntN(9))
	default:
		if len(ev.Mem) == 0 {
			return
		}
		s := &ev.Mem[r.IntN(len(ev.Mem))]
		for _, b := range [][]byte{s.In, s.Out} {
			if len(b) > 0 {
				// Small numbers stay plausible handles, counts and sizes.
				b[r.IntN(len(b))] ^= byte(1 << r.IntN(8))
			}
		}
		if r.IntN(8) == 0 {
			s.In = s.In[:r.IntN(len(s.In)+1)]
			if s.Out != nil {
				s.Out = slices.Clone(s.Out[:r.IntN(len(s.Out)+1)])
			}
		}
	}
}

// reportAll makes every report there is.
func reportAll(t *testing.T, book *failureBook) {
	l := book.l
	for _, m := range []moment{{word: "end"}, {at: 20_000_000}, l.find(moment{word: "peak"})} {
		for _, all := range []bool{false, true} {
			nodes := l.visible(m, all)
			for i, n := range nodes {
				if n.depth > 0 && (i == 0 || !slices.ContainsFunc(nodes[:i], func(p node) bool { return p.o == n.o.Parent && p.depth == n.depth-1 })) {
					t.Fatalf("%s stands without its parent", n.o.Path())
				}
			}
			for _, v := range []any{l.report(m, all), l.mapReport(m, all, 0)} {
				if b, err := json.Marshal(v); err != nil || !json.Valid(b) {
					t.Fatal(err)
				}
			}
		}
	}
	for _, n := range l.visible(moment{}, true) {
		if (n.depth == 0) != n.o.IsClient() {
			t.Fatalf("%s: depth %d", n.o.Path(), n.depth)
		}
	}
	if err := book.write(io.Discard, new(layout)); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkObjectLog takes in calls that make and free memory while many
// objects live: the cost must not grow with their number.
func BenchmarkObjectLog(b *testing.B) {
	for _, live := range []int{10, 100_000} {
		b.Run(map[int]string{10: "live=10", 100_000: "live=100000"}[live], func(b *testing.B) {
			rec, churn := churning(live)
			d := ioctl.NewDecoder(&rec.Header)
			l := newObjectLog(d)
			for _, ev := range rec.Events {
				c := d.Decode(ev)
				l.add(ev, &c)
			}
			n := 0
			for b.Loop() {
				for _, ev := range churn {
					c := d.Decode(ev)
					l.add(ev, &c)
				}
				n += len(churn)
			}
			if got := l.tree.Live(); got < live {
				b.Fatalf("%d objects live, want %d", got, live)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/event")
		})
	}
}

// churning is a recording that leaves live objects behind, and a pair of calls
// that make and free one more.
func churning(live int) (rec *testrec.Recording, churn []*traces.Event) {
	rec = testrec.New("580.142")
	p := rec.Program(100)
	p.Open(3, "nvidiactl")
	p.Client(testrec.Client)
	p.Alloc(testrec.Client, testrec.Client, testrec.Device, 0x80, rec.New("NV0080_ALLOC_PARAMETERS").B, rm.OK)
	for i := range live {
		p.Memory(testrec.Client, testrec.Device, 0x60000000+uint32(i), 0x40, 2<<20)
	}
	kept := len(rec.Events)
	p.Memory(testrec.Client, testrec.Device, 0x50000000, 0x40, 2<<20)
	p.Free(testrec.Client, testrec.Device, 0x50000000, rm.OK)
	churn = rec.Events[kept:]
	rec.Events = rec.Events[:kept]
	return rec, churn
}
