package capture

import (
	"os"
	"testing"

	"nvtrace/ptrace/dso"
)

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

// TestGPUCode finds fat binaries by the section headers.
func TestGPUCode(t *testing.T) {
	file, err := os.Open("../../fatbin/testdata/libtwo.13.0.so")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	f, err := dso.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	if want := int64(f.Section(".nv_fatbin").Size); gpuCode(f) < want || want == 0 {
		t.Errorf("%d bytes of GPU code, want at least %d", gpuCode(f), want)
	}
}
