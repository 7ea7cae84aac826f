package agent

import "testing"

// TestClock: times of calls are CLOCK_MONOTONIC, though it is the processor's counter that is read at most of them.
func TestClock(t *testing.T) {
	const off = 2000 // ns, which a call's time may be off by
	tr := newTracer(t)
	tr.hooks(&Hook{Name: "at"})
	tr.run(compile(t, "testdata/clock.c"))
	if calls, returns, _ := tr.nesting(); calls != 20000 || returns != calls {
		t.Fatalf("%d calls, %d returns", calls, returns)
	}
	last := int64(0)
	for i := range tr.records {
		r := &tr.records[i]
		if r.End < last {
			t.Fatalf("record %d ended at %d, the one before at %d", i, r.End, last)
		}
		switch before := int64(r.Args[0]); {
		case r.Kind == KindReturn && r.Ret > r.End+off+1: // what it returns is when it was called
			t.Fatalf("a call of %d returned at %d", r.Ret, r.End)
		case r.Kind == KindCall && (r.Begin < before-off || before < last-off):
			t.Fatalf("a call of %d at %d, the last returned at %d", before, r.Begin, last)
		}
		last = r.End
	}
}
