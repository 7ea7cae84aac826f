package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"nvtrace/ioctl"
	"nvtrace/rm"
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

// TestCorpusObjects: in recordings of whole programs nothing is guessed,
// nothing is an orphan, and every handle that a call uses is a living object's.
func TestCorpusObjects(t *testing.T) {
	for _, file := range corpus(t) {
		t.Run(title(file), func(t *testing.T) {
			r, d, err := (&readFlags{}).open(new(env), file)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			l := newObjectLog(d)
			used := 0
			for ev, err := range r.All() {
				if err != nil {
					t.Fatal(err)
				}
				if ev.Flags&traces.FlagAttached != 0 {
					t.Skip("recorded by attaching: what was made before is not known")
				}
				c := d.Decode(ev)
				for _, h := range handlesOf(&c) {
					used++
					// To free what is not there succeeds: libcuda frees handles that it has
					// set aside for an object and then not made.
					if l.tree.Object(h.ref) == nil && (c.Escape.Name != "NV_ESC_RM_FREE" || h.what != "object") {
						t.Errorf("%.6f %s: %s %#x:%#x is no living object", float64(ev.Time)/1e9, c.AppendName(nil), h.what, h.ref.Client, h.ref.Handle)
					}
				}
				l.add(ev, &c)
			}
			made := 0
			for o := range l.tree.Objects() {
				made++
				if o.Guessed || o.Client == nil || o.Parent == nil && !o.IsClient() {
					t.Errorf("%s: guessed %t, client %v, parent %v", o.Path(), o.Guessed, o.Client, o.Parent)
				}
				if o.Class == nil && o.Dup == nil {
					t.Errorf("%s: unknown class %#x", o.Path(), o.ClassID)
				}
			}
			for _, m := range l.maps {
				if !m.Managed && m.Of == nil {
					t.Errorf("the mapping of %s at %#x is not explained", m.Node, m.Addr)
				}
			}
			if n := l.tree.Live(); n != 0 {
				t.Errorf("%d objects outlive the programs", n)
			}
			if used < 20 || made < 3 {
				t.Errorf("only %d handles and %d objects", used, made)
			}
		})
	}
}

type usedHandle struct {
	what string
	ref  rm.Ref
}

// handlesOf lists the objects that a successful RM call must have found.
func handlesOf(c *ioctl.Call) []usedHandle {
	if c.Escape == nil || c.Failed() || !c.HasStatus || c.Client == 0 {
		return nil
	}
	var out []usedHandle
	add := func(what string, handle uint32) {
		if handle != 0 {
			out = append(out, usedHandle{what, rm.Ref{Client: c.Client, Handle: handle}})
		}
	}
	if c.New != c.Client {
		add("client", c.Client)
		add("parent", c.Parent)
		if c.Object != c.New {
			add("object", c.Object)
		}
	}
	return out
}

// TestCorpusGolden: totals, mappings and failures of the real programs.
func TestCorpusGolden(t *testing.T) {
	for _, file := range corpus(t) {
		t.Run(title(file), func(t *testing.T) {
			var got []txtar.File
			for _, c := range []struct {
				name string
				verb func(*env, []string, []string) int
				args []string
			}{
				{"tree", treeVerb, nil},
				{"tree --at peak", treeVerb, []string{"--at", "peak"}},
				{"maps", mapsVerb, nil},
				{"failures", failuresVerb, nil},
			} {
				status, out, _ := runVerbFunc(t, c.verb, append([]string{file}, c.args...)...)
				if status != exitOK {
					t.Fatalf("%s: status %d", c.name, status)
				}
				if c.name == "tree" && strings.Count(out, "\n") > 200 || c.name == "tree --at peak" {
					_, totals, _ := strings.Cut(out, "\nTotals") // the objects themselves would be long
					out = "Totals" + totals
				}
				got = append(got, txtar.File{Name: c.name, Data: []byte(out)})
			}
			goldenFile(t, filepath.Join("corpus", title(file)+".txtar"), got)
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
		if status, _, errs := runVerbFunc(t, allowlistVerb, "-o", list, a); status != exitOK {
			t.Fatal(errs)
		}
		for j, b := range files {
			status, out, _ := runVerbFunc(t, diffVerb, a, b)
			if same := i == j; same != (status == exitOK) || same != strings.HasSuffix(out, "no differences\n") {
				t.Errorf("diff %s %s: status %d\n%.300s", a, b, status, out)
			}
			lackStatus, lacks, _ := runVerbFunc(t, checkVerb, "--allow", list, b)
			if i == j && lackStatus != exitOK {
				t.Errorf("%s lacks something of its own list: %s", a, lacks)
			}
			if lackStatus != exitOK && lackStatus != exitDiffers {
				t.Errorf("check: status %d", lackStatus)
			}
		}
	}
}

// BenchmarkTree reads a recording of 100,000 events, made of a real one over
// and over, builds its tree and prints all of it.
func BenchmarkTree(b *testing.B) {
	file := filepath.Join(b.TempDir(), "long.nvt")
	events, objects := repeat(b, "../../traces/corpus/vectoradd.nvt", file, 100_000)
	b.ResetTimer()
	for b.Loop() {
		var out strings.Builder
		e := &env{stdout: &out, stderr: discard{}}
		if status := treeVerb(e, []string{"--all", file}, nil); status != exitOK {
			b.Fatalf("status %d", status)
		}
		if n := strings.Count(out.String(), "\n"); n < objects {
			b.Fatalf("%d lines, want %d objects", n, objects)
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
	w, err := createRecording(to, &r.Header)
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
		e := &env{stdout: &out, stderr: discard{}}
		if status := diffVerb(e, []string{x, y}, nil); status != exitDiffers {
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
		status, out, _ := runVerbFunc(t, treeVerb, "../../traces/corpus/hold.nvt", "--json", "--at", at)
		if status != exitOK {
			t.Fatalf("status %d", status)
		}
		var r treeReport
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
