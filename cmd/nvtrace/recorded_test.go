package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"nvtrace/nvattach/script"
	"nvtrace/traces"
)

// zeros are numbers that a view may only show where they were measured.
var zeros = regexp.MustCompile(`0 +(kernel launches|copies|other copies|allocations|frees|waits|loads of code|calls of the)|0 bytes in 0 allocations|No call failed|failed calls +none\n|"library_time": 0`)

// TestNotRecorded: of recordings without library calls, which also old ones are, no view and no
// tool shows zeros for these.
func TestNotRecorded(t *testing.T) {
	names, err := filepath.Glob("../../traces/corpus/*.nvt")
	if err != nil || len(names) == 0 {
		t.Fatal(err)
	}
	views := map[string]struct {
		verb func(*env, []string, []string) int
		args []string
		says string // "": nothing, as it has no such numbers
	}{
		"stat":          {statVerb, nil, `<not recorded> +kernel launches +#  --api records it\n`},
		"report":        {reportVerb, nil, `in CUDA's libraries +not recorded \(--api\)|calls of CUDA's libraries: not recorded`},
		"report --json": {reportVerb, []string{"--json"}, `"library_time": null`},
		"failures":      {failuresVerb, nil, `No call of the driver failed; calls of CUDA's libraries: not recorded \(--api\)|nvtrace: .*: calls of CUDA's libraries: not recorded`},
		"failures json": {failuresVerb, []string{"--json"}, `nvtrace: .*: calls of CUDA's libraries: not recorded \(--api\)`},
		"log":           {logVerb, []string{"-e", "api=cu*"}, `not recorded \(--api\)`},
		"script":        {logVerb, []string{"-e", "launch:* { @ = count(); } END { printf(\"%d\\n\", 0); }"}, `launch:\*: not recorded \(--api\)`},
	}
	for _, tool := range script.Tools() {
		view := views["stat"]
		view.verb, view.args, view.says = logVerb, []string{"--tool", tool.Name}, `not recorded \(--api\)`
		switch p, err := script.Compile("", tool.Source); {
		case err != nil:
			t.Fatal(err)
		case p.Object != nil: // of kernels
			view.says = "a recording has no kernels that run"
		case onlyIoctls(p):
			view.says = ""
		}
		views["tool "+tool.Name] = view
	}
	for what, view := range views {
		for _, name := range names {
			_, stdout, stderr := runVerbFunc(t, view.verb, append(view.args, name)...)
			if bad := zeros.FindString(stdout + stderr); bad != "" {
				t.Errorf("%s of %s says %q", what, name, bad)
			}
			if !regexp.MustCompile(view.says).MatchString(stdout + stderr) {
				t.Errorf("%s of %s does not say %s: %s%s", what, name, view.says, stdout, stderr)
			}
		}
	}
}

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
		f.add(&traces.Event{Kind: traces.KindMap, Name: name, Text: "@: 1\n", Data: `{"map":"@"}`})
		f.add(&traces.Event{Kind: traces.KindProbe, Name: name, Probe: &traces.Probe{Reason: name}})
		g.add(&traces.Event{Kind: traces.KindImage, Name: "cuModuleLoadData", Image: &traces.Image{SHA256: name, Format: "ptx", Size: 1}})
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
