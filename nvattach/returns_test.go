package nvattach

import (
	"encoding/binary"
	"testing"

	"nvtrace/ptx/emu"
)

// returning calls functions that return a number by a parameter, in two ways, two numbers at once,
// and one in a register.
const returning = `.version 8.0
.target sm_80
.address_size 64
.func (.param .b32 out) either(.param .b32 in)
{
	.reg .pred %p;
	.reg .b32 %r<3>;
	ld.param.b32 %r1, [in];
	setp.eq.u32 %p, %r1, 0;
	@%p bra ZERO;
	mul.lo.u32 %r2, %r1, 100;
	st.param.b32 [out+0], %r2;
	ret;
ZERO:
	st.param.b32 [out], 7;
	ret;
}
.func (.param .align 8 .b8 out[16]) pair(.param .b32 in)
{
	.reg .b32 %r<3>;
	.reg .b64 %d<2>;
	ld.param.b32 %r1, [in];
	mov.b64 %d1, 5;
	st.param.b64 [out+8], %d1;
	st.param.v2.b32 [out+0], {%r1, 1};
	ret;
}
.visible .entry returning(.param .u64 buf)
{
	.reg .b32 %r<4>;
	mov.u32 %r1, %tid.x;
	{
		.param .b32 a;
		.param .b32 v;
		st.param.b32 [a], %r1;
		call (v), either, (a);
		ld.param.b32 %r2, [v];
	}
	{
		.param .b32 a;
		.param .align 8 .b8 v[16];
		st.param.b32 [a], %r1;
		call (v), pair, (a);
		ld.param.b32 %r3, [v];
	}
	ret;
}
`

// TestReturnValues: a program sees what a device function returns, at each of its ways out.
func TestReturnValues(t *testing.T) {
	r := newRig(t, nil, testObject(t, "returns"))
	const threads = 50
	r.launch(r.weave(returning).Text, "returning", emu.Dim3{X: 1}, emu.Dim3{X: threads}, binary.LittleEndian.AppendUint64(nil, 0))
	sum := uint64(7) // of thread 0
	for i := range uint64(threads) {
		sum += 100*i + i + 1<<32
	}
	if n, got, no := r.variable("calls", 0), r.variable("sum", 0), r.variable("refused", 0); n != 2*threads || got != sum || no != 1000*threads {
		t.Errorf("%d calls, %d in all, %d refused; want %d, %d, %d", n, got, no, 2*threads, sum, 1000*threads)
	}
}
