package nvattach

import (
	"encoding/binary"
	"slices"
	"testing"

	"nvtrace/nvattach/mapmem"
	"nvtrace/ptx/emu"
)

// records returns what programs put into a ring buffer, as numbers of 8 bytes.
func (r *rig) records(name string) (list [][]uint64) {
	r.tb.Helper()
	err := r.maps.NewReader(r.maps.Find(name)).Drain(r.machine, true, func(rec mapmem.Record) {
		var words []uint64
		for b := rec.Data; len(b) >= 8; b = b[8:] {
			words = append(words, binary.LittleEndian.Uint64(b))
		}
		list = append(list, words)
	})
	if err != nil {
		r.tb.Fatal(err)
	}
	return list
}

// TestSecondHalves: of an access to several numbers programs see 16 bytes.
func TestSecondHalves(t *testing.T) {
	r := newRig(t, &PlanOptions{Programs: []string{"on_wide"}}, testObject(t, "operands"))
	text := r.weave(vectors).Text
	r.launchVectors(text, 1)
	const first, second, low, zero = firstHalf, secondHalf, 1<<32 - 1, 0
	want := [][]uint64{
		{first, zero, 8},
		{first, zero, 8},
		{first & low, zero, 4},
		{first, second, 16},
		{first & low, second, 16}, // whose second number goes to _
		{second, (first&low)<<32 | first&low, 16},
		{second, first, 16},
		{0x1122, zero, 2},
	}
	if got := r.records("accesses"); !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("got  %#x\nwant %#x", got, want)
	}
	assemble(t, text, "sm_90")
}

// withOperands has instructions with operands of all sizes.
const withOperands = `.version 8.0
.target sm_80
.address_size 64
.visible .entry given(.param .u64 buf)
{
	.reg .pred %p<3>;
	.reg .b16 %h<3>;
	.reg .b32 %r<5>;
	.reg .b64 %d<4>;
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, -7;
	add.u32 %r3, %r1, %r2;
	mov.u64 %d1, 0x123456789abcdef0;
	cvt.u16.u32 %h1, %r2;
	mad.wide.u16 %r4, %h1, %h1, %r3;
	setp.eq.u32 %p1, %r1, 0;
	selp.b64 %d2, %d1, 5, %p1;
	@%p1 add.u64 %d2, %d2, %d1;
	@!%p1 bra out;
	shl.b64 %d3, %d2, %r1;
out:
	ret;
}
`

// TestOperands: what programs at instructions see of their operands, before they run, and of
// their guards.
func TestOperands(t *testing.T) {
	r := newRig(t, &PlanOptions{Programs: []string{"on_given"}}, testObject(t, "operands"))
	text := r.weave(withOperands).Text
	r.launch(text, "given", emu.Dim3{X: 1}, emu.Dim3{X: 2}, make([]byte, 8))
	const (
		minus7 = 1<<32 - 7
		h      = 1<<16 - 7
		wide   = 0x123456789abcdef0
	)
	// By instruction, of thread 0 and thread 1: whether there is a guard, and the operands but the first.
	both := func(list ...uint64) [2][]uint64 { return [2][]uint64{list, list} }
	want := map[uint64][2][]uint64{
		0:  both(0, 0, 0, 0), // %tid.x is no register that holds a value
		1:  both(0, 1<<64-7, 0, 0),
		2:  {{0, 0, minus7, 0}, {0, 1, minus7, 0}},
		3:  both(0, wide, 0, 0),
		4:  both(0, minus7, 0, 0),
		5:  {{0, h, h, minus7}, {0, h, h, minus7 + 1}},
		6:  {{0, 0, 0, 0}, {0, 1, 0, 0}},
		7:  {{0, wide, 5, 1}, {0, wide, 5, 0}},
		8:  {{1, wide, wide, 0}},
		9:  {nil, {1, 0, 0, 0}},
		10: {{0, 2 * wide & (1<<64 - 1), 0, 0}},
		11: both(0, 0, 0, 0),
	}
	for _, rec := range r.records("instructions") {
		insn := rec[0]
		got := append([]uint64{rec[1]}, rec[3:]...)
		threads, ok := want[insn]
		at := slices.IndexFunc(threads[:], func(w []uint64) bool { return slices.Equal(w, got) })
		if !ok || at < 0 {
			t.Errorf("instruction %d has %#x, want one of %#x", insn, got, threads)
			continue
		}
		threads[at] = nil // each once
		want[insn] = threads
	}
	for insn, threads := range want {
		for _, w := range threads {
			if w != nil {
				t.Errorf("nothing was seen of instruction %d with %#x", insn, w)
			}
		}
	}
	assemble(t, text, "sm_90")
}
