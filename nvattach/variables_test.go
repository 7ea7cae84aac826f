package nvattach

import (
	"slices"
	"testing"

	"nvtrace/fatbin"
)

// TestVariables: which variables of its module a kernel uses that others can change.
func TestVariables(t *testing.T) {
	const src = ".version 8.0\n.target sm_75\n.address_size 64\n" +
		".visible .global .align 4 .u32 n;\n.global .align 8 .u64 own[2];\n.const .align 4 .u32 c;\n" +
		".global .align 1 .b8 $str[4];\n.global .align 4 .b8 __cudart_i2opi_f[24];\n.global .align 1 .b8 _ZN4cuda3std3__48in_placeE[1];\n" +
		".func twice()\n{\n\t.reg .b32 %r;\n\tld.const.u32 %r, [c];\n\tret;\n}\n" +
		".visible .entry a()\n{\n\t.reg .b32 %r;\n\t.shared .align 4 .u32 s;\n\tld.shared.u32 %r, [s];\n\tld.global.u32 %r, [n];\n\tret;\n}\n" +
		".visible .entry b()\n{\n\t.reg .b64 %d;\n\tmov.u64 %d, own;\n\tmov.u64 %d, $str;\n\tmov.u64 %d, __cudart_i2opi_f;\n\tmov.u64 %d, _ZN4cuda3std3__48in_placeE;\n\tret;\n}\n"
	e, err := fatbin.NewEntry(fatbin.KindPTX, fatbin.Arch{SM: 75}, []byte(src), nil)
	if err != nil {
		t.Fatal(err)
	}
	container := (&fatbin.Container{Entries: []fatbin.Entry{e}}).Append(nil)
	for kernel, want := range map[string][]string{"a": {"c", "n"}, "b": {"c", "own"}} {
		for _, image := range [][]byte{[]byte(src), container} {
			r := &Rewritten{Kernels: []KernelReport{{Name: kernel}}}
			if got := r.Variables(image, kernel, fatbin.Arch{SM: 90, Suffix: 'a'}); !slices.Equal(got, want) {
				t.Errorf("%s uses %v, want %v", kernel, got, want)
			}
		}
	}
}
