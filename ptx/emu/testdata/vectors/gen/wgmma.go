package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// A wgmmaFamily is a kernel in which each block, a warpgroup, executes one wgmma of shape m64n8kK: a in registers, spread
// as that of mma is, b in shared memory as it is in its buffer, 256 bytes a block: two core matrices of eight columns with
// 16 bytes each. The launches are those of the matrixFamily of the same types.
type wgmmaFamily struct {
	name, typ   string // typ is that of the elements in buffers
	instruction string
	out         string // type of c and d
	launches    []matrixLaunch
}

// wgmmas returns the families of wgmma.
func wgmmas() []*wgmmaFamily {
	var all []*wgmmaFamily
	find := func(of string) []matrixLaunch {
		for _, f := range matrices() {
			if f.name == of {
				return f.launches
			}
		}
		panic("BUG: no family " + of)
	}
	add := func(name, typ, of, instruction, out string) {
		f := &wgmmaFamily{name: "wgmma_" + name, typ: typ, instruction: instruction, out: out}
		for _, l := range find(of) {
			c := l.patterns[2]
			if out == "f16" {
				c = l.patterns[3]
			}
			f.launches = append(f.launches, matrixLaunch{l.name, []string{l.patterns[0], l.patterns[1], c}})
		}
		all = append(all, f)
	}
	add("f16_f32", "f16", "mma_sum_f16", "m64n8k16.f32.f16.f16", "f32")
	add("f16_f16", "f16", "mma_sum_f16", "m64n8k16.f16.f16.f16", "f16")
	add("bf16_f32", "bf16", "mma_sum_bf16", "m64n8k16.f32.bf16.bf16", "f32")
	add("tf32_f32", "u32", "mma_sum_tf32", "m64n8k8.f32.tf32.tf32", "f32")
	for _, t := range list("e4m3 e5m2") {
		add(t+"_f32", "u8", "mma_sum_fp8", "m64n8k32.f32."+t+"."+t, "f32")
		add(t+"_f16", "u8", "mma_sum_fp8", "m64n8k32.f16."+t+"."+t, "f16")
	}
	return all
}

const wgmmaBlocks = 2

func (f *wgmmaFamily) write(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, f.name+".ptx"), []byte(f.kernel()), 0o666); err != nil {
		return err
	}
	for _, l := range f.launches {
		if err := os.WriteFile(filepath.Join(dir, f.name+"_"+l.name+".vec"), []byte(f.launch(l)), 0o666); err != nil {
			return err
		}
	}
	return nil
}

// words is the number of 32-bit registers that hold a thread's part of c.
func (f *wgmmaFamily) words() int {
	if f.out == "f16" {
		return 2
	}
	return 4
}

func (f *wgmmaFamily) kernel() string {
	imm := "1, 1, 1" // add c; a and b as they are
	if f.typ == "f16" || f.typ == "bf16" {
		imm = "1, 1, 1, 0" // b's rows are along k
	}
	reg, _ := register(f.out)
	s := fmt.Sprintf("// wgmma %s\n// Written by gen; do not edit.\n.version 8.0\n.target sm_90a\n.address_size 64\n\n.visible .entry %s(.param .u64 p_a, .param .u64 p_b, .param .u64 p_c, .param .u64 p_out)\n{\n", f.instruction, f.name)
	s += "\t.shared .align 128 .b8 tile[256];\n\t.reg .b32 %i, %t, a<4>, w;\n\t.reg .b64 %p, desc;\n\t.reg .pred some;\n"
	s += fmt.Sprintf("\t.reg %s d<%d>;\n", reg, f.words())
	s += "\tmov.u32 %t, %tid.x;\n\tmov.u32 %i, %ctaid.x;\n\tsetp.lt.u32 some, %t, 64;\n\tmad.lo.u32 w, %i, 64, %t;\n\tld.param.u64 %p, [p_b];\n\tmad.wide.u32 %p, w, 4, %p;\n"
	s += "\t@some ld.global.b32 w, [%p];\n\tmov.u32 a0, tile;\n\tmad.lo.u32 a0, %t, 4, a0;\n\t@some st.shared.b32 [a0], w;\n\tfence.proxy.async.shared::cta;\n\tbar.sync 0;\n\tmad.lo.u32 %i, %i, 128, %t;\n"
	s += "\tld.param.u64 %p, [p_a];\n\tmad.wide.u32 %p, %i, 16, %p;\n\tld.global.v4.b32 {a0, a1, a2, a3}, [%p];\n"
	s += fmt.Sprintf("\tld.param.u64 %%p, [p_c];\n\tmad.wide.u32 %%p, %%i, %d, %%p;\n", 4*f.words())
	for i := range f.words() {
		s += fmt.Sprintf("\tld.global%s d%d, [%%p+%d];\n", reg, i, 4*i)
	}
	// The descriptor: the tile's address and both strides, 128 bytes, in units of 16 bytes; no swizzle.
	s += "\tmov.u32 w, tile;\n\tshr.u32 w, w, 4;\n\tcvt.u64.u32 desc, w;\n\tor.b64 desc, desc, 0x0000000800080000;\n\twgmma.fence.sync.aligned;\n"
	s += fmt.Sprintf("\twgmma.mma_async.sync.aligned.%s %s, {a0, a1, a2, a3}, desc, %s;\n", f.instruction, names("d", f.words()), imm)
	s += "\twgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 0;\n"
	s += fmt.Sprintf("\tld.param.u64 %%p, [p_out];\n\tmad.wide.u32 %%p, %%i, %d, %%p;\n", 4*f.words())
	for i := range f.words() {
		s += fmt.Sprintf("\tst.global%s [%%p+%d], d%d;\n", reg, 4*i, i)
	}
	return s + "\tret;\n}\n"
}

func (f *wgmmaFamily) launch(l matrixLaunch) string {
	threads := 128 * wgmmaBlocks
	count := func(typ string, words int) int { return words * 4 / classOf(typ).width }
	s := fmt.Sprintf("# wgmma %s: %s\n# Written by gen; do not edit.\nptx %s.ptx\nkernel %s\ngrid %d 1 1\nblock 128 1 1\n", f.instruction, l.name, f.name, f.name, wgmmaBlocks)
	s += fmt.Sprintf("buffer a %s %d %s\n", f.typ, count(f.typ, 4*threads), l.patterns[0])
	s += fmt.Sprintf("buffer b %s %d %s\n", f.typ, count(f.typ, 64*wgmmaBlocks), l.patterns[1])
	s += fmt.Sprintf("buffer c %s %d %s\n", f.out, count(f.out, f.words()*threads), l.patterns[2])
	s += fmt.Sprintf("buffer out %s %d zero\n", f.out, count(f.out, f.words()*threads))
	return s + "param buffer a 0\nparam buffer b 0\nparam buffer c 0\nparam buffer out 0\noutput out exact\n"
}
