package script

import (
	"strings"
	"testing"

	"nvtrace/nvattach"
	"nvtrace/nvattach/object"
)

// TestTogether: what the threads of a warp do together, in a program of one line. Of the kernel's
// blocks each has 48 threads: a whole warp, and a half.
func TestTogether(t *testing.T) {
	p, err := Compile("-e", `kernel:* { @votes[ballot(tid.x % 16 == 0)] = count(); @any = sum(any(tid == 40)); @all = sum(all(tid.x < 32)); @other = sum(shuffle(tid, laneid ^ 1) - tid); @none = sum(shuffle(tid + 1, 99)); }`)
	if err != nil {
		t.Fatal(err)
	}
	w := launch(t, p, nil)
	tables, _ := w.tables(t, p)
	got := shownOf(p.Show(tables, true))
	for _, want := range []string{"@votes[1]: 48\n", "@votes[65537]: 96\n", "@any: 16\n", "@all: 96\n", "@other: 0\n", "@none: 0\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	if p, err = Compile("-e", `kernel:* /tid < 5/ { @ = sum(ballot(1)); }`); err != nil {
		t.Fatal(err)
	}
	if _, err := nvattach.NewPlan([]*object.Object{p.Object}, nil); err == nil || !strings.Contains(err.Error(), "may have parted") {
		t.Errorf("behind a filter on the thread: %v", err)
	}
}
