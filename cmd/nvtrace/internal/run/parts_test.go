package run

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/traces"
)

// rotated writes n calls into files of a size, and returns their names and what was said.
func rotated(t *testing.T, n int, r rotation) (dir string, said *bytes.Buffer) {
	t.Helper()
	dir, said = t.TempDir(), new(bytes.Buffer)
	p := &parts{
		rotation: r, e: &cli.Env{Stdout: io.Discard, Stderr: said, Getenv: func(string) string { return "" }},
		header: &traces.Header{Driver: "580.159.04", PID: 7},
		name: func(part int) (string, error) {
			if part == 100 {
				return "", fmt.Errorf("no name for part %d", part)
			}
			return filepath.Join(dir, fmt.Sprintf("run.%03d.nvt", part)), nil
		},
	}
	if err := p.begin(1); err != nil {
		t.Fatal(err)
	}
	p.Event(&traces.Event{Kind: traces.KindExec, PID: 7, TID: 7, FD: -1, Path: "/bin/app"})
	p.Event(&traces.Event{Kind: traces.KindExec, PID: 8, TID: 8, FD: -1, Path: "/bin/other"})
	p.Event(&traces.Event{Kind: traces.KindExit, PID: 8, TID: 8, FD: -1})
	for i := range n {
		at := int64(i) * 1000
		p.Event(&traces.Event{Kind: traces.KindCall, PID: 7, TID: 7, FD: -1, Time: at, Name: "cuInit", Args: [6]uint64{uint64(i), rand.Uint64()}})
		if i%500 == 499 {
			p.Idle()
		}
	}
	p.Event(&traces.Event{Kind: traces.KindEnd, FD: -1, Cost: &traces.Cost{}})
	p.close()
	return dir, said
}

// TestRotate: a recording goes on in other files, each of which can be read; nothing is lost.
func TestRotate(t *testing.T) {
	const n = 20_000
	dir, said := rotated(t, n, rotation{size: 4 << 10})
	files, err := filepath.Glob(filepath.Join(dir, "run.*.nvt"))
	if err != nil || len(files) < 5 || said.Len() > 0 {
		t.Fatalf("%d files, %v; said %q", len(files), err, said)
	}
	next := uint64(0)
	for i, name := range files {
		r, err := traces.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		execs := 0
		for ev, err := range r.All() {
			if err != nil {
				t.Fatal(err)
			}
			switch ev.Kind {
			case traces.KindExec:
				execs++
				if i > 0 && (ev.Path != "/bin/app" || ev.Flags&traces.FlagImplicit == 0) {
					t.Errorf("%s: %+v", name, ev)
				}
			case traces.KindCall:
				if ev.Args[0] != next {
					t.Fatalf("%s: call %d where %d should be", name, ev.Args[0], next)
				}
				next++
			}
		}
		if !r.Complete() || i > 0 && execs != 1 {
			t.Errorf("%s: complete %v, %d programs", name, r.Complete(), execs)
		}
		if st, err := os.Stat(name); err != nil || st.Size() > 16<<10 || st.Mode().Perm() != cli.ModePrivate {
			t.Errorf("%s: %d bytes, %v", name, st.Size(), st.Mode())
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if next != n {
		t.Errorf("%d of %d calls", next, n)
	}
}

// TestRotateKeep: only the last files are kept.
func TestRotateKeep(t *testing.T) {
	dir, _ := rotated(t, 20_000, rotation{size: 4 << 10, keep: 2})
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) != 2 || filepath.Base(files[0]) == "run.001.nvt" {
		t.Errorf("%q, %v", files, err)
	}
}

// TestRotateStuck: where the next file can't be made, the recording goes on where it is.
func TestRotateStuck(t *testing.T) {
	dir, said := rotated(t, 80_000, rotation{size: 4 << 10, keep: 1})
	r, err := traces.Open(filepath.Join(dir, "run.099.nvt"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	last := uint64(0)
	for ev, err := range r.All() {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Kind == traces.KindCall {
			last = ev.Args[0]
		}
	}
	if last != 80_000-1 || !bytes.Contains(said.Bytes(), []byte("goes on in")) {
		t.Errorf("the last call is %d; said %q", last, said)
	}
}

func TestRotationFlag(t *testing.T) {
	for text, want := range map[string]rotation{"1G": {size: 1 << 30}, "64M,3": {64 << 20, 3}, "": {}, "0": {}, "1G,0": {}, "1G,x": {}, "x": {}, "1G,": {}} {
		var r rotation
		if err := r.Set(text); (err == nil) != (want.size > 0) || err == nil && r != want {
			t.Errorf("%q: %+v, %v", text, r, err)
		}
	}
}
