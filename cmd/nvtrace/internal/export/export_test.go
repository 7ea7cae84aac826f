package export

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/internal/need"
	"nvtrace/ioctl"
	"nvtrace/rm"
	"nvtrace/traces"
)

var update = flag.Bool("update", false, "rewrite the goldens")

// TestCorpus holds the views of real programs' recordings against the summary,
// call by call, and against a tree of objects that forgets nothing.
func TestCorpus(t *testing.T) {
	for _, file := range corpus(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			h, events := recording(t, file)
			x := export(t, h, slices.Values(events))
			x.compareCalls(t)
			x.compareMemory(t)
			ran := int64(0)
			for _, e := range events {
				if e.Kind == traces.KindExit {
					ran = e.Time - events[0].Time
				}
			}
			if x.prof.DurationNanos < ran || x.prof.DurationNanos > x.report.Last {
				t.Errorf("the profile is of %d ns, the program ran %d ns", x.prof.DurationNanos, ran)
			}
			if x.drawn.async != 0 {
				t.Errorf("%d calls overlap", x.drawn.async)
			}
			if x.drawn.failures < int64(x.report.Failed) { // it counts other calls too
				t.Errorf("%d failed calls, want at least %d", x.drawn.failures, x.report.Failed)
			}
		})
	}
}

// compareCalls compares counts and times of each call.
func (x *exported) compareCalls(t *testing.T) {
	t.Helper()
	type figures struct{ Calls, Time int64 }
	want, tl, prof := map[string]figures{}, map[string]figures{}, map[string]figures{}
	add := func(m map[string]figures, name string, calls, time int64) {
		f := m[name]
		m[name] = figures{f.Calls + calls, f.Time + time}
	}
	for _, c := range x.report.Calls {
		add(want, strings.TrimSpace(c.Name+" "+c.Sub), int64(c.Calls), c.Total)
	}
	for name := range want {
		add(tl, name, x.drawn.calls[name], x.drawn.time[name])
	}
	for _, s := range x.prof.Sample {
		name, isIoctl := callOf(s)
		if !isIoctl {
			continue
		}
		if sub := name + " " + frameName(s, 2); want[sub].Calls > 0 {
			name = sub
		}
		add(prof, name, s.Value[valueCalls], s.Value[valueTime])
	}
	if d := cmp.Diff(want, tl); d != "" {
		t.Errorf("timeline (-summary +timeline):\n%s", d)
	}
	if d := cmp.Diff(want, prof); d != "" {
		t.Errorf("profile (-summary +profile):\n%s", d)
	}
	if len(want) < 3 {
		t.Errorf("only %d calls", len(want))
	}
}

// compareMemory compares counters and bytes with the tree's own accounts.
func (x *exported) compareMemory(t *testing.T) {
	t.Helper()
	var allocated, mapped, profAllocated, profMapped uint64
	live, pids := map[int32]uint64{}, map[int32]bool{}
	for o := range x.tree.Objects() {
		pids[o.PID] = true
		if o.Died == rm.Alive {
			live[o.PID]++
		}
		if (o.Kind == rm.Memory || o.Kind == rm.Fabric) && o.Dup == nil && slices.Contains([]rm.Aperture{rm.ApertureVidmem, rm.ApertureSysmem, rm.ApertureFabric}, o.Attr.Aperture) {
			allocated += o.Attr.Size
		}
	}
	for _, m := range x.report.Maps {
		mapped += m.Total
	}
	for _, s := range x.prof.Sample {
		switch name, isIoctl := callOf(s); {
		case isIoctl:
			profAllocated += uint64(s.Value[valueBytes])
		case name == "mmap":
			profMapped += uint64(s.Value[valueBytes])
		case s.Value[valueBytes] != 0:
			t.Errorf("%s makes %d bytes", name, s.Value[valueBytes])
		}
	}
	if profAllocated != allocated || profMapped != mapped {
		t.Errorf("profile: %d bytes allocated, %d mapped; want %d, %d", profAllocated, profMapped, allocated, mapped)
	}
	for pid := range pids {
		if got := x.drawn.latest[fmt.Sprint(pid, " live driver objects")]; got != live[pid] {
			t.Errorf("process %d: %d objects live at the end, want %d", pid, got, live[pid])
		}
		peak, kinds := map[rm.Aperture]uint64{}, map[rm.Aperture]int{}
		now := map[rm.Aperture]uint64{}
		for _, total := range x.tree.Totals(pid) {
			if total.PeakBytes > 0 {
				kinds[total.Aperture]++
			}
			peak[total.Aperture] += total.PeakBytes
			now[total.Aperture] += total.Bytes
		}
		for aperture, name := range map[rm.Aperture]string{rm.ApertureVidmem: " vidmem allocated", rm.ApertureSysmem: " sysmem allocated", rm.ApertureFabric: " fabric memory allocated"} {
			key := fmt.Sprint(pid, name)
			if x.drawn.latest[key] != now[aperture] {
				t.Errorf("%s: %d at the end, want %d", key, x.drawn.latest[key], now[aperture])
			}
			if kinds[aperture] < 2 && x.drawn.peak[key] != peak[aperture] { // peaks of two kinds do not add up
				t.Errorf("%s: at most %d, want %d", key, x.drawn.peak[key], peak[aperture])
			}
		}
	}
}

