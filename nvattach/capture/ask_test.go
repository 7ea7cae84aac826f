package capture_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nvtrace/nvattach/capture"
	"nvtrace/traces"
)

// TestHiddenLookups: where a kernel comes from that a slot of a hidden table has
// found, the driver is asked.
func TestHiddenLookups(t *testing.T) {
	p := needPrograms(t)
	for _, route := range []string{"hidden-function", "hidden-kernel", "hidden-library"} {
		t.Run(route, func(t *testing.T) {
			for how, out := range map[string]*outcome{
				"breakpoints": trace(t, p, &capture.Options{Audit: capture.AuditBreakpoints}, p.routes, route),
				"hooks":       traceRecorded(t, p, &capture.Options{Audit: capture.AuditHooks}, p.routes, route),
				"shared":      traceRecorded(t, p, &capture.Options{Audit: capture.AuditHooks, LaunchesShared: true}, p.routes, route),
			} {
				if out.status != 0 || len(out.driver) == 0 || !maps.Equal(out.images(), out.driver) {
					t.Errorf("%s: ended with %#x, captured %v, the driver was given %v", how, out.status, out.images(), out.driver)
				}
				if gaps := out.texts(traces.KindGap); len(gaps) > 0 {
					t.Errorf("%s: gaps: %q", how, gaps)
				}
				kernels := 0
				for _, ev := range out.events {
					if ev.Kind == traces.KindKernel {
						kernels++
						if ev.Name != "nothing" || ev.Image == nil || out.driver[ev.Image.SHA256] == 0 {
							t.Errorf("%s: kernel %q of image %v", how, ev.Name, ev.Image)
						}
					}
				}
				asked := 0
				for _, line := range out.lines {
					if line == "asked" {
						asked++
					}
				}
				if kernels != 1 || asked != 3 { // one kernel of one image, with three handles
					t.Errorf("%s: %d kernels, the driver was asked %d times", how, kernels, asked)
				}
			}
		})
	}
}

// TestKnownNotAsked: handles that were looked up cost no question.
func TestKnownNotAsked(t *testing.T) {
	p := needPrograms(t)
	out := trace(t, p, &capture.Options{Audit: capture.AuditBreakpoints}, p.routes, "many")
	if slices.Contains(out.lines, "asked") {
		t.Errorf("the driver was asked:\n%s", strings.Join(out.lines, "\n"))
	}
}

// TestUnknownFormat: what nobody can size reaches the driver as the program gave
// it. That it took it is a gap.
func TestUnknownFormat(t *testing.T) {
	p := needPrograms(t)
	for _, test := range []struct {
		what  string
		taken bool
	}{{"bad-elf", true}, {"bad-new", true}, {"bad-newrefused", false}} {
		store, err := capture.CreateStore(filepath.Join(t.TempDir(), "run.nvt"), 0)
		if err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(p.log)
		cmd := exec.Command(p.routes, test.what)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+p.dir)
		_ = cmd.Run() // its status is the driver's
		want, _ := readLog(t, p.log)
		if test.taken != (len(want) == 1) {
			t.Fatalf("%s: untraced, the driver was given %v", test.what, want)
		}
		out := trace(t, p, &capture.Options{Store: store}, p.routes, test.what)
		if out.status.ExitStatus() != cmd.ProcessState.ExitCode() || !maps.Equal(out.driver, want) {
			t.Errorf("%s: ended with %#x, untraced with %v; the driver was given %v, untraced %v", test.what, out.status, cmd.ProcessState, out.driver, want)
		}
		gaps := out.texts(traces.KindGap)
		if test.taken != (len(gaps) == 1 && strings.Contains(gaps[0], "the image's format is not known")) || !test.taken && len(gaps) != 0 {
			t.Errorf("%s: gaps %q", test.what, gaps)
		}
		said := 0
		for _, ev := range out.events {
			if ev.Kind == traces.KindImage && ev.Image.Format == "unknown" && ev.Image.SHA256 == "" && (ev.Ret == 0) == test.taken {
				said++
			}
		}
		if said != 1 {
			t.Errorf("%s: %d events tell of it", test.what, said)
		}
	}
}

// TestUnknownSlots: an image that is given to a slot that nobody knows is captured.
func TestUnknownSlots(t *testing.T) {
	p := needPrograms(t)
	store, err := capture.CreateStore(filepath.Join(t.TempDir(), "run.nvt"), 0)
	if err != nil {
		t.Fatal(err)
	}
	out := trace(t, p, &capture.Options{Store: store, Files: true, Audit: capture.AuditBreakpoints}, p.routes, "unknown")
	checkComplete(t, out, store)
	results := map[int64]int{}
	for _, ev := range out.events {
		if ev.Kind == traces.KindImage {
			results[ev.Ret]++
			if n := ev.Name; n != "EEEE0000-0000-0000-0000-000000000000[5]" && n != "EEEE0000-0000-0000-0000-000000000000[7]" || ev.Path != p.routes {
				t.Errorf("an image by %s from %s", ev.Name, ev.Path)
			}
		}
	}
	if want := map[int64]int{0: 3, 200: 1}; !maps.Equal(results, want) {
		t.Errorf("results of the slot: %v, want %v", results, want)
	}
	if notes := out.texts(traces.KindNote); !slices.ContainsFunc(notes, func(s string) bool { return strings.Contains(s, "[5] of the driver was called by "+p.routes) }) {
		t.Errorf("notes: %q", notes)
	}
}

