package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/nvattach/cudart"
)

// runtime writes a static library with functions of the runtime's names, whose code depends on a
// number.
func runtime(t *testing.T, dir string, number int) (archive string, names []string) {
	t.Helper()
	var src strings.Builder
	src.WriteString("#include <stdio.h>\nextern int printf(const char *, ...);\nint cudart_state;\nconst char *cudart_driver = \"libcuda.so.1\";\n")
	for i := range 40 {
		name := fmt.Sprintf("cudaFunction%d", i)
		if i == 0 {
			name = "cudaLaunchKernel"
		}
		names = append(names, name)
		fmt.Fprintf(&src, "int %s(int a) { int s = %d; for (int i = 0; i < a + %d; i++) s = s * %d + cudart_state++; return printf(cudart_driver) + s; }\n", name, i*number, i, i+3)
	}
	src.WriteString("int cudaSame1(int a) { return cudart_state + 77 * a; }\nint cudaSame2(int a) { return cudart_state + 77 * a; }\n")
	file := filepath.Join(dir, "runtime.c")
	if err := os.WriteFile(file, []byte(src.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	archive = filepath.Join(dir, "libcudart_static.a")
	execute(t, "gcc", "-O2", "-fPIC", "-c", "-o", filepath.Join(dir, "runtime.o"), file)
	execute(t, "ar", "rcs", archive, filepath.Join(dir, "runtime.o"))
	return archive, names
}

func execute(t *testing.T, name string, args ...string) {
	t.Helper()
	if b, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, b)
	}
}

// TestFind: functions of a static library are found in a stripped program that it is linked into, of
// the right release, at the addresses that its symbols have said.
func TestFind(t *testing.T) {
	need.Tool(t, "gcc", "")
	need.Tool(t, "ar", "")
	facts := t.TempDir()
	var names []string
	var last string
	for i, release := range []string{"1.0.1", "1.0.2", "1.1.0"} {
		number := 5
		if i > 0 { // the first is another one
			number = 6
		}
		last, names = runtime(t, t.TempDir(), number)
		if err := generator().Run([]string{"facts", "-release", release, "-from", "a-package", "-archive", last, "-facts", facts}, &bytes.Buffer{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := generator().Run([]string{"check", "-release", "1.1.0", "-from", "a-package", "-archive", last, "-facts", facts}, &bytes.Buffer{}); err != nil {
		t.Error(err)
	}
	other, _ := runtime(t, t.TempDir(), 8)
	if err := generator().Run([]string{"check", "-release", "1.1.0", "-from", "a-package", "-archive", other, "-facts", facts}, &bytes.Buffer{}); err == nil {
		t.Error("another library is taken for the same")
	}
	f, err := readFacts(facts)
	if err != nil {
		t.Fatal(err)
	}
	packed, err := f.table().Encode()
	if err != nil {
		t.Fatal(err)
	}
	table, err := cudart.Decode(packed)
	if err != nil {
		t.Fatal(err)
	}

	dir := t.TempDir()
	main := filepath.Join(dir, "main.c")
	if err := os.WriteFile(main, []byte("int cudaLaunchKernel(int); int main(void) { return cudaLaunchKernel(3); }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, flags := range [][]string{{"-pie", "-fPIE"}, {"-no-pie"}, {"-static"}} {
		whole, stripped := filepath.Join(dir, "whole"), filepath.Join(dir, "stripped")
		execute(t, "gcc", slices.Concat([]string{"-O2", "-o", whole, main, "-Wl,--whole-archive", last, "-Wl,--no-whole-archive"}, flags)...)
		execute(t, "strip", "-o", stripped, whole)
		find := func(name string) *cudart.Found {
			t.Helper()
			r, err := os.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			found, err := table.Find(r)
			if err != nil || found == nil {
				t.Fatalf("%s: %v, %v", name, found, err)
			}
			return found
		}
		a, b := find(whole), find(stripped)
		if !slices.Equal(b.Releases, []string{"1.0.2", "1.1.0"}) || b.Release() != "1.0.2 to 1.1.0" || b.Major() != 1 {
			t.Errorf("%q: releases %q", flags, b.Releases)
		}
		if !slices.Equal(b.Missing, []string{"cudaSame1", "cudaSame2"}) || len(b.Functions) != len(names) {
			t.Errorf("%q: %d functions, without %q", flags, len(b.Functions), b.Missing)
		}
		for _, x := range b.Functions {
			if !slices.Contains(a.Functions, x) {
				t.Errorf("%q: %+v is not where its symbol is", flags, x)
			}
		}
	}
	self, err := os.Open("main.go")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	if found, err := table.Find(self); err == nil || found != nil {
		t.Errorf("in a text: %v", found)
	}
}
