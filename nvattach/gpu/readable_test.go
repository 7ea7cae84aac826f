package gpu_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// TestReadsMemory: programs read what is allocated when the kernel runs, whether it was before or
// after probes were there, and nothing else; the program does not notice.
func TestReadsMemory(t *testing.T) {
	t.Parallel()
	const n, threads = 1000, 1024
	r := run(t, &setup{objects: []string{"readparam"}}, buildFrom(t, "reads"))
	if r.err != nil || r.stdout != "PASSED\n" || len(r.reports) > 0 {
		t.Fatalf("error %v, stdout %q, reports %q, shown:\n%s", r.err, r.stdout, r.reports, r.shown)
	}
	want := []uint64{4 * n, 7*threads - 4*n, 4 * n * (n - 1) / 2}
	if got := r.array(t, "sums"); !slices.Equal(got, want) {
		t.Errorf("read, not read, sum: %d, want %d", got, want)
	}
}

// TestReadsMemoryForked: nothing is known of what a child has allocated whose parent has the driver
// loaded; so nothing is read, and it is said.
func TestReadsMemoryForked(t *testing.T) {
	t.Parallel()
	r := run(t, &setup{objects: []string{"readparam"}}, buildFrom(t, "reads"), "fork")
	if r.err != nil || r.stdout != "PASSED\n" || len(r.reports) != 1 || !strings.Contains(r.reports[0], "read no memory of the GPU: ") {
		t.Fatalf("error %v, stdout %q, reports %q, shown:\n%s", r.err, r.stdout, r.reports, r.shown)
	}
	if got, want := r.array(t, "sums"), []uint64{0, 7 * 1024, 0}; !slices.Equal(got, want) {
		t.Errorf("read, not read, sum: %d, want %d", got, want)
	}
}

// TestRunningReadsNoMemory: nor of a program that was attached to.
func TestRunningReadsNoMemory(t *testing.T) {
	r := startRunning(t, vectorAddPTX(t), "")
	v := r.attachObject("readparam", probed)
	if len(v.reports) != 1 || !strings.Contains(v.reports[0], "read no memory of the GPU: ") {
		t.Errorf("reports %q, shown:\n%s", v.reports, v.shown)
	}
	got := (&result{shown: v.shown}).array(t, "sums")
	if len(got) != 3 || got[0] != 0 || got[1] == 0 {
		t.Errorf("read, not read, sum: %d\n%s", got, v.shown)
	}
	r.end()
}

// array returns the values of an array.
func (r *result) array(t *testing.T, name string) (list []uint64) {
	t.Helper()
	for dec := json.NewDecoder(strings.NewReader(r.shown)); ; {
		var o struct {
			Map     string
			Entries []struct{ Key, Value uint64 }
		}
		if dec.Decode(&o) != nil {
			return list
		}
		for i := 0; o.Map == name && i < len(o.Entries); i++ {
			list = append(list, o.Entries[i].Value)
		}
	}
}