// TestEarlyLaunches: launches whose records come late stop the program at first,
// and not for good.
func TestEarlyLaunches(t *testing.T) {
	p := needPrograms(t)
	for _, shared := range []bool{false, true} {
		for _, route := range []string{"often", "often-ex"} {
			out := traceRecorded(t, p, &capture.Options{Audit: capture.AuditHooks, LaunchesShared: shared}, p.routes, route)
			if gaps := out.texts(traces.KindGap); out.status != 0 || len(gaps) > 0 {
				t.Errorf("%s: ended with %#x, gaps %q", route, out.status, gaps)
			}
			if out.stats.Kernels != 1 || out.stats.Hits > 500 {
				t.Errorf("%s: %d kernels, %d stops in 2000 launches", route, out.stats.Kernels, out.stats.Hits)
			}
		}
	}
}

// TestFoundOften: a program that asks for a kernel before each of its launches is not stopped for that, and which
// kernel it launches is known.
func TestFoundOften(t *testing.T) {
	p := needPrograms(t)
	for how, o := range map[string]*capture.Options{
		"hooks": {Audit: capture.AuditHooks}, "breakpoints": {Audit: capture.AuditBreakpoints},
		"calls are recorded": {Audit: capture.AuditHooks, LaunchesShared: true, LookupsShared: true},
	} {
		out := traceRecorded(t, p, o, p.routes, "found-often")
		if gaps := out.texts(traces.KindGap); out.status != 0 || len(gaps) > 0 {
			t.Errorf("%s: ended with %#x, gaps %q", how, out.status, gaps)
		}
		if slices.Contains(out.lines, "asked") {
			t.Errorf("%s: the driver was asked", how)
		}
		few := uint64(10)
		if o.LaunchesShared {
			few = 300 // the first launches are looked at right away
		}
		if stops := out.stats.Hits; out.stats.Kernels != 1 || (stops > few) != (how == "breakpoints") {
			t.Errorf("%s: %d kernels, %d stops in 2000 launches", how, out.stats.Kernels, stops)
		}
	}
}

// TestLookedOften: look-ups that find what they have found before do not stop the program; modules that take the place
// of others are told apart.
func TestLookedOften(t *testing.T) {
	p := needPrograms(t)
	for how, o := range map[string]*capture.Options{
		"hooks": {Audit: capture.AuditHooks}, "calls are recorded": {Audit: capture.AuditHooks, LaunchesShared: true, LookupsShared: true},
		"breakpoints": {Audit: capture.AuditBreakpoints},
	} {
		out := traceRecorded(t, p, o, p.routes, "looked-often")
		if gaps := out.texts(traces.KindGap); out.status != 0 || len(gaps) > 0 {
			t.Errorf("%s: ended with %#x, gaps %q", how, out.status, gaps)
		}
		if slices.Contains(out.lines, "asked") {
			t.Errorf("%s: the driver was asked", how)
		}
		images := make(map[string]bool)
		for _, ev := range out.events {
			if ev.Kind == traces.KindKernel && ev.Image != nil && ev.Name == "nothing" {
				images[ev.Image.SHA256] = true
			}
		}
		few := uint64(100)
		if o.LaunchesShared {
			few = 1000 // the first launches are looked at right away
		}
		if stops := out.stats.Hits; len(images) != 3 || (stops > few) != (how == "breakpoints") {
			t.Errorf("%s: kernels of %d images, %d stops in 12000 launches", how, len(images), stops)
		}
	}
}

// TestHiddenAgain: the same handle, found by a hidden slot, means the kernel of
// another module each time.
func TestHiddenAgain(t *testing.T) {
	p := needPrograms(t)
	for how, out := range map[string]*outcome{
		"breakpoints": trace(t, p, &capture.Options{Audit: capture.AuditBreakpoints}, p.routes, "hidden-again"),
		"hooks":       traceRecorded(t, p, &capture.Options{Audit: capture.AuditHooks}, p.routes, "hidden-again"),
		"shared":      traceRecorded(t, p, &capture.Options{Audit: capture.AuditHooks, LaunchesShared: true}, p.routes, "hidden-again"),
	} {
		launched := make(map[string]int)
		for _, ev := range out.events {
			if ev.Kind == traces.KindKernel && ev.Image != nil {
				launched[ev.Image.SHA256]++
			}
		}
		if len(out.driver) != 5 || !maps.Equal(launched, out.driver) {
			t.Errorf("%s: launched %v, the driver was given %v", how, launched, out.driver)
		}
		if gaps := out.texts(traces.KindGap); len(gaps) > 0 {
			t.Errorf("%s: gaps %q", how, gaps)
		}
	}
}

// TestHiddenThreads: threads that launch such kernels at the same time.
func TestHiddenThreads(t *testing.T) {
	p := needPrograms(t)
	t.Setenv("ROUTES_LOOPS", "30")
	for how, out := range map[string]*outcome{
		"breakpoints": trace(t, p, &capture.Options{Audit: capture.AuditBreakpoints}, p.routes, "hidden-threads"),
		"hooks":       traceRecorded(t, p, &capture.Options{Audit: capture.AuditHooks}, p.routes, "hidden-threads"),
	} {
		if gaps := out.texts(traces.KindGap); out.status != 0 || len(gaps) > 0 {
			t.Errorf("%s: ended with %#x, %d gaps: %q", how, out.status, len(gaps), gaps[:min(len(gaps), 3)])
		}
		launched := make(map[string]int)
		for _, ev := range out.events {
			if ev.Kind == traces.KindKernel && ev.Image != nil {
				launched[ev.Image.SHA256]++
			}
		}
		if len(out.driver) != 240 || !maps.Equal(launched, out.driver) {
			t.Errorf("%s: %d images launched, the driver was given %d", how, len(launched), len(out.driver))
		}
	}
}
