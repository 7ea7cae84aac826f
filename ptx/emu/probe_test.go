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

// TestFusedGauss checks what k_gauss.vec says of its tolerance: with every
// mul.f64 and the sub.f64 of its result fused, the machine's results are the
// GPU's bits.
func TestFusedGauss(t *testing.T) {
	v, f, want := loadVector(t, "k_gauss")
	product := map[string][]string{} // by register: its factors and how often it was fused
	e := ptx.NewEdits(f.Src)
	for i := range f.Stmts {
		s := &f.Stmts[i]
		op := f.FullOpcode(s)
		if s.Kind != ptx.StmtInstr || op != "mul.f64" && op != "sub.f64" {
			continue
		}
		var args []string
		for _, o := range f.Args(s) {
			args = append(args, f.Text(o.Span()))
		}
		if op == "mul.f64" {
			product[args[0]] = args[1:]
			e.Replace(s.Span(), "neg.f64 "+args[0]+", "+args[1]+";")
			continue
		}
		p := product[args[2]]
		if p == nil {
			t.Fatalf("%s: not the difference from a product", f.Position(s.Pos))
		}
		e.Replace(s.Span(), "fma.rn.f64 "+args[0]+", "+args[2]+", "+p[1]+", "+args[1]+";")
	}
	if err := v.runFile(apply(t, f, e), 0); err != nil {
		t.Fatal(err)
	}
	if err := v.buffer("out").check([]string{"out", "exact"}, want["out"]); err != nil {
		t.Error(err)
	}
}

// apply parses f with the edits.
func apply(tb testing.TB, f *ptx.File, e *ptx.Edits) *ptx.File {
	tb.Helper()
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

// loadVector reads a vector, its module and the GPU's results, nil if there are
// none.
func loadVector(tb testing.TB, name string) (*vector, *ptx.File, map[string][]byte) {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join("testdata/vectors", name+".vec"))
	if err != nil {
		tb.Fatal(err)
	}
	v := parseVector(string(text))
	src, err := os.ReadFile(filepath.Join("testdata/vectors", v.ptx))
	if err != nil {
		tb.Fatal(err)
	}
	f, err := ptx.Parse(v.ptx, string(src), nil)
	if err != nil {
		tb.Fatal(err)
	}
	wantText, err := os.ReadFile(filepath.Join("testdata/vectors", name+".want"))
	if errors.Is(err, fs.ErrNotExist) {
		return v, f, nil
	}
	if err != nil {
		tb.Fatal(err)
	}
	want, err := readWant(string(wantText))
	if err != nil {
		tb.Fatal(err)
	}
	return v, f, want
}