// TestCorpusMemory makes sure that what TestCorpus compares is not all zero.
func TestCorpusMemory(t *testing.T) {
	h, events := recording(t, "../../../../traces/corpus/vectoradd.nvt")
	x := export(t, h, slices.Values(events))
	for _, name := range []string{"vidmem allocated", "sysmem allocated", "mapped device memory", "live driver objects"} {
		seen := uint64(0)
		for key, n := range x.drawn.peak {
			if strings.HasSuffix(key, " "+name) {
				seen = max(seen, n)
			}
		}
		if seen == 0 {
			t.Errorf("nothing in %s", name)
		}
	}
}

// TestDamaged exports what can be read of recordings that were cut anywhere.
func TestDamaged(t *testing.T) {
	for _, file := range corpus(t) {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 8 {
			cut := bytes.Clone(data[:len(data)*i/8])
			if i%2 == 1 {
				cut[len(cut)*3/4] ^= 0x40
			}
			r, err := traces.NewReader(bytes.NewReader(cut))
			if err != nil {
				continue
			}
			export(t, &r.Header, func(yield func(*traces.Event) bool) {
				for ev, err := range r.All() {
					if err != nil || !yield(ev) {
						return
					}
				}
			})
			r.Close()
		}
	}
}

// TestGolden shows a small recording with one of everything, hostile texts
// among it, in both views.
func TestGolden(t *testing.T) {
	h, events := recording(t, "testdata/small.jsonl")
	x := export(t, h, slices.Values(events))
	golden(t, "testdata/small.perfetto.txt", []byte(x.file.dump()))
	golden(t, "testdata/small.pprof.txt", []byte(x.prof.String()))
	types := map[uint64]bool{}
	for _, e := range x.file.Events {
		types[e.Type] = true
	}
	if len(types) != 4 || x.drawn.async == 0 {
		t.Errorf("types of events: %v, %d calls that overlap: the recording does not show all", types, x.drawn.async)
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, got, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s (-want +got):\n%s", name, d)
	}
}

// TestSkip leaves out events, which must not change what later ones are called.
func TestSkip(t *testing.T) {
	h, events := recording(t, "../../../../traces/corpus/vectoradd.nvt")
	filter, err := ioctl.ParseFilter("ioctl=NV_ESC_RM_FREE")
	if err != nil {
		t.Fatal(err)
	}
	d := ioctl.NewDecoder(h)
	var out bytes.Buffer
	tl, p := NewTimeline(&out, h, d), NewProfile(h, d)
	frees := int64(0)
	feed := following(d, tl, p, observe.Func(func(e *observe.Event) {
		if !e.Unwanted {
			frees++
		}
	}))
	feed.Filter = filter
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
	dr, err := checkTimeline(f)
	if err != nil {
		t.Fatal(err)
	}
	named, shown := 0, int64(0)
	for _, e := range f.Events {
		if e.Type == typeBegin {
			if shown++; e.Name != "NV_ESC_RM_FREE" {
				t.Errorf("%s is shown", e.Name)
			}
			if o, _ := e.Args["object"].(string); strings.Contains(o, "{") {
				named++
			}
		}
	}
	if shown == 0 || shown != dr.calls["NV_ESC_RM_FREE"] || shown > frees || named < int(shown)/2 {
		t.Errorf("%d frees are shown, %d with a name, of %d", shown, named, frees)
	}
	total := int64(0)
	for _, s := range p.p.Sample {
		if name, isIoctl := callOf(s); isIoctl {
			if total += s.Value[valueCalls]; name != "NV_ESC_RM_FREE" {
				t.Errorf("%s is counted", name)
			}
			if len(s.Location) < 3 {
				t.Errorf("no kind: %v", s)
			}
		}
	}
	if total != shown {
		t.Errorf("%d frees are counted", total)
	}
}

