package pack

import (
	"bytes"
	"strings"
	"testing"

	"nvtrace/rm/internal/gen/facts"
)

// version is a small but whole set of facts.
func version(name string) *facts.Facts {
	return &facts.Facts{
		Version:  name,
		Escapes:  []facts.Escape{{Nr: 42, Name: "NV_ESC_RM_CONTROL", Params: []string{"NVOS54_PARAMETERS"}, Sizes: []int64{16}}, {Nr: 43, Name: "NV_ESC_IDS", Params: []string{"NvU32[]"}}},
		Controls: []facts.Control{{Cmd: 0x20800101, Name: "C", Params: "P", Size: 16, Impl: true, Flags: 5, Fn: "f", Owner: "O"}},
		Classes:  []facts.Class{{ID: 0x80, Name: "D", Alloc: "P", Need: "optional", Parents: []string{"RmClientResource"}}},
		Flags:    map[string]uint64{"RMCTRL_FLAGS_A": 1, "RMCTRL_FLAGS_B": 4, "RMCTRL_FLAGS_NONE": 0},
		Embedded: map[string][]facts.Embedded{"C": {{Params: "P", Field: "ptr", Count: "n", Elem: "sizeof(NvU32)", Dir: "out"}}},
		Types: map[string]facts.Type{
			"NVOS54_PARAMETERS": {Size: 16, Align: 8, Fields: []facts.Field{{Name: "params", Size: 8, Type: "NvP64"}, {Name: "paramsSize", Off: 8, Size: 4, Type: "NvU32"}}},
			"P":                 {Size: 16, Align: 8, Fields: []facts.Field{{Name: "ptr", Size: 8, Type: "NvP64"}, {Name: "n", Off: 8, Size: 4, Type: "NvU32"}, {Name: "e", Off: 12, Size: 4, Type: "E"}}},
		},
		Scalars: map[string]facts.Scalar{"NvP64": {Kind: "p", Size: 8}, "NvU32": {Kind: "u", Size: 4}, "E": {Kind: "e", Size: 4, Enum: "E"}},
		Enums:   map[string]map[string]int64{"E": {"E_A": 0, "E_B": -1}},
	}
}

func set(t *testing.T, l ...*facts.Facts) *facts.Set {
	t.Helper()
	s := facts.NewSet()
	for _, f := range l {
		if err := s.Add(f); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func TestEncodeIsDeterministic(t *testing.T) {
	a, err := Encode(set(t, version("1.10"), version("1.20.03")))
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if b, err := Encode(set(t, version("1.20.03"), version("1.10"))); err != nil || !bytes.Equal(a, b) {
			t.Fatalf("the same facts give other tables (%v)", err)
		}
	}
	one, err := Encode(set(t, version("1.10")))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(a) - len(one); n != 8 {
		t.Errorf("a version that changes nothing costs %d bytes, want the 8 of its number", n)
	}
}

func TestEncodeRefuses(t *testing.T) {
	for want, spoil := range map[string]func(f *facts.Facts){
		"no layout of Q":        func(f *facts.Facts) { f.Controls[0].Params = "Q" },
		"no member nothing":     func(f *facts.Facts) { f.Embedded["C"][0].Field = "nothing" },
		"element size":          func(f *facts.Facts) { f.Embedded["C"][0].Elem = "what" },
		"no type Z":             func(f *facts.Facts) { f.Embedded["C"][0].Elem = "sizeof(Z)" },
		"without parameters":    func(f *facts.Facts) { f.Controls[0].Params = "" },
		"no such type as E":     func(f *facts.Facts) { delete(f.Scalars, "E") },
		"want two or three":     func(f *facts.Facts) { f.Version = "7" },
		"does not fit below":    func(f *facts.Facts) { f.Version = "70000.1" },
		"D: no layout of Gone":  func(f *facts.Facts) { f.Classes[0].Alloc = "Gone" },
		"two facts for":         func(f *facts.Facts) { f.UVM = []facts.Ioctl{{Name: "A", Nr: 1}, {Name: "B", Nr: 1}} },
		"no layout of NoScalar": func(f *facts.Facts) { f.Escapes[1].Params[0] = "NoScalar[]" },
	} {
		f := version("1.10")
		spoil(f)
		if _, err := Encode(set(t, f)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %q", err, want)
		}
	}
}
