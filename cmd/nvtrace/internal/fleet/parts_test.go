package fleet

import (
	"math/rand/v2"
	"slices"
	"testing"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/traces"
)

// TestParts: recordings that are taken in part by part, of all ranks in turn, come to what they come to as wholes.
func TestParts(t *testing.T) {
	for _, fault := range []string{"", "sleep", "kernel", "copies", "size", "missing", "kill", "driver version"} {
		for _, noGPU := range []bool{false, true} {
			m := &made{ranks: 16, steps: 120, perHost: 8, fault: fault, rank: 5, from: 40, noGPU: noGPU, noise: 300_000}
			whole := m.report(nil)
			m.random = rand.New(rand.NewPCG(uint64(m.ranks), uint64(len(m.fault))))
			plan, ends := m.plan()
			order := m.random.Perm(m.ranks)
			parts := make([][]*Part, m.ranks)
			for _, rank := range order {
				r := NewRecorded(m.record(rank, plan[rank], ends).File, m.header(rank))
				feed := observe.NewFeed(nil, r)
				feed.Undecoded = true
				feed.Follow()
				n := 0
				r.Complete = m.events(rank, plan[rank], ends, func(ev *traces.Event) {
					feed.Event(ev)
					if n++; n%97 == rank {
						parts[rank] = append(parts[rank], r.Part(false))
					}
				})
				parts[rank] = append(parts[rank], r.Part(true))
			}
			f := New(nil)
			for i := range slices.MaxFunc(parts, func(a, b []*Part) int { return len(a) - len(b) }) {
				for _, rank := range order {
					if i < len(parts[rank]) {
						f.Add(parts[rank][i])
					}
				}
			}
			r := f.Report()
			if len(r.Findings) != len(whole.Findings) || r.Collectives != whole.Collectives || r.By != whole.By {
				t.Errorf("%q: %d collectives by %q: %+v, want %d by %q: %+v", fault, r.Collectives, r.By, r.Findings, whole.Collectives, whole.By, whole.Findings)
				continue
			}
			for i, x := range r.Findings {
				w := whole.Findings[i]
				if x.Kind != w.Kind || x.Cause != w.Cause || !slices.Equal(x.Ranks, w.Ranks) || x.Late != w.Late || x.Of != w.Of || max(x.Since-w.Since, w.Since-x.Since) > 100_000 {
					t.Errorf("%q: %+v, want %+v", fault, x, w)
				}
			}
			for i := range r.Ranks {
				if a, b := r.Ranks[i], whole.Ranks[i]; a.File != b.File || a.Events != b.Events || a.Collectives != b.Collectives || a.End != b.End || a.doing != b.doing {
					t.Errorf("%q: %+v, want %+v", fault, a, b)
				}
			}
		}
	}
}

// TestOpen: while a collective is not over, it is known by what the ranks that are in it call, and that they differ.
func TestOpen(t *testing.T) {
	m := &made{ranks: 4, steps: 60, perHost: 4, fault: "missing", rank: 2, from: 40}
	m.random = rand.New(rand.NewPCG(1, 1))
	plan, ends := m.plan()
	f := New(nil)
	for rank := range m.ranks {
		r := NewRecorded(m.record(rank, plan[rank], ends).File, m.header(rank))
		feed := observe.NewFeed(nil, r)
		feed.Undecoded = true
		feed.Follow()
		m.events(rank, plan[rank], ends, func(ev *traces.Event) {
			if ev.Kind == traces.KindExit {
				return
			}
			feed.Event(ev)
		})
		f.Add(r.Part(false))
	}
	now := madeStart + ends[len(ends)-1] + 60e9
	f.now = now
	r := f.Report()
	if len(r.Findings) != 1 || r.Findings[0].Kind != Hang || r.Findings[0].Cause != "missing enter" || !slices.Equal(r.Findings[0].Ranks, []int{2}) {
		t.Fatalf("%+v", r.Findings)
	}
	// One calls it with another size, and all wait.
	for rank := range 4 {
		k := f.comms[firstComm(f)].members[rank]
		k.entered, k.first, k.at, k.since, k.known, k.what.count = 41, 41, 41, madeStart+ends[40], true, 1024
		if k.what.name = "AllReduce"; rank == 1 {
			k.what.count = 7
		}
	}
	if r := f.Report(); len(r.Findings) != 1 || r.Findings[0].Kind != Mismatch || !slices.Equal(r.Findings[0].Ranks, []int{1}) {
		t.Errorf("%+v", r.Findings)
	}
}

func firstComm(f *Fleet) uint64 {
	for id := range f.comms {
		return id
	}
	return 0
}
