package view

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/ioctl"
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

// liveHeap is how much memory is in use.
func liveHeap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestMappingsMemory: what the summary keeps of mappings is bounded, of however many processes and nodes
// they are.
func TestMappingsMemory(t *testing.T) {
	const events, most = 200_000, 40 << 20
	for _, tt := range []struct {
		name string
		of   func(i int) (pid int32, node string)
	}{
		{"one process", func(int) (int32, string) { return 100, "nvidiactl" }},
		{"a process each", func(i int) (int32, string) { return int32(100 + i), "nvidiactl" }},
		{"a node each", func(i int) (int32, string) { return 100, fmt.Sprintf("nvidia%d", i) }},
	} {
		h := &traces.Header{Driver: "580.159.04", PID: 100}
		before := liveHeap()
		s, b := ioctl.NewSummary(h), newFailureBook(ioctl.NewDecoder(h))
		for i := range events {
			pid, node := tt.of(i)
			ev := &traces.Event{Kind: traces.KindMmap, PID: pid, TID: pid, Ret: int64(0x7f0000000000 + i*8192), Args: [6]uint64{0, 8192, 3, 1}, Dev: node}
			c := new(ioctl.Call)
			s.Add(ev, c)
			b.Observe(&observe.Event{Event: ev, Call: c})
		}
		if got := int64(liveHeap() - before); got > most {
			t.Errorf("%s: %d MiB are kept", tt.name, got>>20)
		}
		r := s.Report()
		all := uint64(0)
		for i := range r.Maps {
			all += r.Maps[i].Maps
		}
		if all != events || r.MapLive != events*8192 || len(r.Maps) > 2000 {
			t.Errorf("%s: %d mappings of %d bytes in %d rows", tt.name, all, r.MapLive, len(r.Maps))
		}
		for i := range events {
			pid, _ := tt.of(i)
			s.Add(&traces.Event{Kind: traces.KindExit, PID: pid, TID: pid}, new(ioctl.Call))
		}
		if r := s.Report(); r.MapLive != 0 {
			t.Errorf("%s: %d bytes are mapped when all have ended", tt.name, r.MapLive)
		}
		runtime.KeepAlive(b)
	}
}

// TestReadersMemory: what views keep of a recording is bounded, whatever it holds, and what they
// leave out is counted.
func TestReadersMemory(t *testing.T) {
	const events, most = 200_000, 40 << 20
	before := liveHeap()
	var f found
	g := &moduleGatherer{r: new(modulesReport), images: make(map[string]*moduleImage), exes: make(map[int32]string), loads: make(map[loadKey]*moduleLoad), known: make(map[[3]string]bool)}
	for i := range events {
		name := fmt.Sprintf("%064x", i)
		f.Observe(&observe.Event{Event: &traces.Event{Kind: traces.KindMap, Name: name, Text: "@: 1\n", Data: `{"map":"@"}`}})
		f.Observe(&observe.Event{Event: &traces.Event{Kind: traces.KindProbe, Name: name, Probe: &traces.Probe{Reason: name}}})
		g.Observe(&observe.Event{Event: &traces.Event{Kind: traces.KindImage, Name: "cuModuleLoadData", Image: &traces.Image{SHA256: name, Format: "ptx", Size: 1}}})
	}
	if got := int64(liveHeap() - before); got > most {
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
