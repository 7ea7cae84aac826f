package sim

import (
	"slices"
	"testing"
)

// TestUndriven: where too many threads are in calls of the runtime for it to call the driver, the call is done, and
// it is said that nobody sees the driver's.
func TestUndriven(t *testing.T) {
	s, err := New(&Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p := &Process{sim: s, inDriver: maxInDriver}
	p.libs[libCUDA] = 1 << 20
	ran := 0
	c := &call{p: p, th: new(thread), conn: new(conn), entry: new(entry)}
	for range 2 {
		c.through(&underlying{name: "cuCtxSynchronize"}, func([6]uint64) result { ran++; return success })
	}
	if hints := s.Report().Hints; ran != 2 || !slices.Equal(hints, []string{undriven}) {
		t.Errorf("ran %d times, hints %q", ran, hints)
	}
}
