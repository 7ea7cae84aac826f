package procmap

import (
	"math/rand"
	"testing"
)

// TestMap compares with a plain map, which knows nothing of processes.
func TestMap(t *testing.T) {
	const steps, pids, addrs = 100_000, 5, 40
	r := rand.New(rand.NewSource(1)) //nolint:gosec // the same steps each time
	var m Map[int]
	want := make(map[key]int)
	for i := range steps {
		k := key{int32(r.Intn(pids)), uint64(r.Intn(addrs))} //nolint:gosec // small numbers
		old, is := want[k]
		switch r.Intn(40) {
		case 0:
			sum, all := 0, 0
			for v := range m.TakeAll(k.pid) {
				sum += v
			}
			for at, v := range want {
				if at.pid == k.pid {
					all += v
					delete(want, at)
				}
			}
			if sum != all {
				t.Fatalf("step %d: the values of process %d sum to %d, want %d", i, k.pid, sum, all)
			}
		case 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12:
			if v, ok := m.Take(k.pid, k.addr); v != old || ok != is {
				t.Fatalf("step %d: took %d, %t, want %d, %t", i, v, ok, old, is)
			}
			delete(want, k)
		default:
			m.Put(k.pid, k.addr, i)
			want[k] = i
		}
		if m.Len() != len(want) {
			t.Fatalf("step %d: %d values, want %d", i, m.Len(), len(want))
		}
	}
	for pid := range int32(pids) {
		for range m.TakeAll(pid) {
		}
	}
	if m.Len() != 0 || len(m.first) != 0 {
		t.Errorf("%d values and %d processes are left", m.Len(), len(m.first))
	}
}
