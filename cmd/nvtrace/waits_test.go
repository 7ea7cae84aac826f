package main

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"nvtrace/traces"
)

// TestTimesBehindWaits: what a GPU does on one stream begins, by events, when what it waits for on another one
// has ended, however it waits.
func TestTimesBehindWaits(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("programs on the simulated GPU are of amd64")
	}
	waits, nvtrace := filepath.Join(t.TempDir(), "waits"), filepath.Join(t.TempDir(), "nvtrace")
	if !compileVictim(t, "testdata/waits.c", waits) {
		t.Skip("no gcc")
	}
	buildNvtrace(t, nvtrace)
	for _, how := range []string{"event", "value", "legacy", "default", "host"} {
		t.Run(how, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "run.nvt")
			if out, err := exec.Command(nvtrace, "-q", "--sim", "--gpu-times=events", "-o", file, "--", waits, how).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			var lengthy, brief, sets []traces.Work
			first := uint64(0) // the handle of lengthy
			for _, ev := range eventsOf(t, file) {
				if ev.Kind != traces.KindGPU {
					continue
				}
				switch w := ev.Work(); {
				case ev.Name == "cuMemsetD32Async":
					sets = append(sets, w)
				case ev.Name != "cuLaunchKernel":
				case first == 0 || w.Subject == first:
					first = w.Subject
					lengthy = append(lengthy, w)
				default:
					brief = append(brief, w)
				}
			}
			if len(lengthy) != 5 || len(brief) != 5 || len(sets) != 5 {
				t.Fatalf("%d, %d and %d works, want 5 of each", len(lengthy), len(brief), len(sets))
			}
			for i := range lengthy {
				over := lengthy[i].Start + lengthy[i].Dur
				for _, w := range []traces.Work{sets[i], brief[i]} {
					if w.Start < over-w.Margin-lengthy[i].Margin {
						t.Errorf("round %d: it began %d ns before what it waited for was over, for %d ns", i, over-w.Start, w.Dur)
					}
				}
			}
		})
	}
}
