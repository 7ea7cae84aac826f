package nvattach

import (
	"encoding/binary"
	"strings"
	"testing"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// TestTogether: what a warp's threads do together is what they would compute from each other's
// numbers, in whole warps and in parts of one.
func TestTogether(t *testing.T) {
	const blocks, threads = 3, 70
	r := newRig(t, nil, testObject(t, "together"))
	r.runAdd(r.weave(vectorAdd).Text, blocks, threads)
	x := r.maps.Find("out")
	for b := range uint32(blocks) {
		for th := range uint32(threads) {
			lane, first := th%32, b*threads+th/32*32
			n := min(32, threads-th/32*32) // threads of the warp
			var want [8]uint64
			want[0] = 1<<n - 1
			want[3] = 1
			for l := range n {
				i := first + l
				if i%3 == 0 {
					want[1] |= 1 << l
				}
				if i == 7 {
					want[2] = 1
				}
				if i >= 64 {
					want[3] = 0
				}
				if l&1 == 1 {
					want[7] |= 1 << l
				}
			}
			want[7] *= want[2]
			if lane == 0 {
				want[4] = 1
			}
			if lane^1 < n {
				want[5] = 1<<40 | uint64(first+(lane^1))
			}
			v, err := r.maps.Lookup(r.machine, x, mapmem.IndexKey(uint64(b*threads+th)))
			if err != nil {
				t.Fatal(err)
			}
			for k := range want {
				if got := binary.LittleEndian.Uint64(v[8*k:]); got != want[k] {
					t.Fatalf("block %d, thread %d: member %d is %#x, want %#x", b, th, k, got, want[k])
				}
			}
		}
	}
}

// TestTogetherIsProven: a program in which some threads may not come to a call that others wait in
// is refused.
func TestTogetherIsProven(t *testing.T) {
	thread, lane, block := int16(36), int16(56), int16(24)
	ballot := asm.Instructions{asm.Mov.Imm(asm.R1, 1), asm.BuiltinFunc(helper.Ballot).Call(), asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord)}
	field := func(off int16) asm.Instruction { return asm.LoadMem(asm.R2, asm.R1, off, asm.Word) }
	for _, tt := range []struct {
		name  string
		insns []asm.Instructions
		why   string
	}{
		{"straight", []asm.Instructions{ballot, ballot}, ""},
		{"condition on the block", []asm.Instructions{{field(block), asm.JNE.Imm(asm.R2, 0, "end")}, ballot}, ""},
		{"condition on the thread", []asm.Instructions{{field(thread), asm.JGT.Imm(asm.R2, 3, "end")}, ballot}, "have parted"},
		{"condition on the lane", []asm.Instructions{{field(lane), asm.JEq.Imm(asm.R2, 0, "end")}, ballot}, "have parted"},
		{"behind a condition", []asm.Instructions{{asm.Mov.Imm(asm.R6, 4), field(thread), asm.JGT.Imm(asm.R2, 3, "on"), asm.Mov.Imm(asm.R6, 5), asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("on")}, ballot[1:]}, ""},
		{"condition on what it said", []asm.Instructions{{field(thread), asm.Mov.Reg(asm.R1, asm.R2), asm.BuiltinFunc(helper.Any).Call(), asm.JEq.Imm(asm.R0, 0, "end")}, ballot}, ""},
		{"condition on what was shuffled", []asm.Instructions{{field(thread), asm.Mov.Reg(asm.R1, asm.R2), asm.Mov.Imm(asm.R2, 0), asm.BuiltinFunc(helper.Shuffle).Call(), asm.JEq.Imm(asm.R0, 0, "end")}, ballot}, "have parted"},
		{"loop that all leave at once", []asm.Instructions{{asm.Mov.Imm(asm.R6, 3), asm.Mov.Imm(asm.R7, 0).WithSymbol("loop")}, ballot, {asm.Sub.Imm(asm.R6, 1), asm.JNE.Imm(asm.R6, 0, "loop")}}, ""},
		{"loop that they leave one by one", []asm.Instructions{{field(lane), asm.Mov.Reg(asm.R6, asm.R2), asm.Mov.Imm(asm.R7, 0).WithSymbol("loop")}, ballot, {asm.Sub.Imm(asm.R6, 1), asm.JSGT.Imm(asm.R6, 0, "loop")}}, "have parted"},
		{"threads that end", []asm.Instructions{{asm.Mov.Reg(asm.R6, asm.R1)}, ballot, {asm.LoadMem(asm.R2, asm.R6, block, asm.Word), asm.JNE.Imm(asm.R2, 0, "end"), asm.BuiltinFunc(helper.Exit).Call()}}, "ends threads"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var insns asm.Instructions
			for _, part := range tt.insns {
				insns = append(insns, append(asm.Instructions{}, part...)...)
			}
			insns = append(insns, asm.StoreImm(asm.RFP, -16, 0, asm.Word).WithSymbol("end"), asm.LoadMapPtr(asm.R1, 0).WithReference("m"), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -16),
				asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, -8), asm.Mov.Imm(asm.R4, 0), asm.BuiltinFunc(helper.MapUpdate).Call(), asm.Mov.Imm(asm.R0, 0), asm.Return())
			o, err := object.New("test", &ebpf.CollectionSpec{
				Programs: map[string]*ebpf.ProgramSpec{"p": {SectionName: "cuda.entry/*", Instructions: insns}},
				Maps:     map[string]*ebpf.MapSpec{"m": {Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}},
			})
			if err != nil {
				t.Fatal(err)
			}
			_, err = NewPlan([]*object.Object{o}, &PlanOptions{AllowExit: true})
			if tt.why == "" && err != nil || tt.why != "" && (err == nil || !strings.Contains(err.Error(), tt.why)) {
				t.Errorf("got %v, want %q", err, tt.why)
			}
		})
	}
}
