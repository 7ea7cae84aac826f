package cudart

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"nvtrace/internal/need"
)

// TestTable: the embedded table is whole, and comes out of Encode as it went in.
func TestTable(t *testing.T) {
	x := known()
	if len(x.Releases) < 16 || !slices.Contains(known().Releases, "13.1.80") {
		t.Errorf("releases %q", x.Releases)
	}
	for r, n := range x.counts {
		if n < 360 { // CUDA 11.2 has 364
			t.Errorf("%s has %d functions", x.Releases[r], n)
		}
	}
	b, err := x.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Decode(b)
	if err != nil || !reflect.DeepEqual(again, x.Table) {
		t.Errorf("another table: %v", err)
	}
}

// FuzzDecode: what is no table is an error, and nothing worse.
func FuzzDecode(f *testing.F) {
	f.Add(packed)
	f.Add(packed[:len(packed)/2])
	f.Fuzz(func(t *testing.T, b []byte) {
		table, err := Decode(b)
		if err != nil {
			return
		}
		for i := range table.Signatures {
			s := &table.Signatures[i]
			s.Of(make([]byte, s.Size)) // no panic
		}
	})
}

// TestReal: the runtime in a program that nvcc's library is linked into, with symbols and stripped.
func TestReal(t *testing.T) {
	nvcc := need.Tool(t, "nvcc", "NVTRACE_NVCC")
	need.Tool(t, "gcc", "")
	dir := t.TempDir()
	src, whole, stripped := filepath.Join(dir, "main.c"), filepath.Join(dir, "whole"), filepath.Join(dir, "stripped")
	if err := os.WriteFile(src, []byte("int cudaMalloc(void **, unsigned long);\nint main(void) { void *p; return cudaMalloc(&p, 5) == 0; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	lib := filepath.Join(filepath.Dir(filepath.Dir(nvcc)), "lib")
	if out, err := exec.Command("gcc", "-o", whole, src, "-L"+lib, "-L"+lib+"64", "-lcudart_static", "-lpthread", "-ldl", "-lrt").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := exec.Command("strip", "-o", stripped, whole).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	find := func(name string) *Found {
		t.Helper()
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		found, err := Find(bytes.NewReader(b))
		if err != nil || found == nil {
			t.Fatalf("%s: %v, %v", name, found, err)
		}
		return found
	}
	a, b := find(whole), find(stripped)
	if len(b.Functions) < 400 || len(b.Missing) > 25 || len(b.Releases) == 0 || !slices.Equal(a.Releases, b.Releases) {
		t.Errorf("%s: %d functions, without %q", b.Release(), len(b.Functions), b.Missing)
	}
	for _, x := range b.Functions {
		if !slices.Contains(a.Functions, x) {
			t.Errorf("%+v is not where its symbol is", x)
		}
	}
}
