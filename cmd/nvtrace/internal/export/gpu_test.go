package export

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"nvtrace/ioctl"
	"nvtrace/traces"
)

// TestGPU shows what a GPU did: slices on the tracks of streams, in the order of their beginnings
// although they are told of in another, with arrows from the calls; and rows of a table.
func TestGPU(t *testing.T) {
	h, events := recording(t, "testdata/gpu.jsonl")
	x := export(t, h, slices.Values(events))
	golden(t, "testdata/gpu.perfetto.txt", []byte(x.file.dump()))
	rows := exportTables(t, h, slices.Values(events))["gpu"]
	if len(rows) != 4 {
		t.Fatalf("%d rows", len(rows))
	}
	for i, want := range []map[string]any{
		{"t": int64(-1), "symbol": "_Z4kernv"}, // damage is shown as it is
		{"t": int64(3000), "dur": int64(2048), "call": int64(2000), "stream": int64(0x77), "context": int64(0xc0), "symbol": "_Z4kernv", "by": "cuLaunchKernel", "bytes": int64(0), "margin": int64(700), "device": int64(1)},
		{"t": int64(5000), "dur": int64(3000), "call": int64(3000), "symbol": "_Z4kernv"},
		{"t": int64(12000), "dur": int64(8000), "call": int64(4000), "stream": int64(0), "by": "cuMemcpyHtoD_v2", "bytes": int64(4096)},
	} {
		for k, v := range want {
			if rows[i][k] != v {
				t.Errorf("row %d: %s is %v, want %v", i, k, rows[i][k], v)
			}
		}
	}
	if rows[3]["kernel"] != nil {
		t.Errorf("a copy has a kernel: %v", rows[3])
	}
}

// TestProfileGPU has the time of a kernel below the functions from which it was launched, and its labels.
func TestProfileGPU(t *testing.T) {
	h, events := recording(t, "testdata/gpu.jsonl")
	d := ioctl.NewDecoder(h)
	p := NewProfile(h, d)
	p.Rank, p.Demangle = "3", func(name string) string { return strings.TrimPrefix(name, "_Z4") }
	put := following(d, p).Event
	launches := 0
	for _, ev := range events {
		put(ev)
		if ev.Kind == traces.KindCall && ev.Name == "cuLaunchKernel" {
			if launches++; launches == 1 {
				stack := traces.Event{Kind: traces.KindStack, PID: ev.PID, TID: ev.TID, Time: ev.Time + 1, FD: -1, Name: ev.Name}
				stack.SetStack([]traces.StackFrame{
					{Language: traces.LanguageNative, File: "/opt/libtorch.so", Func: "_Z4gemm", Offset: 0x123},
					{Language: traces.LanguageNative, File: "/opt/libtorch.so", Offset: 0x456},
					{Language: "python", File: "/app/train.py", Func: "step", Line: 12},
				})
				put(&stack)
			}
		}
	}
	var got []string
	for _, s := range p.p.Sample {
		if s.Value[valueGPU] == 0 {
			continue
		}
		text := fmt.Sprint(s.Value[valueGPU], s.Label["kernel"], s.Label["stream"], s.Label["device"], s.Label["rank"])
		for i := range s.Location {
			l := s.Location[i].Line[0]
			text += fmt.Sprintf(" %s:%d", l.Function.Name, l.Line)
		}
		got = append(got, text)
	}
	slices.Sort(got)
	want := []string{
		"2048 [kernv] [0x77] [1] [3] kernv:0 cuLaunchKernel:0 gemm:0 libtorch.so+0x456:0 step:12 app:0",
		"3000 [kernv] [0x77] [1] [3] kernv:0 cuLaunchKernel:0 app:0",
		"8000 [cuMemcpyHtoD] [0x0] [1] [3] cuMemcpyHtoD:0 cuMemcpyHtoD_v2:0 app:0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}
