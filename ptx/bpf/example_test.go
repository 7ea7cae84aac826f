package bpf_test

import (
	"fmt"

	"github.com/cilium/ebpf/asm"

	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// A counter in global data: the address is known when the code is written, so
// that nothing is left but the addition.
func Example() {
	env := &bpf.Env{Maps: []bpf.Map{{Name: ".bss", ValueSize: 16, MaxEntries: 1, Direct: true}}}
	p := &bpf.Program{Name: "count", Insns: asm.Instructions{
		asm.LoadMapValue(asm.R1, 0, 8),
		asm.Mov.Imm(asm.R2, 1),
		asm.AddAtomic.Mem(asm.R1, asm.R2, asm.DWord, 0),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
	}}
	v, err := bpf.Verify(p, env)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("only adds:", v.Report().Maps[0].AddOnly())
	code, err := v.Emit(&bpf.Site{
		Version: ptx.Version{Major: 8, Minor: 0}, Target: ptx.Target{SM: 90},
		Maps: []bpf.Addr{{Symbol: "counters"}},
	})
	fmt.Print(code, err)
	// Output:
	// only adds: true
	// $nvbb0:
	// 	red.relaxed.gpu.global.add.u64 [counters+8], 1;
	// $nvbdone:
	// <nil>
}

// A program that follows a number is refused.
func ExampleVerify() {
	_, err := bpf.Verify(&bpf.Program{Name: "wild", Insns: asm.Instructions{
		asm.Mov.Imm(asm.R1, 64),
		asm.LoadMem(asm.R0, asm.R1, 0, asm.DWord).WithSource(asm.Comment("return *(long *)64;")),
		asm.Return(),
	}}, nil)
	fmt.Println(err)
	// Output:
	// program wild: instruction 1 (LdXMemDW dst: r0 src: r1 off: 0 imm: 0): reads through r1, which is a number; only pointers from helpers, maps, the stack and the context can be followed; bpf_probe_read copies memory at an address [return *(long *)64;]
}

// A program that is proven runs on the CPU, too, one instruction after the other.
func ExampleInterpreter() {
	env := &bpf.Env{Context: &bpf.Context{Fields: []bpf.Field{{Name: "n", Size: 8}}}}
	p := &bpf.Program{Name: "half", Insns: asm.Instructions{
		asm.LoadMem(asm.R0, asm.R1, 0, asm.DWord),
		asm.RSh.Imm(asm.R0, 1),
		asm.Return(),
	}}
	if _, err := bpf.Verify(p, env); err != nil {
		fmt.Println(err)
		return
	}
	in := &bpf.Interpreter{Env: env, Field: func(int) uint64 { return 42 }}
	r, err := in.Run(p)
	fmt.Println(r.R0, r.Steps, err)
	// Output: 21 3 <nil>
}
