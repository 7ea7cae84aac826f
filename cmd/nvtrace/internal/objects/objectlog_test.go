package objects

import (
	"encoding/json"
	"slices"
	"testing"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/internal/testrec"
	"nvtrace/ioctl"
	"nvtrace/rm"
	"nvtrace/traces"
)

// BenchmarkObjectLog takes in calls that make and free memory while many
// objects live: the cost must not grow with their number.
func BenchmarkObjectLog(b *testing.B) {
	for _, live := range []int{10, 100_000} {
		b.Run(map[int]string{10: "live=10", 100_000: "live=100000"}[live], func(b *testing.B) {
			rec, churn := churning(live)
			d := ioctl.NewDecoder(&rec.Header)
			l := NewObjectLog(d)
			feed := observe.NewFeed(d, l)
			for _, ev := range rec.Events {
				feed.Event(ev)
			}
			n := 0
			for b.Loop() {
				for _, ev := range churn {
					feed.Event(ev)
				}
				n += len(churn)
			}
			if got := l.Tree.Live(); got < live {
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

// FuzzObjects: whatever events say, every object of a drawing stands under its parent, and reports
// can be written.
func FuzzObjects(f *testing.F) {
	base := testrec.Shared()
	for seed := range uint64(40) {
		f.Add(seed, uint8(seed*7))
	}
	f.Fuzz(func(t *testing.T, seed uint64, n uint8) {
		events := base.Damaged(seed, n)
		d := ioctl.NewDecoder(&base.Header)
		l := NewObjectLog(d)
		feed := observe.NewFeed(d, l)
		for _, ev := range events {
			feed.Event(ev)
		}
		reportAll(t, l)
	})
}

// reportAll makes every report there is.
func reportAll(t *testing.T, l *ObjectLog) {
	for _, m := range []Moment{{Word: "end"}, {at: 20_000_000}, l.find(Moment{Word: "peak"})} {
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
	for _, n := range l.visible(Moment{}, true) {
		if (n.depth == 0) != n.o.IsClient() {
			t.Fatalf("%s: depth %d", n.o.Path(), n.depth)
		}
	}
}
