package nvattach

import (
	"slices"
	"strings"
	"testing"

	"nvtrace/nvattach/object"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// outer is an array of two maps, and what is in its first entry.
func outer() []*object.MapDef {
	o := def("outer", object.MapArrayOfMaps, 4, 4, 2)
	o.Inner, o.Maps = def("outer values", object.MapHash, 4, 8, 8), map[uint32]string{0: "inside"}
	return []*object.MapDef{def("inside", object.MapHash, 4, 8, 8), o}
}

// lookIn looks up an index of outer: r0 is the map that is there, or NULL; r2 points to the index.
func lookIn(index int64) asm.Instructions {
	return asm.Instructions{
		asm.StoreImm(asm.RFP, -8, index, asm.Word), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -8), asm.LoadMapPtr(asm.R1, 0).WithReference("outer"),
		asm.FnMapLookupElem.Call(), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -8),
	}
}

// TestInnerRefused: a map that a lookup has given must be one; programs don't change which maps are in
// an array of them; and kernels have none.
func TestInnerRefused(t *testing.T) {
	tested := asm.Instructions{asm.JEq.Imm(asm.R0, 0, "none"), asm.Mov.Reg(asm.R1, asm.R0)}
	last := asm.Instructions{asm.Mov.Imm(asm.R0, 0).WithSymbol("none"), asm.Return()}
	for name, c := range map[string]struct {
		ins  asm.Instructions
		want string
	}{
		"good":      {slices.Concat(lookIn(0), tested, asm.Instructions{asm.FnMapLookupElem.Call()}, last), ""},
		"not there": {slices.Concat(lookIn(1), tested, asm.Instructions{asm.FnMapLookupElem.Call()}, last), ""},
		"beyond":    {slices.Concat(lookIn(2), tested, asm.Instructions{asm.FnMapLookupElem.Call()}, last), ""},
		"untested":  {slices.Concat(lookIn(0), asm.Instructions{asm.Mov.Reg(asm.R1, asm.R0), asm.FnMapLookupElem.Call()}, epilogue), "may be NULL"},
		"read":      {slices.Concat(lookIn(0), tested, asm.Instructions{asm.LoadMem(asm.R3, asm.R0, 0, asm.DWord)}, last), "a map"},
		"number":    {slices.Concat(lookIn(0), tested, asm.Instructions{asm.Add.Imm(asm.R1, 8)}, last), "as if it were a number"},
		"changed": {slices.Concat(lookIn(0), asm.Instructions{
			asm.LoadMapPtr(asm.R1, 0).WithReference("outer"), asm.Mov.Reg(asm.R3, asm.R2), asm.Mov.Imm(asm.R4, 0), asm.FnMapUpdateElem.Call(),
		}, epilogue), "are set before programs run"},
		"deleted": {slices.Concat(lookIn(0), asm.Instructions{asm.LoadMapPtr(asm.R1, 0).WithReference("outer"), asm.FnMapDeleteElem.Call()}, epilogue), "are set before programs run"},
	} {
		_, _, r, err := hostRun(t, object.HostEntry, outer(), &fakeThread{}, c.ins)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if c.want == "" && r != nil && len(r.Losses()) > 0 {
			t.Errorf("%s: %v", name, r.Losses())
		}
	}
	o := &object.Object{Name: "test.o", Maps: outer()}
	o.Programs = []*object.Program{{Name: "prog", Point: object.Point{Kind: object.KindEntry, Kernel: "*"}, Object: o, Insns: slices.Concat(lookIn(0), epilogue)}}
	if _, err := NewPlan([]*object.Object{o}, nil); err == nil || !strings.Contains(err.Error(), "map outer has type array_of_maps, which can't be had on a GPU") {
		t.Errorf("in kernels: %v", err)
	}
}

// TestInnerDefined: what an object says of maps in maps is checked before programs are.
func TestInnerDefined(t *testing.T) {
	hash := &ebpf.MapSpec{Name: "hash", Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 8}
	for want, outer := range map[string]*ebpf.MapSpec{
		"":                                 {InnerMap: hash, Contents: []ebpf.MapKV{{Key: uint32(0), Value: "hash"}}},
		"it does not say what maps":        {},
		"there is no map other":            {InnerMap: hash, Contents: []ebpf.MapKV{{Key: uint32(0), Value: "other"}}},
		"an index of 2":                    {InnerMap: hash, Contents: []ebpf.MapKV{{Key: uint32(2), Value: "hash"}}},
		"maps in outer have type array":    {InnerMap: &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 8}, Contents: []ebpf.MapKV{{Key: uint32(0), Value: "hash"}}},
		"its values are of type prog_arr":  {InnerMap: &ebpf.MapSpec{Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1}},
		"its values: a key of 8 bytes":     {InnerMap: &ebpf.MapSpec{Type: ebpf.Array, KeySize: 8, ValueSize: 8, MaxEntries: 8}},
		"values are of type array_of_maps": {InnerMap: &ebpf.MapSpec{Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: hash}},
	} {
		outer.Type, outer.KeySize, outer.ValueSize, outer.MaxEntries = ebpf.ArrayOfMaps, 4, 4, 2
		o, err := object.New("test", &ebpf.CollectionSpec{Maps: map[string]*ebpf.MapSpec{"outer": outer, "hash": hash}})
		switch {
		case want == "" && (err != nil || o.Map("outer").Maps[0] != "hash"):
			t.Errorf("%v", err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%v, want %q", err, want)
		}
	}
}
