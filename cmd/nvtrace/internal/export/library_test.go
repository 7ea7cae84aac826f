package export

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/ioctl"
	"nvtrace/traces"
)

// TestLibraryCalls holds both views of library calls against the summary,
// function by function.
func TestLibraryCalls(t *testing.T) {
	h, events := recording(t, "testdata/api.jsonl")
	x := export(t, h, slices.Values(events))
	want, prof := map[string]apiFigures{}, map[string]apiFigures{}
	for _, c := range x.api.Functions {
		if c.Calls > c.Unfinished {
			want[c.Library+" "+c.Name] = apiFigures{int64(c.Calls - c.Unfinished), c.Total, int64(c.Ioctls), c.IoctlTime}
		}
	}
	if len(want) < 9 {
		t.Fatalf("only %d functions", len(want))
	}
	if d := cmp.Diff(want, x.drawn.api); d != "" {
		t.Errorf("timeline (-summary +timeline):\n%s", d)
	}
	outermost := int64(0)
	for _, s := range x.prof.Sample {
		_, isIoctl := callOf(s)
		calls, time := s.Value[valueCalls], s.Value[valueTime]
		if isLibrary(s, 1) {
			outermost += time
		}
		for i := 1; isLibrary(s, i); i++ {
			name := s.Location[len(s.Location)-1-i].Line[0].Function
			key := strings.TrimPrefix(name.Filename, "api/") + " " + name.Name
			f := prof[key]
			f.Time += time
			switch {
			case isIoctl:
				f.Ioctls += calls
				f.IoctlTime += time
			case i == len(s.Location)-1 && s.Label["status"][0] != "not observed":
				f.Calls += calls
			}
			if want[key] != (apiFigures{}) {
				prof[key] = f
			}
		}
	}
	// The time of calls that longjmp left is that of what happened in them.
	if d := cmp.Diff(want, prof); d != "" {
		t.Errorf("profile (-summary +profile):\n%s", d)
	}
	if outermost != x.api.Time {
		t.Errorf("profile: %d ns in library calls, summary: %d", outermost, x.api.Time)
	}
}

// TestLibraryTimeline looks at what a timeline shows of calls, images and
// kernels.
func TestLibraryTimeline(t *testing.T) {
	h, events := recording(t, "testdata/api.jsonl")
	var out bytes.Buffer
	d := ioctl.NewDecoder(h)
	tl := NewTimeline(&out, h, d)
	tl.Demangle = func(s string) string { return strings.ReplaceAll(s, "_Z9vectorAddPKfS0_Pfi", "vectorAdd(...)") }
	feed := following(d, tl)
	for _, ev := range events {
		feed.Event(ev)
	}
	if err := tl.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := parseTimeline(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	text := f.dump()
	for _, want := range []string{
		`80000: track 3 begin "cublasSgemm_v2" [api cublas] call=cublasSgemm_v2(handle=0xc0de, `,
		`90000: track 3 begin "cuLaunchKernel" [api driver] call=cuLaunchKernel(f=0x5570 vectorAdd`,
		`instant "CUDA_ERROR_OUT_OF_MEMORY" [failed] call=`,
		`72000: track 3 instant "image aabbccddeeff (fatbin)" [image] bytes=`,
		`instant "first launch of vectorAdd(...)" [kernel] `,
		`instant "vectorAdd(...)" [launch] flows [] -> [`,
		`instant "incomplete: a test" [gap]`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

// TestLibraryFilter shows only ioctls: those inside of calls keep them as
// frames of the profile, and the timeline has no calls.
func TestLibraryFilter(t *testing.T) {
	h, events := recording(t, "testdata/api.jsonl")
	d := ioctl.NewDecoder(h)
	var out bytes.Buffer
	tl, p := NewTimeline(&out, h, d), NewProfile(h, d)
	feed := following(d, observe.Func(func(e *observe.Event) {
		e.Unwanted = e.Kind != traces.KindIoctl
		tl.Observe(e)
		p.Observe(e)
	}))
	for _, ev := range events {
		feed.Event(ev)
	}
	if err := tl.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := parseTimeline(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if s := f.dump(); strings.Contains(s, "[api") || strings.Contains(s, "[launch") || strings.Count(s, "[ioctl") != 4 {
		t.Errorf("%s", s)
	}
	deep := false
	for _, s := range p.p.Sample {
		if _, isIoctl := callOf(s); !isIoctl {
			t.Errorf("counted: %v", s)
		}
		deep = deep || frameName(s, 1) == "cublasSgemm_v2" && frameName(s, 2) == "cudaLaunchKernel" && frameName(s, 3) == "cuLaunchKernel" && frameName(s, 4) == "NV_ESC_RM_CONTROL"
	}
	if !deep {
		t.Errorf("no ioctl with its calls:\n%s", p.p)
	}
}

// TestManyStacks has more stacks of calls than a profile keeps apart, and more
// depth than a tracker follows.
func TestManyStacks(t *testing.T) {
	d := ioctl.NewDecoder(nil)
	p := NewProfile(nil, d)
	ev := &traces.Event{FD: -1, PID: 1, TID: 1, Path: "libcuda.so.1"}
	names := []string{"cuInit", "cuCtxSynchronize", "cuMemFree_v2", "cuStreamQuery"}
	events := following(d, p)
	feed := func() { events.Event(ev) }
	n := 0
	for i := range 2000 {
		var open []string
		for depth := range 40 {
			name := names[(i>>(depth%12)&1)+2*(depth&1)]
			open = append(open, name)
			ev.Kind, ev.Name, ev.Time, ev.Dur = traces.KindCall, name, int64(100*i+depth), 0
			feed()
		}
		for depth, name := range slices.Backward(open) {
			ev.Kind, ev.Name, ev.Time, ev.Dur = traces.KindReturn, name, int64(100*i+depth), int64(2*(40-depth))
			feed()
			n++
		}
	}
	calls, time := int64(0), int64(0)
	for _, s := range p.p.Sample {
		calls += s.Value[valueCalls]
		time += s.Value[valueTime]
	}
	if calls != int64(n) || time != 2000*80 || len(p.nodes) > maxStacks || len(p.p.Sample) > maxSamples+1 {
		t.Errorf("%d calls of %d, %d ns, %d stacks, %d samples", calls, n, time, len(p.nodes), len(p.p.Sample))
	}
}
