package capture

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// buildDriver compiles the test driver with the given flags.
func buildDriver(tb testing.TB, flags ...string) string {
	tb.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		tb.Skip("no gcc")
	}
	out := filepath.Join(tb.TempDir(), "lib.so")
	args := append([]string{"-w", "-shared", "-fPIC", `-DLOG="/dev/null"`, "-o", out, "testdata/fakecuda.c"}, flags...)
	if b, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		tb.Fatalf("gcc: %v\n%s", err, b)
	}
	return out
}

// TestLookup holds the reading of exports against debug/elf, for each kind of hash
// table, and without section headers.
func TestLookup(t *testing.T) {
	tests := map[string][]string{
		"gnu": {"-Wl,--hash-style=gnu"}, "sysv": {"-Wl,--hash-style=sysv"}, "both": {"-Wl,--hash-style=both", "-Wl,--build-id=sha1"},
		"stripped": {"-s"}, "few": {"-Wl,-z,separate-code"},
	}
	for name, flags := range tests {
		t.Run(name, func(t *testing.T) {
			file := buildDriver(t, flags...)
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			ref, err := elf.NewFile(bytes.NewReader(b))
			if err != nil {
				t.Fatal(err)
			}
			want := make(map[string]uint64)
			syms, err := ref.DynamicSymbols()
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, s := range syms {
				if elf.ST_TYPE(s.Info) == elf.STT_FUNC && strings.HasPrefix(s.Name, "cu") && s.Section != elf.SHN_UNDEF {
					want[s.Name] = s.Value
					names = append(names, s.Name)
				}
			}
			if len(want) < 20 {
				t.Fatalf("the driver exports %d functions only", len(want))
			}
			clear(b[40:48]) // no section headers
			clear(b[60:64])
			m, err := openELF(bytes.NewReader(b), false, 0)
			if err != nil {
				t.Fatal(err)
			}
			check := func(how string) {
				got, err := m.lookup(append(names, "cuNothing", "malloc", "write"))
				if err != nil {
					t.Errorf("%s: %v", how, err)
				}
				if len(got) != len(want) {
					t.Errorf("%s: found %d functions, want %d", how, len(got), len(want))
				}
				for n, v := range want {
					if got[n].vaddr != v {
						t.Errorf("%s: %s is at %#x, want %#x", how, n, got[n].vaddr, v)
					}
				}
			}
			check("hash table")
			m.gnuHash, m.sysHash = 0, 0
			check("no hash table")
			if name == "both" && len(m.buildID()) != 40 {
				t.Errorf("build id %q", m.buildID())
			}
		})
	}
	if _, err := openELF(strings.NewReader("#!/bin/sh\n"), false, 0); err == nil {
		t.Error("a script is an ELF file")
	}
}

// TestGPUCode finds fat binaries by the section headers.
func TestGPUCode(t *testing.T) {
	f, err := os.Open("../../fatbin/testdata/libtwo.13.0.so")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := openELF(f, false, 0)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := elf.NewFile(f)
	if err != nil {
		t.Fatal(err)
	}
	if want := int64(ref.Section(".nv_fatbin").Size); m.gpuCode() < want || want == 0 {
		t.Errorf("%d bytes of GPU code, want at least %d", m.gpuCode(), want)
	}
}

// FuzzELF: no file makes the reader fail, hang or take memory beyond its bounds,
// and what it finds lies in an executable segment.
func FuzzELF(f *testing.F) {
	for _, flags := range []string{"gnu", "sysv"} {
		if b, err := os.ReadFile(buildDriver(f, "-Wl,--hash-style="+flags)); err == nil {
			f.Add(b[:min(len(b), 16<<10)])
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, memory := range []bool{false, true} {
			m, err := openELF(bytes.NewReader(b), memory, 0x10000)
			if err != nil {
				continue
			}
			got, _ := m.lookup([]string{"cuModuleLoadData", "cuGetExportTable"})
			for name, s := range got {
				if !m.executable(s.vaddr) {
					t.Errorf("%s is at %#x, which can't be executed", name, s.vaddr)
				}
			}
			_ = m.buildID()
			_ = m.gpuCode()
		}
	})
}

// TestTables: each slot that matters names an argument that exists.
func TestTables(t *testing.T) {
	loaders := 0
	for id, known := range tables() {
		if len(id.String()) != 36 || known.name == "" {
			t.Errorf("table %s %q", id, known.name)
		}
		for _, fn := range known.slots {
			if fn.act == actLoad {
				loaders++
			}
		}
	}
	if loaders != 4 { // CUDART_INTERFACE 1, 6, 8 and DLSS 12
		t.Errorf("%d hidden loaders", loaders)
	}
	n := 0
	for _, f := range functions() {
		if f.act < actLinkEnd {
			n++
		}
		if f.image > 5 || f.size > 5 || f.kind > 5 {
			t.Errorf("%s: an argument that is replaced must be in a register", f.name)
		}
	}
	if n != 10 {
		t.Errorf("%d exported loaders", n)
	}
}
