package emu

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"nvtrace/ptx"
)

// nullProbe is code that changes nothing: half of the lanes branch over an
// instruction, in a block with registers and a label of its own.
const nullProbe = `{ .reg .b32 nvta; .reg .pred nvtq; mov.u32 nvta, %laneid; and.b32 nvta, nvta, 1; setp.eq.u32 nvtq, nvta, 0; @nvtq bra NVTX; add.u32 nvta, nvta, 1; NVTX: }
`

// instrument puts the null probe before every instruction of every function.
func instrument(tb testing.TB, f *ptx.File) *ptx.File {
	tb.Helper()
	e := ptx.NewEdits(f.Src)
	for i := range f.Funcs {
		body := f.Body(&f.Funcs[i])
		for j := range body {
			if body[j].Kind == ptx.StmtInstr {
				e.InsertBefore(body[j].Pos, nullProbe)
			}
		}
	}
	src, err := e.Apply()
	if err != nil {
		tb.Fatal(err)
	}
	g, err := ptx.Parse(f.Name, src, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return g
}

// TestNullProbe runs every vector with the null probe before each instruction:
// the GPU's results must still be met.
func TestNullProbe(t *testing.T) {
	probed := 0
	for _, file := range vectorFiles(t) {
		name := strings.TrimSuffix(file, ".vec")
		text, err := os.ReadFile(filepath.Join("testdata/vectors", file))
		if err != nil {
			t.Fatal(err)
		}
		wantText, err := os.ReadFile(filepath.Join("testdata/vectors", name+".want"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		want, err := readWant(string(wantText))
		if err != nil {
			t.Fatal(err)
		}
		v := parseVector(string(text))
		src, err := os.ReadFile(filepath.Join("testdata/vectors", v.ptx))
		if err != nil {
			t.Fatal(err)
		}
		f, err := ptx.Parse(v.ptx, string(src), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := v.runFile(instrument(t, f), 0); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		v.compare(t, name, want)
		probed++
	}
	if probed < 100 {
		t.Errorf("only %d vectors have results", probed)
	}
}
