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
	for kernel, want := range map[string]string{"a": "n", "b": "own"} {
		for _, image := range [][]byte{[]byte(src), container} {
			r := &Rewritten{Kernels: []KernelReport{{Name: kernel}}}
			global, constant := r.Variables(image, kernel, fatbin.Arch{SM: 90, Suffix: 'a'})
			if !slices.Equal(global, []string{want}) || !slices.Equal(constant, []string{"c"}) {
				t.Errorf("%s uses %v and %v, want %s and c", kernel, global, constant, want)
			}
		}
	}
}

func TestTags(t *testing.T) {
	for name, want := range map[string]bool{
		"_ZN4cuda3std3__45__cpo5beginE": true,
		"_ZN52_INTERNAL_9f79b31e_21_PointwiseOpsKernel_cu_a8d289df4cuda3std3__45__cpo4swapE":                            true,
		"_ZN41_INTERNAL_f71e7945_10_SoftMax_cu_9f978f636thrust38_V_300200_SM_750_800_860_900_1000_12006system3cpp3parE": true,
		"_ZN43_INTERNAL_06674f3f_13_RowwiseMM_cu_b659e3794cute1_E":                                                      true,
		"_ZN12_GLOBAL__N_14cuda3std8in_placeE":                                                                          true,
		"_ZN2at4cuda3cub5tableE":                                                                                        false, // of another namespace
		"_ZN41_INTERNAL_f71e7945_10_SoftMax_cu_9f978f635stateE":                                                         false,
		"_ZN12_GLOBAL__N_14stepE":                                                                                       false,
		"_ZN9999cudaE":                                                                                                  false,
		"_ZN99999999999999999999cudaE":                                                                                  false,
		"_ZN":                                                                                                           false,
		"_ZN4cud":                                                                                                       false,
		"cuda":                                                                                                          false,
	} {
		if got := isTag(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
