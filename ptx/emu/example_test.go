package emu_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"

	"nvtrace/ptx"
	"nvtrace/ptx/emu"
)

const squares = `.version 7.0
.target sm_70
.address_size 64
.visible .entry squares(.param .u64 out) {
	.reg .b32 %r<3>;
	.reg .b64 %rd<3>;
	mov.u32 %r1, %tid.x;
	mul.lo.u32 %r2, %r1, %r1;
	ld.param.u64 %rd1, [out];
	mad.wide.u32 %rd2, %r1, 4, %rd1;
	st.global.u32 [%rd2], %r2;
	ret;
}
`

// A kernel runs on the CPU as it would on a GPU, and leaves its results in the machine's memory.
func Example() {
	f, err := ptx.Parse("squares.ptx", squares, nil)
	if err != nil {
		log.Fatal(err)
	}
	m := emu.New(nil)
	mod, err := m.Load(f)
	if err != nil {
		log.Fatal(err)
	}
	k, err := mod.Kernel("squares")
	if err != nil {
		log.Fatal(err)
	}
	const n = 8
	out, err := m.Alloc(4*n, "out")
	if err != nil {
		log.Fatal(err)
	}
	params := binary.LittleEndian.AppendUint64(nil, out.Base)
	if _, err := m.Launch(context.Background(), k, &emu.LaunchConfig{Block: emu.Dim3{X: n}, Params: params}); err != nil {
		log.Fatal(err)
	}
	for i := range n {
		fmt.Print(binary.LittleEndian.Uint32(out.Data[4*i:]), " ")
	}
	// Output: 0 1 4 9 16 25 36 49
}
