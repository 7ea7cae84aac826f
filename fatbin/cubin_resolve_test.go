package fatbin

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"nvtrace/internal/need"
)

// TestResolveSymbols: a kernel's references to a variable become an address, those to another
// stay, and both as the driver would have them.
func TestResolveSymbols(t *testing.T) {
	ptxas := need.Tool(t, "ptxas", "NVTRACE_PTXAS")
	const src = ".version 8.0\n.target sm_90\n.address_size 64\n.global .align 8 .u64 one;\n.global .align 8 .u64 two[4];\n" +
		".visible .entry k(.param .u64 p)\n{\n\t.reg .b64 %d<4>;\n\tld.param.u64 %d0, [p];\n\tld.global.u64 %d1, [one];\n\tld.global.u64 %d2, [two+16];\n" +
		"\tadd.u64 %d1, %d1, %d2;\n\tst.global.u64 [%d0], %d1;\n\tret;\n}\n"
	in, out := filepath.Join(t.TempDir(), "in.ptx"), filepath.Join(t.TempDir(), "out.cubin")
	if err := os.WriteFile(in, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := exec.Command(ptxas, "-arch=sm_90", "-o", out, in).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	cubin, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	refers := func(b []byte) []string {
		e, err := NewCubinEditor(b, nil)
		if err != nil {
			t.Fatal(err)
		}
		return e.Refers("k")
	}
	if got := refers(cubin); !slices.Equal(got, []string{"one", "two"}) {
		t.Fatalf("it refers to %q", got)
	}
	const addr = 0x7f1234567890
	got, err := ResolveSymbols(cubin, map[string]uint64{"one": addr})
	if err != nil || len(got) != len(cubin) {
		t.Fatalf("%d bytes of %d, %v", len(got), len(cubin), err)
	}
	if left := refers(got); !slices.Equal(left, []string{"two"}) {
		t.Errorf("it still refers to %q", left)
	}
	e, _ := NewCubinEditor(got, nil)
	index, ok := e.file.section(".nv.constant4")
	if want := binary.LittleEndian.AppendUint64(nil, addr); !ok || !bytes.Contains(e.file.bytes(index), want) {
		t.Errorf("the address is not in the constants: %x", e.file.bytes(index))
	}
	if same, err := ResolveSymbols(cubin, map[string]uint64{"none": 1}); err != nil || !bytes.Equal(same, cubin) {
		t.Errorf("of a name that is not there: %v", err)
	}
	if _, err := ResolveSymbols(cubin[:100], map[string]uint64{"one": addr}); !errors.Is(err, ErrFormat) {
		t.Errorf("of a part of a file: %v", err)
	}
	for i := range got { // any bytes: an error or not, but no fault
		bad := slices.Clone(cubin)
		bad[i] ^= 0xff
		_, _ = ResolveSymbols(bad, map[string]uint64{"one": addr, "two": addr})
	}
}
