package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"nvtrace/traces"
)

// TestTimesByProbe compares times of kernels by probes with those that the kernels note themselves,
// and with those of the calls that launched and awaited them: on several streams at once, in a
// graph that is launched again, with threads that leave early; and counts them where there are many.
func TestTimesByProbe(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("programs on the simulated GPU are of amd64")
	}
	dir := t.TempDir()
	program, nvtrace := filepath.Join(dir, "stamps"), filepath.Join(dir, "nvtrace")
	if !compileVictim(t, "../../nvattach/sim/testdata/drv_stamps.c", program) {
		t.Skip("no gcc")
	}
	buildNvtrace(t, nvtrace)
	for _, tt := range []struct {
		name     string
		by       string
		blocking string
		many     int
	}{
		{name: "simulated", by: "simulator", many: 20000},
		{name: "driver", by: "driver", many: 500}, // as on a real GPU
		{name: "blocking", by: "driver", blocking: "CUDA_LAUNCH_BLOCKING=1", many: 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			many := tt.many
			if testing.Short() {
				many = min(many, 1000)
			}
			file := filepath.Join(dir, tt.name+".nvt")
			cmd := exec.Command(nvtrace, "-q", "--sim", "--sim-probes", tt.by, "--gpu-times=probe", "-o", file, "--", program, fmt.Sprint(many))
			var said bytes.Buffer
			cmd.Env, cmd.Stderr = append(os.Environ(), tt.blocking), &said
			out, err := cmd.Output()
			if err != nil || said.Len() > 0 {
				t.Fatalf("%v\n%s%s", err, out, &said)
			}
			checkStamps(t, file, string(out), many)
		})
	}
}

// A stampsCall is a call that launched something, and when that was over.
type stampsCall struct{ begin, end int64 }

func checkStamps(t *testing.T, file, out string, many int) {
	t.Helper()
	r, err := traces.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	works := make(map[string][]traces.Work)
	calls := make(map[int32][]stampsCall)
	began := make(map[int64]bool) // calls of the program
	var timed []int64             // calls that something was done for
	var ev traces.Event
	for {
		err := r.Next(&ev)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		list := calls[ev.TID]
		if ev.Kind == traces.KindCall {
			began[ev.Time] = true
		}
		switch {
		case ev.Kind == traces.KindGPU && ev.Text != "":
			w := ev.Work()
			works[w.Kernel] = append(works[w.Kernel], w)
		case ev.Kind == traces.KindGPU && strings.Contains(ev.Name, "Launch"):
			t.Errorf("%s was timed by an event, too", ev.Name)
		case ev.Kind == traces.KindGPU:
			timed = append(timed, ev.Work().Call)
		case ev.Kind == traces.KindCall && (ev.Name == "cuLaunchKernel" || ev.Name == "cuGraphLaunch"):
			calls[ev.TID] = append(list, stampsCall{begin: ev.Time})
		case ev.Kind == traces.KindReturn && ev.Name == "cuStreamSynchronize" && len(list) > 0:
			if last := &list[len(list)-1]; last.end == 0 {
				last.end = ev.Time + ev.Dur
			}
		case ev.Kind == traces.KindNote && strings.Contains(ev.Text, "of kernels without a time"):
			t.Error(ev.Text)
		}
	}
	for _, at := range timed {
		if !began[at] {
			t.Error("a work is not the program's, but nvtrace's")
		}
	}
	// Launches of one kernel follow one another here. Their times don't tell the order where clocks were
	// compared in between, and one may be off by more than the other.
	for _, list := range works {
		slices.SortStableFunc(list, func(a, b traces.Work) int { return cmp.Compare(a.Launch, b.Launch) })
	}
	if n := len(works["small"]); n != many {
		t.Errorf("%d times of the small kernel, want %d", n, many)
	}
	done := make(map[string]int)
	numbers := make(map[string]uint64)
	for line := range strings.Lines(out) {
		var name string
		var tid int32
		var ns int64
		if n, _ := fmt.Sscanf(line, "%s %d %d", &name, &tid, &ns); n != 3 {
			continue
		}
		i := done[name]
		done[name]++
		if i >= len(works[name]) {
			t.Errorf("%s: launch %d is missing", name, i)
			continue
		}
		w := works[name][i]
		if w.Dur < ns {
			t.Errorf("%s, launch %d: %d ns, of which the kernel itself knows %d", name, i, w.Dur, ns)
		}
		if w.Margin <= 0 {
			t.Errorf("%s, launch %d: a margin of %d ns", name, i, w.Margin)
		}
		k := i
		if strings.HasPrefix(name, "node") {
			k += 3 // launches that were captured
			if numbers[name] == 0 {
				numbers[name] = w.Launch
			}
			if w.Launch != numbers[name] {
				t.Errorf("%s has number %d in launch %d of its graph, and had %d", name, w.Launch, i, numbers[name])
			}
		}
		if c := calls[tid]; k >= len(c) || w.Start+w.Margin < c[k].begin || w.Start+w.Dur-w.Margin > c[k].end {
			t.Errorf("%s, launch %d: %d to %d, by calls %+v", name, i, w.Start, w.Start+w.Dur, c[min(k, len(c)-1)])
		}
	}
	for name, n := range done {
		if len(works[name]) != n {
			t.Errorf("%s: %d times, want %d", name, len(works[name]), n)
		}
	}
	if len(done) != 7 {
		t.Errorf("the program launched %d kernels that note times, want 7: %v", len(done), done)
	}
}