// TestManyThreads has more threads than a Timeline remembers, calls that do not
// return among theirs.
func TestManyThreads(t *testing.T) {
	need.OneThread(t)
	ev := &traces.Event{Kind: traces.KindOpen, FD: -1, Dev: "nvidiactl", Path: "/dev/nvidiactl"}
	var out bytes.Buffer
	d := ioctl.NewDecoder(nil)
	tl := NewTimeline(&out, nil, d)
	feed := following(d, tl)
	n := int32(maxTasks + maxTasks/4)
	for i := range n {
		ev.PID, ev.TID = 1+i/1000, 1+i
		ev.Time, ev.Dur, ev.Flags = int64(i)*1000, 500, 0
		if i%100 == 7 {
			ev.Dur, ev.Flags = 0, traces.FlagUnfinished
		}
		if i == maxTasks+5 { // began when threads lived that are forgotten
			ev.Time, ev.Dur = int64(maxTasks)*1000-2000, 7500
		}
		feed.Event(ev)
	}
	if got := len(tl.threads); got > maxTasks {
		t.Errorf("%d threads are remembered", got)
	}
	if err := tl.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := parseTimeline(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	dr, err := checkTimeline(f)
	if err != nil {
		t.Fatal(err)
	}
	if want := int64(n - (n+92)/100); dr.calls["open"] != want || dr.async != 1 {
		t.Errorf("%d opens, %d of them apart; want %d and 1", dr.calls["open"], dr.async, want)
	}
}

// TestManySamples has more different samples than a Profile keeps apart.
func TestManySamples(t *testing.T) {
	need.OneThread(t)
	ev := &traces.Event{Kind: traces.KindClose, FD: 3, Dev: "nvidiactl", Dur: 2}
	d := ioctl.NewDecoder(nil)
	p := NewProfile(nil, d)
	feed := following(d, p)
	const n = maxSamples + 1000
	for i := range n {
		ev.PID, ev.TID, ev.Dev = int32(i), int32(i), fmt.Sprint("nvidia", i)
		feed.Event(ev)
	}
	calls, time := int64(0), int64(0)
	for _, s := range p.p.Sample {
		calls += s.Value[valueCalls]
		time += s.Value[valueTime]
	}
	if calls != n || time != 2*n || len(p.p.Sample) > maxSamples+1 || len(p.p.Function) > maxFrames+1 {
		t.Errorf("%d calls, %d ns in %d samples, %d frames", calls, time, len(p.p.Sample), len(p.p.Function))
	}
	if err := p.Write(io.Discard); err != nil {
		t.Error(err)
	}
}

var errFull = errors.New("no space left on device")

// fullDisk takes n bytes.
type fullDisk struct{ n, writes int }

func (f *fullDisk) Write(b []byte) (int, error) {
	f.writes++
	if f.n -= len(b); f.n < 0 {
		return 0, errFull
	}
	return len(b), nil
}

func TestWriteError(t *testing.T) {
	h, events := recording(t, "../../../../traces/corpus/nvidia-smi.nvt")
	d := ioctl.NewDecoder(h)
	disk := &fullDisk{n: 100_000}
	tl := NewTimeline(disk, h, d)
	for range 20 {
		feed := following(d, tl)
		for _, ev := range events {
			feed.Event(ev)
		}
	}
	if err := tl.Close(); !errors.Is(err, errFull) {
		t.Errorf("%v", err)
	}
	if disk.writes != 2 {
		t.Errorf("%d writes: the first error does not stick", disk.writes)
	}
	if err := NewProfile(nil, d).Write(&fullDisk{}); !errors.Is(err, errFull) {
		t.Errorf("%v", err)
	}
}

func TestEmpty(t *testing.T) {
	x := export(t, nil, slices.Values([]*traces.Event(nil)))
	if len(x.file.Events) != 0 || len(x.prof.Sample) != 0 {
		t.Errorf("%s", x.timeline)
	}
}

// TestPprof has the tool itself read a profile.
func TestPprof(t *testing.T) {
	h, events := recording(t, "../../../../traces/corpus/nvidia-smi.nvt")
	d := ioctl.NewDecoder(h)
	p := NewProfile(h, d)
	feed := following(d, p)
	for _, ev := range events {
		feed.Event(ev)
	}
	file := filepath.Join(t.TempDir(), "run.pb.gz")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Write(f), f.Close()); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		args []string
		want []string
	}{
		{[]string{"-top", "-cum"}, []string{"Type: time", "NV_ESC_RM_ALLOC", "nvidia-smi"}},
		{[]string{"-top", "-cum", "-sample_index=calls", "-nodecount=500"}, []string{"Type: calls", "NV_ESC_RM_CONTROL", "subdev"}},
		{[]string{"-top", "-cum", "-sample_index=bytes"}, []string{"Type: bytes", "mmap"}},
		{[]string{"-tags", "-sample_index=calls"}, []string{"NV_ERR_", "tid", "pid"}},
		{[]string{"-comments"}, []string{"driver: " + h.Driver}},
	} {
		args := append([]string{"tool", "pprof"}, append(row.args, file)...)
		out, err := exec.Command("go", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("go %q: %v\n%s", args, err, out)
		}
		for _, want := range row.want {
			if !strings.Contains(string(out), want) {
				t.Errorf("go %q: no %q in\n%s", args, want, out)
			}
		}
	}
}
