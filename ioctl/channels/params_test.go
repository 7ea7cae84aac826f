package channels

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"testing"

	"nvtrace/fatbin"
	"nvtrace/ptrace/proc"
)

// flat is memory from an address on.
type flat struct {
	at uint64
	b  []byte
}

func (f *flat) Maps() ([]proc.Mapping, error) { return nil, nil }

func (f *flat) Read(address uint64, b []byte) error {
	if address < f.at || address-f.at+uint64(len(b)) > uint64(len(f.b)) {
		return fmt.Errorf("%#x is not there", address)
	}
	copy(b, f.b[address-f.at:])
	return nil
}

// TestParams finds each kernel's parameters by the address of its name in the image, as the compiler's own
// description has them; and none in an image that is damaged.
func TestParams(t *testing.T) {
	for _, file := range []string{"kernels.11.8.sm_80.cubin", "kernels.13.0.sm_90a.cubin", "kernels.13.0.sm_100f.cubin"} {
		image, err := os.ReadFile("../../fatbin/testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		cubin, err := fatbin.ParseCubin(image)
		if err != nil {
			t.Fatal(err)
		}
		const before = 3 << 16
		m := &flat{0x7f0000000000, append(bytes.Repeat([]byte("\x7fELF\x02\x01\x01."), before/8), image...)}
		found := 0
		for i := range cubin.Kernels {
			k := &cubin.Kernels[i]
			at := bytes.Index(image, []byte(".text."+k.Name+"\x00"))
			if at < 0 {
				t.Fatalf("%s has no section of %s", file, k.Name)
			}
			nameAt := m.at + before + uint64(at+len(".text."))
			got, ok := params(m, nameAt, k.Name)
			if !ok || !slices.Equal(got, k.Params) {
				t.Errorf("%s: %s has %v, want %v", file, k.Name, got, k.Params)
			}
			if found += len(got); i == 0 {
				if list, ok := params(m, nameAt, k.Name+"x"); ok {
					t.Errorf("%s: a kernel that isn't there has %v", file, list)
				}
				if list, ok := params(m, m.at+0x100, k.Name); ok {
					t.Errorf("%s: a name outside of the image has %v", file, list)
				}
			}
		}
		if found == 0 {
			t.Errorf("%s: no parameters", file)
		}
	}
}
