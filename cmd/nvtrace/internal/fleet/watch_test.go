package fleet

import (
	"testing"
	"time"
)

// TestWatchTells: a finding is printed once when it begins, and once when it is over; differences between ranks are not.
func TestWatchTells(t *testing.T) {
	hang := Finding{Kind: Hang, Cause: "missing enter", Files: []string{"run.2.nvt"}, Since: 7}
	later := hang
	later.Text = "other words"
	paused := Finding{Kind: Paused, Cause: "host", Files: []string{"run.0.nvt"}}
	var w Watch
	for i, step := range []struct {
		findings []Finding
		want     []string
	}{
		{nil, nil},
		{[]Finding{{Kind: Differs, Cause: "driver", Files: []string{"run.1.nvt"}}}, nil},
		{[]Finding{hang, paused}, []string{"new hang", "new paused"}},
		{[]Finding{later, paused}, nil},
		{[]Finding{{Kind: Hang, Cause: "missing enter", Files: []string{"run.3.nvt"}}}, []string{"over hang", "new hang"}},
		{nil, []string{"over hang"}},
	} {
		var got []string
		for _, c := range w.Next(&Report{Findings: step.findings}, time.Unix(int64(i), 0)) {
			got = append(got, c.State+" "+c.Finding.Kind)
		}
		if len(got) != len(step.want) {
			t.Fatalf("step %d: %q, want %q", i, got, step.want)
		}
		for k := range got {
			if got[k] != step.want[k] {
				t.Errorf("step %d: %q, want %q", i, got, step.want)
			}
		}
	}
	if !w.Found() {
		t.Error("there was a hang")
	}
}
