package nvattach

import (
	"encoding/binary"
	"slices"
	"testing"

	"nvtrace/nvattach/mapmem"
	"nvtrace/ptx/emu"
)

// vectors accesses several numbers at once, of all sizes.
const vectors = `.version 8.0
.target sm_80
.address_size 64
.visible .entry vectors(.param .u64 buf)
{
	.reg .b16 %h<5>;
	.reg .b32 %r<5>;
	.reg .f32 %f<3>;
	.reg .b64 %d<4>;
	ld.param.u64 %d1, [buf];
	ld.global.v2.f32 {%f1, %f2}, [%d1];
	ld.global.v4.u16 {%h1, %h2, %h3, %h4}, [%d1];
	ld.global.v4.u8 {%h1, %h2, %h3, %h4}, [%d1];
	ld.global.v2.u64 {%d2, %d3}, [%d1];
	ld.global.v4.b32 {%r1, _, %r3, %r4}, [%d1];
	st.global.v4.b32 [%d1+16], {%r3, %r4, %r1, %r1};
	st.global.v2.u64 [%d1+32], {%d3, %d2};
	st.global.v2.u8 [%d1+48], {%h2, %h1};
	ret;
}
`

// The first and the second 8 bytes of the memory that launchVectors gives to its kernel.
const firstHalf, secondHalf = 0x8877665544332211, 0xffeeddccbbaa9988

// launchVectors runs a kernel that was made of vectors, in so many threads.
func (r *rig) launchVectors(text string, threads uint32) {
	r.tb.Helper()
	reg, err := r.machine.Alloc(64, "buf")
	if err != nil {
		r.tb.Fatal(err)
	}
	binary.LittleEndian.PutUint64(reg.Data, firstHalf)
	binary.LittleEndian.PutUint64(reg.Data[8:], secondHalf)
	r.launch(text, "vectors", emu.Dim3{X: 1}, emu.Dim3{X: threads}, binary.LittleEndian.AppendUint64(nil, reg.Base))
}

// TestVectorValues: the value of an access to several numbers is its first 8 bytes.
func TestVectorValues(t *testing.T) {
	r := newRig(t, &PlanOptions{Programs: []string{"on_access"}}, testObject(t, "params"))
	r.launchVectors(r.weave(vectors).Text, 2)
	const first, second = firstHalf, secondHalf
	var got []uint64
	if err := r.maps.NewReader(r.maps.Find("accesses")).Drain(r.machine, true, func(rec mapmem.Record) { got = append(got, binary.LittleEndian.Uint64(rec.Data[8:])) }); err != nil {
		t.Fatal(err)
	}
	want := []uint64{first, first, first & (1<<32 - 1), first, first & (1<<32 - 1), second, second, 0x1122}
	if !slices.Equal(got, want) {
		t.Errorf("values %#x, want %#x", got, want)
	}
}
