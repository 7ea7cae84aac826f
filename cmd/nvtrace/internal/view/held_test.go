package view

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/traces"
)

// TestHeldCalls: what a header says of library calls decides, even if none came.
func TestHeldCalls(t *testing.T) {
	for _, tt := range []struct {
		header             string
		any, each, counted bool
		silent             string
	}{
		{"", false, false, false, "not recorded (--api)"},
		{"none", false, false, false, "not recorded (--api)"},
		{"driver", true, true, false, ""},
		{"driver,runtime,cublas", true, true, false, ""},
		{"cublas", true, false, false, "those of cublas alone"},
		{"driver,count", true, false, true, "only counted"},
		{"nonsense", false, false, false, "not recorded (--api)"},
	} {
		h := heldOf(tt.header)
		if h.any() != tt.any || h.each() != tt.each || h.counted != tt.counted || !strings.Contains(h.silent(), tt.silent) || (h.silent() == "") != (tt.silent == "") {
			t.Errorf("%q: %+v, %q", tt.header, h, h.silent())
		}
	}
}

// TestReadersMemory: what views keep of a recording is bounded, whatever it holds, and what they
// leave out is counted.
func TestReadersMemory(t *testing.T) {
	const events, most = 200_000, 40 << 20
	live := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := live()
	var f found
	g := &moduleGatherer{r: new(modulesReport), images: make(map[string]*moduleImage), exes: make(map[int32]string), loads: make(map[loadKey]*moduleLoad), known: make(map[[3]string]bool)}
	for i := range events {
		name := fmt.Sprintf("%064x", i)
		f.Observe(&observe.Event{Event: &traces.Event{Kind: traces.KindMap, Name: name, Text: "@: 1\n", Data: `{"map":"@"}`}})
		f.Observe(&observe.Event{Event: &traces.Event{Kind: traces.KindProbe, Name: name, Probe: &traces.Probe{Reason: name}}})
		g.Observe(&observe.Event{Event: &traces.Event{Kind: traces.KindImage, Name: "cuModuleLoadData", Image: &traces.Image{SHA256: name, Format: "ptx", Size: 1}}})
	}
	if got := int64(live() - before); got > most {
		t.Errorf("%d MiB are kept", got>>20)
	}
	if n := len(f.maps) + f.moreMaps; n != events || f.moreMaps == 0 {
		t.Errorf("%d of %d maps are accounted for", n, events)
	}
	if n := len(g.r.Images) + g.r.More; n != events || g.r.More == 0 {
		t.Errorf("%d of %d images are accounted for", n, events)
	}
	runtime.KeepAlive(&f)
	runtime.KeepAlive(g)
}
