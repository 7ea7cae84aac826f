package record

import (
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/traces"
)

// TestThreadNames: names that threads give themselves are recorded, as the kernel keeps them, and none that a thread
// does not get.
func TestThreadNames(t *testing.T) {
	need.Tool(t, "gcc", "")
	bin := filepath.Join(t.TempDir(), "names")
	if out, err := exec.Command("gcc", "-O1", "-o", bin, "testdata/names.c", "-pthread").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	var sink list
	o := &Options{Sinks: []Sink{&sink}, Header: NewHeader([]string{bin}, 0, ""), Extend: func(r *Recorder) ([]Extension, error) {
		return []Extension{ThreadNames(r)}, nil
	}}
	o.Ptrace.Argv = []string{bin}
	if res, err := Run(t.Context(), o); err != nil || res.Status.ExitStatus() != 0 {
		t.Fatalf("%v, %v", res.Status, err)
	}
	var names []string
	for i := range sink.events {
		ev := &sink.events[i]
		if ev.Kind != traces.KindThread {
			continue
		}
		names = append(names, ev.Text)
		if ev.TID == ev.PID || ev.TID == 0 {
			t.Errorf("%q: process %d, thread %d", ev.Text, ev.PID, ev.TID)
		}
	}
	if want := []string{"worker 1", "a name of more "}; !slices.Equal(names, want) {
		t.Errorf("names %q, want %q", names, want)
	}
}
