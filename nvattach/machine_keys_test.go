package nvattach

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/object"
)

// keyObject has a program of a section that counts in a hash under a field of the context.
func keyObject(tb testing.TB, section string, kind object.Kind, field string) *object.Object {
	tb.Helper()
	insns := append(asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}, fieldOf(tb, kind, field)...)
	insns = append(insns, asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -8),
		asm.LoadMapPtr(asm.R1, 0).WithReference("m"), asm.BuiltinFunc(helper.MapValue).Call(), asm.JEq.Imm(asm.R0, 0, "end"),
		asm.Mov.Imm(asm.R1, 1), asm.StoreXAdd(asm.R0, asm.R1, asm.DWord), asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), asm.Return())
	o, err := object.New("test", &ebpf.CollectionSpec{
		Programs: map[string]*ebpf.ProgramSpec{"p": {SectionName: section, Instructions: insns}},
		Maps:     map[string]*ebpf.MapSpec{"m": {Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 4096}},
	})
	if err != nil {
		tb.Fatal(err)
	}
	return o
}

// keysOf are the keys of a map's places, as numbers, in order.
func keysOf(p *Plan) (list []uint64) {
	for _, k := range p.keys.Keys(p.placedMaps()[0]) {
		if k != nil {
			list = append(list, binary.LittleEndian.Uint64(k))
		}
	}
	slices.Sort(list)
	return list
}

// upTo are the numbers below n.
func upTo(n uint64) (list []uint64) {
	for i := range n {
		list = append(list, i)
	}
	return list
}

// TestMachineKeys: in machine code, too, what is counted under keys that are known has places, one for each key and kernel, and
// threads count in registers of theirs. What was kept is for the same places.
func TestMachineKeys(t *testing.T) {
	image, err := compiler(t, "sm_90")(summed)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		section string
		kind    object.Kind
		field   string
		keys    []uint64
		adds    []string // in the kernel with registers to spare
	}{
		{"cuda.mem/*", object.KindMem, "kind", []uint64{1, 1, 2}, []string{"1", "1 guarded", "1 guarded", "1 guarded", "2"}},
		{"cuda.mem/*", object.KindMem, "lane", append(upTo(32), upTo(32)...), nil},
		{"cuda.mem/own", object.KindMem, "site", []uint64{1, 2, 3, 4, 5, 6}, nil},
		{"cuda.entry/*", object.KindEntry, "site", []uint64{1, 2}, nil},
	} {
		store := make(memoryStore)
		var images [][]byte
		for _, again := range []bool{false, true} {
			plan, maps := placedPlan(t, keyObject(t, tt.section, tt.kind, tt.field))
			o := &RewriteOptions{Arch: arch(t, "sm_90a"), CompileBody: compileBody(t, "sm_90"), Store: store, Places: func(text string) (string, string, bool) { return text, text, true }}
			if again {
				o.CompileBody = func(string) ([]byte, error) { return nil, errors.New("it is kept") }
			}
			r, err := plan.Rewrite(image, maps, o)
			if err != nil || len(r.Unprobed) > 0 {
				t.Fatal(err, r.Unprobed)
			}
			if keys := keysOf(plan); len(keys) < len(tt.keys) || tt.field == "site" && len(keys) != len(plan.Sites()) || tt.field != "site" && !slices.Equal(keys, slices.Sorted(slices.Values(tt.keys))) {
				t.Errorf("%s by %s, kept %v: keys %v, want %v; %d places", tt.section, tt.field, again, keys, tt.keys, len(plan.Sites()))
			}
			images = append(images, r.Image)
			if tt.adds == nil {
				continue
			}
			var adds []string
			for _, in := range codeOf(t, r.Image, "own")[len(codeOf(t, image, "own")):] {
				if !isAddition(in) {
					continue
				}
				add := fmt.Sprint(in.Word.Bits(32, 32))
				if _, _, guarded := in.Guard(); guarded {
					add += " guarded"
				}
				adds = append(adds, add)
			}
			if slices.Sort(adds); !slices.Equal(adds, tt.adds) {
				t.Errorf("additions of %q, want %q", adds, tt.adds)
			}
		}
		if !bytes.Equal(images[0], images[1]) {
			t.Errorf("%s by %s: what was kept is another image", tt.section, tt.field)
		}
	}
}
