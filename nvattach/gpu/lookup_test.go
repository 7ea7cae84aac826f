package gpu_test

import (
	"strconv"
	"strings"
	"testing"

	"nvtrace/nvattach/api"
)

// TestLater: kernels that get their programs when they are looked up have them, however a program
// finds them, and what was loaded for them goes with their modules.
func TestLater(t *testing.T) {
	prog := buildFrom(t, "later")
	names := &launchedNames{tracker: api.NewTracker(), of: make(map[string]int)}
	r := run(t, &setup{objects: []string{"example_count"}, later: true, required: true, names: names}, prog)
	text, ok := strings.CutPrefix(strings.TrimSpace(r.stdout), "PASSED ")
	if r.err != nil || !ok || r.status.ExitStatus() != 0 {
		t.Fatalf("error %v, status %#x, stdout %q, shown:\n%s", r.err, r.status, r.stdout, r.shown)
	}
	launches, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if in, out := r.entries(t, false); in != 128*launches || out != 128*launches {
		t.Errorf("%d entries, %d exits, want %d\n%s", in, out, 128*launches, r.shown)
	}
	total := uint64(0)
	for name, n := range names.of {
		if total += uint64(n); !strings.HasPrefix(name, "add") {
			t.Errorf("%d launches of a kernel called %q", n, name)
		}
	}
	if total != launches {
		t.Errorf("%d launches were recorded, want %d", total, launches)
	}
	if len(r.reports) > 0 {
		t.Errorf("reports: %q", r.reports)
	}
	if r.replaced != 0 {
		t.Errorf("%d images were replaced", r.replaced)
	}
}
