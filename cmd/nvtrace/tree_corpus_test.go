package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/clitest"
	"nvtrace/cmd/nvtrace/internal/objects"
	"nvtrace/cmd/nvtrace/internal/verbs"
	"nvtrace/cmd/nvtrace/internal/view"
	"nvtrace/traces"
)

// corpus returns the recordings of real programs.
func corpus(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("../../traces/corpus/*.nvt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings in traces/corpus: %v", err)
	}
	return files
}

func title(file string) string { return strings.TrimSuffix(filepath.Base(file), ".nvt") }

// TestCorpusGolden: totals, mappings and failures of the real programs.
func TestCorpusGolden(t *testing.T) {
	for _, file := range corpus(t) {
		t.Run(title(file), func(t *testing.T) {
			var got []txtar.File
			for _, c := range []struct {
				name string
				verb func(*cli.Env, []string, []string) int
				args []string
			}{
				{"tree", objects.TreeVerb, nil},
				{"tree --at peak", objects.TreeVerb, []string{"--at", "peak"}},
				{"maps", verbs.MapsVerb, nil},
				{"failures", view.FailuresVerb, nil},
			} {
				status, out, _ := clitest.Run(t, c.verb, append([]string{file}, c.args...)...)
				if status != cli.ExitOK {
					t.Fatalf("%s: status %d", c.name, status)
				}
				if c.name == "tree" && strings.Count(out, "\n") > 200 || c.name == "tree --at peak" {
					_, totals, _ := strings.Cut(out, "\nTotals") // the objects themselves would be long
					out = "Totals" + totals
				}
				got = append(got, txtar.File{Name: c.name, Data: []byte(out)})
			}
			clitest.Golden(t, filepath.Join("corpus", title(file)+".txtar"), got)
		})
	}
}

// TestCorpusDiff: a program does not differ from itself, and does from others;
// it lacks nothing of its own list, and something of another's.
func TestCorpusDiff(t *testing.T) {
	files := corpus(t)
	dir := t.TempDir()
	for i, a := range files {
		list := filepath.Join(dir, title(a))
		if status, _, errs := clitest.Run(t, view.AllowlistVerb, "-o", list, a); status != cli.ExitOK {
			t.Fatal(errs)
		}
		for j, b := range files {
			status, out, _ := clitest.Run(t, view.DiffVerb, a, b)
			if same := i == j; same != (status == cli.ExitOK) || same != strings.HasSuffix(out, "no differences\n") {
				t.Errorf("diff %s %s: status %d\n%.300s", a, b, status, out)
			}
			lackStatus, lacks, _ := clitest.Run(t, view.CheckVerb, "--allow", list, b)
			if i == j && lackStatus != cli.ExitOK {
				t.Errorf("%s lacks something of its own list: %s", a, lacks)
			}
			if lackStatus != cli.ExitOK && lackStatus != cli.ExitDiffers {
				t.Errorf("check: status %d", lackStatus)
			}
		}
	}
}

// BenchmarkTree reads a recording of 100,000 events, made of a real one over
// and over, builds its tree and prints all of it.
func BenchmarkTree(b *testing.B) {
	file := filepath.Join(b.TempDir(), "long.nvt")
	events, made := repeat(b, "../../traces/corpus/vectoradd.nvt", file, 100_000)
	b.ResetTimer()
	for b.Loop() {
		var out strings.Builder
		e := &cli.Env{Stdout: &out, Stderr: discard{}}
		if status := objects.TreeVerb(e, []string{"--all", file}, nil); status != cli.ExitOK {
			b.Fatalf("status %d", status)
		}
		if n := strings.Count(out.String(), "\n"); n < made {
			b.Fatalf("%d lines, want %d objects", n, made)
		}
	}
	b.ReportMetric(float64(events)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// repeat writes a recording of at least n events: the program of another again
// and again, as further processes. It returns the numbers of events and objects.
func repeat(b *testing.B, from, to string, n int) (events, objects int) {
	r, err := traces.Open(from)
	if err != nil {
		b.Fatal(err)
	}
	var one []*traces.Event
	for ev, err := range r.All() {
		if err != nil {
			b.Fatal(err)
		}
		if ev.Kind != traces.KindEnd {
			one = append(one, ev.Clone())
		}
	}
	w, err := clitest.CreateRecording(to, &r.Header)
	if err != nil {
		b.Fatal(err)
	}
	span := one[len(one)-1].Time + 1_000_000
	files := uint32(0)
	for _, ev := range one {
		files = max(files, ev.File)
	}
	for round := 0; events < n; round++ {
		for _, ev := range one {
			c := ev.Clone()
			c.Time += int64(round) * span
			c.PID += int32(round) * 1000
			c.TID += int32(round) * 1000
			if c.File != 0 {
				c.File += uint32(round) * files
			}
			w.Write(c)
			events++
		}
		objects += 100
	}
	w.Write(&traces.Event{Kind: traces.KindEnd, FD: -1, Cost: &traces.Cost{}})
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	return events, objects
}

// BenchmarkDiff compares two recordings of 100,000 events.
func BenchmarkDiff(b *testing.B) {
	dir := b.TempDir()
	x, y := filepath.Join(dir, "x.nvt"), filepath.Join(dir, "y.nvt")
	n, _ := repeat(b, "../../traces/corpus/vectoradd.nvt", x, 100_000)
	repeat(b, "../../traces/corpus/matmul.nvt", y, 100_000)
	b.ResetTimer()
	for b.Loop() {
		var out strings.Builder
		e := &cli.Env{Stdout: &out, Stderr: discard{}}
		if status := view.DiffVerb(e, []string{x, y}, nil); status != cli.ExitDiffers {
			b.Fatalf("status %d", status)
		}
	}
	b.ReportMetric(2*float64(n)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// TestMemoryAgreesWithNvidiaSmi: while hold.nvt was recorded, and the program
// held three buffers of 200,000,000 bytes, nvidia-smi said of it what README.md
// beside it tells. The rest of the GPU's memory in use then, 9 MiB, belongs to
// no object of the program's.
func TestMemoryAgreesWithNvidiaSmi(t *testing.T) {
	const said = 1094 << 20 // nvidia-smi --query-compute-apps=pid,used_gpu_memory
	for _, at := range []string{"0.6s", "2s", "4s"} {
		status, out, _ := clitest.Run(t, objects.TreeVerb, "../../traces/corpus/hold.nvt", "--json", "--at", at)
		if status != cli.ExitOK {
			t.Fatalf("status %d", status)
		}
		var r objects.TreeReport
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatal(err)
		}
		if len(r.Memory) != 1 || r.Memory[0].PID != 967 || r.Memory[0].Bytes != said {
			t.Errorf("at %s: %+v, want %d bytes of pid 967", at, r.Memory, said)
		}
		buffers := 0
		for _, o := range r.Objects {
			if o.Aperture == "vidmem" && o.Size == 192<<20 { // 200,000,000 in pages of 2 MiB
				buffers++
			}
		}
		if buffers != 3 {
			t.Errorf("at %s: %d buffers, want 3", at, buffers)
		}
	}
}
