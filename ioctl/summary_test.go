package ioctl

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"nvtrace/traces"
)

// summary counts all events of the world.
func (w *world) summary() *Report {
	d := NewDecoder(w.header())
	s := NewSummary(w.header())
	for _, e := range w.events {
		c := d.Decode(e)
		s.Add(e, &c)
	}
	return s.Report()
}

func TestSummary(t *testing.T) {
	var files []txtar.File
	for _, s := range []struct {
		name string
		w    *world
	}{{"memory", memory(t)}, {"uvm", uvm(t)}, {"odd", odd(t)}} {
		r := s.w.summary()
		data, err := json.MarshalIndent(r, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, txtar.File{Name: s.name, Data: append(data, '\n')})
		var calls, failed uint64
		for _, c := range r.Calls {
			calls += c.Calls
			failed += c.Failed
		}
		var failures uint64
		for _, f := range r.Failures {
			failures += f.Count
		}
		if calls != r.Ioctls || failed != r.Failed || failures != r.Failed || r.Events != uint64(len(s.w.events)) {
			t.Errorf("%s: totals do not add up: %d calls of %d, %d failed, %d failures of %d", s.name, calls, r.Ioctls, failed, failures, r.Failed)
		}
		if d := cmp.Diff(r, s.w.summary()); d != "" {
			t.Errorf("%s: not the same twice:\n%s", s.name, d)
		}
	}
	golden(t, "testdata/summary.txtar", files)
}

// TestSummaryMaps: mapped bytes by kind, live and at most.
func TestSummaryMaps(t *testing.T) {
	w := newWorld(t, testDriver)
	w.open(7, "nvidia-uvm")
	uvm := func(addr, size uint64) { w.mmap(7, size, addr) }
	uvm(0x1000_0000, 0x3000)
	uvm(0x2000_0000, 0x5000)
	w.add(&traces.Event{Kind: traces.KindMunmap, FD: -1, Args: [6]uint64{0x1000_0000, 0x3000}})
	w.add(&traces.Event{Kind: traces.KindMunmap, FD: -1, Args: [6]uint64{0x1000_0000, 0x3000}}) // twice
	uvm(0x2000_0000, 0x1000)                                                                    // over the old one
	r := w.summary()
	want := []MapCount{{Node: "nvidia-uvm", What: "managed memory", Maps: 3, Live: 0x1000, Peak: 0x8000, Total: 0x9000}}
	if d := cmp.Diff(want, r.Maps); d != "" || r.MapLive != 0x1000 || r.MapPeak != 0x8000 {
		t.Errorf("live %#x, peak %#x (-want +got):\n%s", r.MapLive, r.MapPeak, d)
	}
	w.add(&traces.Event{Kind: traces.KindExit, FD: -1})
	if r := w.summary(); r.MapLive != 0 || r.Maps[0].Live != 0 {
		t.Errorf("after exit: %+v", r.Maps)
	}
}

// TestHistogram compares percentiles with those of the sorted values.
func TestHistogram(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		var h histogram
		values := make([]int64, 1+r.IntN(300))
		for i := range values {
			values[i] = r.Int64() >> r.IntN(63)
			h.add(values[i])
		}
		slices.Sort(values)
		for _, q := range []uint64{50, 99} {
			want := values[(uint64(len(values))*q+99)/100-1]
			got := h.quantile(q)
			if got < want || float64(got) > float64(want)*1.125+1 {
				t.Fatalf("p%d of %d values: %d, histogram says %d", q, len(values), want, got)
			}
		}
	}
	for b := range 487 {
		if up := upper(b); bucketOf(up) != b || up < 1<<62 && bucketOf(up+1) != b+1 {
			t.Fatalf("bucket %d ends at %d", b, up)
		}
	}
	if bucketOf(1<<63-1) >= len(histogram{}.buckets) || bucketOf(-5) != 0 {
		t.Error("extreme durations")
	}
}
