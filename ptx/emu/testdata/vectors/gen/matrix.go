package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A matrixFamily is a kernel in which every warp multiplies matrices of its own, and the launches of it, which differ in
// the numbers they multiply.
type matrixFamily struct {
	name, doc       string
	version, target string
	ins             []matrixInput
	inMemory        bool // operations load the inputs themselves
	ops             []matrixOp
	launches        []matrixLaunch
}

// A matrixInput is what each thread holds of a matrix: regs registers, loaded from a buffer of elements of type typ.
type matrixInput struct {
	name, typ string
	regs      int
}

// A matrixOp is an instruction with the results d0, d1, …; regs are their number, typ the type of the elements in them.
// store, if it is set, is the instruction that stores a warp's results together, with %s for their address and for them.
type matrixOp struct {
	typ   string
	regs  int
	text  string
	store string
}

// A matrixLaunch gives the patterns of the inputs, in their order.
type matrixLaunch struct {
	name     string
	patterns []string
}

const matrixThreads = 128

// register returns the type of the register that holds elements of typ, and its bytes.
func register(typ string) (reg string, bytes int) {
	switch typ {
	case "f32":
		return ".f32", 4
	case "f64":
		return ".f64", 8
	}
	return ".b32", 4
}

// names returns the registers name0, name1, … in braces.
func names(name string, n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("%s%d", name, i))
	}
	return "{" + strings.Join(all, ", ") + "}"
}

func (f *matrixFamily) write(dir string) error {
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

// outputs returns the types of the results, each once, and the registers that a thread has of each.
func (f *matrixFamily) outputs() (types []string, regs map[string]int) {
	regs = map[string]int{}
	for _, o := range f.ops {
		if regs[o.typ] == 0 {
			types = append(types, o.typ)
		}
		regs[o.typ] += o.regs
	}
	return types, regs
}

func (f *matrixFamily) kernel() string {
	var b strings.Builder
	types, _ := f.outputs()
	fmt.Fprintf(&b, "// %s\n// Written by gen; do not edit.\n.version %s\n.target %s\n.address_size 64\n\n", f.doc, f.version, f.target)
	var params []string
	for _, in := range f.ins {
		params = append(params, "\t.param .u64 p_"+in.name)
	}
	for _, t := range types {
		params = append(params, "\t.param .u64 p_"+t)
	}
	fmt.Fprintf(&b, ".visible .entry %s(\n%s\n)\n{\n", f.name, strings.Join(params, ",\n"))
	b.WriteString("\t.reg .b32 %i, %t;\n\t.reg .b64 %p;\n\tmov.u32 %i, %ctaid.x;\n\tmov.u32 %t, %ntid.x;\n\tmul.lo.u32 %i, %i, %t;\n\tmov.u32 %t, %tid.x;\n\tadd.u32 %i, %i, %t;\n")
	for _, in := range f.ins {
		if f.inMemory {
			break
		}
		reg, size := register(in.typ)
		fmt.Fprintf(&b, "\t.reg %s %s<%d>;\n\tld.param.u64 %%p, [p_%s];\n\tcvta.to.global.u64 %%p, %%p;\n\tmad.wide.u32 %%p, %%i, %d, %%p;\n", reg, in.name, in.regs, in.name, size*in.regs)
		for i := range in.regs {
			fmt.Fprintf(&b, "\tld.global%s %s%d, [%%p+%d];\n", reg, in.name, i, i*size)
		}
	}
	at := map[string]int{}
	for _, o := range f.ops {
		reg, size := register(o.typ)
		thread, first := "%i", at[o.typ]*matrixThreads*size
		fmt.Fprintf(&b, "\t{\n\t.reg %s d<%d>;\n\t%s\n", reg, o.regs, o.text)
		if o.store != "" {
			thread = "%t"
			b.WriteString("\tand.b32 %t, %i, -32;\n")
		}
		fmt.Fprintf(&b, "\tld.param.u64 %%p, [p_%s];\n\tcvta.to.global.u64 %%p, %%p;\n\tmad.wide.u32 %%p, %s, %d, %%p;\n", o.typ, thread, size*o.regs)
		if o.store != "" {
			fmt.Fprintf(&b, "\t"+o.store+"\n", fmt.Sprintf("%%p+%d", first), names("d", o.regs))
		} else {
			for i := range o.regs {
				fmt.Fprintf(&b, "\tst.global%s [%%p+%d], d%d;\n", reg, first+i*size, i)
			}
		}
		b.WriteString("\t}\n")
		at[o.typ] += o.regs
	}
	b.WriteString("\tret;\n}\n")
	return b.String()
}

// launch describes one launch. Buffers are in the type of their elements.
func (f *matrixFamily) launch(l matrixLaunch) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s: %s\n# Written by gen; do not edit.\nptx %s.ptx\nkernel %s\ngrid %d 1 1\nblock %d 1 1\n", f.doc, l.name, f.name, f.name, matrixThreads/block, block)
	elements := func(typ string, regs int) int {
		_, size := register(typ)
		return matrixThreads * regs * size / classOf(typ).width
	}
	for i, in := range f.ins {
		fmt.Fprintf(&b, "buffer %s %s %d %s\n", in.name, in.typ, elements(in.typ, in.regs), l.patterns[i])
	}
	types, regs := f.outputs()
	for _, t := range types {
		fmt.Fprintf(&b, "buffer out_%s %s %d zero\n", t, t, elements(t, regs[t]))
	}
	for _, in := range f.ins {
		fmt.Fprintf(&b, "param buffer %s 0\n", in.name)
	}
	for _, t := range types {
		fmt.Fprintf(&b, "param buffer out_%s 0\n", t)
	}
	for _, t := range types {
		fmt.Fprintf(&b, "output out_%s exact\n", t)
	}
	return b.String()
}

// mma returns mma.sync on the inputs a, b and c, of na, nb and nc registers, with as many results as c has.
func mma(shape, types, typ string, na, nb int, c string, nc int) matrixOp {
	return matrixOp{typ: typ, regs: nc, text: fmt.Sprintf("mma.sync.aligned.%s.row.col.%s %s, %s, %s, %s;", shape, types, names("d", nc), names("a", na), names("b", nb), names(c, nc))}
}

// The patterns of the launches. "near" are numbers of like exponents, so that each product reaches the sum; "wide" are of
// many exponents, so that most are cut off in part; "small" has products about the least numbers of the sum's type;
// "special" has infinities, NaNs, zeros of both signs and sums that overflow.
const (
	f32near    = "mask 93 0x83ffffff 0x3c000000"
	f32wide    = "mask 94 0x8fffffff 0x30000000"
	f32small   = "list 7 0x00000000 0x00000001 0x80000000 0x80000003 0x007fffff 0x80800000 0x00000002"
	f32special = "list 5 0x00000000 0x80000000 0x3f800000 0x80000000 0x7f7fffff 0xff7fffff 0x7f800000 0xbf800000 0xff800000 0x80000000 0x7fc12345"
	f16near    = "0x8fff 0x3000"
	f16small   = "0x0000 0x1000 0x0001 0x9000 0x0800 0x8001 0x0400 0x0c00 0x8002 0x0000 0x0a00 0x0003 0x0000"
	f16special = "0x0000 0x8000 0x3c00 0x0000 0x0000 0xbc00 0x0000 0x8000 0x7bff 0x0000 0x8000 0x0000 0xfbff 0x0000 0x0000 0x0000 0x0000 0x0000 0x0001"
	bf16small  = "0x0000 0x1a00 0x1980 0x1a80 0x9a00 0x0000 0x1780 0x9780 0x1700 0x9680 0x9a80 0x1600 0x0000 0x0001 0x1b40"
	bf16big    = "0x0000 0x7e80 0x3f80 0xfe80 0x7f7f 0x0000 0xbf80 0x4000 0x5f80 0xdf80 0x0000 0xff7f 0x0080 0x8001"
)

// rare is a list of zeros and ones of a type, with a special value here and there.
func rare(div int, one string, specials ...string) string {
	s := fmt.Sprintf("list %d", div)
	for _, v := range specials {
		s += strings.Repeat(" 0x0", 37) + " " + one + strings.Repeat(" 0x0", 41) + " " + v
	}
	return s
}

// matrices returns the families of mma.
func matrices() []*matrixFamily {
	f16 := &matrixFamily{
		name: "mma_sum_f16", version: "7.0", target: "sm_80", doc: "mma.sync of f16: how products are added",
		ins: []matrixInput{{"a", "f16", 4}, {"b", "f16", 2}, {"c", "f32", 4}, {"h", "f16", 2}},
		ops: []matrixOp{
			mma("m16n8k16", "f32.f16.f16.f32", "f32", 4, 2, "c", 4), mma("m16n8k8", "f32.f16.f16.f32", "f32", 2, 1, "c", 4),
			mma("m16n8k16", "f16.f16.f16.f16", "f16", 4, 2, "h", 2), mma("m16n8k8", "f16.f16.f16.f16", "f16", 2, 1, "h", 2),
		},
		launches: []matrixLaunch{
			{"near", []string{"mask 1 " + f16near, "mask 2 " + f16near, f32near, "mask 3 " + f16near}},
			{"wide", []string{"mask 4 0xbfff 0", "mask 5 0xdfff 0", f32wide, "mask 6 0xbfff 0"}},
			{"small", []string{"list 1 " + f16small, "list 1 0x0000 " + f16small + " 0x0400 0x8800 0x0001", f32small, "list 3 0x0000 0x0001 0x8001 0x8000 0x0002 0x0400 0x8401"}},
			{"special", []string{"list 1 " + f16special, rare(1, "0x3c00", "0x7c00", "0x8000", "0xfc00", "0x7bff", "0x7e01"), f32special, "list 3 0x0000 0x8000 0x7bff 0xfbff 0x7c00 0x8000 0xbc00"}},
		},
	}
	bf16 := &matrixFamily{
		name: "mma_sum_bf16", version: "7.0", target: "sm_80", doc: "mma.sync of bf16: how products are added",
		ins: []matrixInput{{"a", "bf16", 4}, {"b", "bf16", 2}, {"c", "f32", 4}},
		ops: []matrixOp{mma("m16n8k16", "f32.bf16.bf16.f32", "f32", 4, 2, "c", 4), mma("m16n8k8", "f32.bf16.bf16.f32", "f32", 2, 1, "c", 4)},
		launches: []matrixLaunch{
			{"near", []string{"mask 11 0x81ff 0x3e00", "mask 12 0x81ff 0x3e00", f32near}},
			{"wide", []string{"mask 13 0x87ff 0x3800", "mask 14 0x87ff 0x3800", f32wide}},
			{"small", []string{"list 1 " + bf16small, "list 1 0x9a00 " + bf16small + " 0x1a00 0x9680", f32small}},
			{"subnormal", []string{"mask 15 0x81ff 0", "mask 16 0x87ff 0x3800", "mask 17 0x81ffffff 0"}},
			{"big", []string{"list 1 " + bf16big, "list 1 0x3f80 " + bf16big + " 0xfe80 0x3f80 0x0000", "list 3 0x0 0x7f7fffff 0x7f000000 0xff7fffff 0x1 0x7e800000 0x0"}},
			{"special", []string{"list 1 0x0000 0x8000 0x3f80 0x0000 0x0000 0xbf80 0x0000 0x8000 0x0000 0x0000 0x0000 0x0000 0x0001", rare(1, "0x3f80", "0x7f80", "0x8000", "0xff80", "0x7f7f", "0x7f81"), f32special}},
		},
	}
	tf32 := &matrixFamily{
		name: "mma_sum_tf32", version: "7.0", target: "sm_80", doc: "mma.sync of tf32: how products are added",
		ins: []matrixInput{{"a", "u32", 4}, {"b", "u32", 2}, {"c", "f32", 4}},
		ops: []matrixOp{mma("m16n8k8", "f32.tf32.tf32.f32", "f32", 4, 2, "c", 4), mma("m16n8k4", "f32.tf32.tf32.f32", "f32", 2, 1, "c", 4)},
		launches: []matrixLaunch{
			{"near", []string{"mask 21 0x81ffffff 0x3e000000", "mask 22 0x81ffffff 0x3e000000", f32near}},
			{"wide", []string{"mask 23 0x87ffffff 0x38000000", "mask 24 0x87ffffff 0x38000000", f32wide}},
			{"subnormal", []string{"mask 25 0x81ffffff 0", "mask 26 0x87ffffff 0x38000000", "mask 27 0x81ffffff 0"}},
			{"special", []string{"list 1 0x0 0x80000000 0x3f800000 0x0 0x7f7fffff 0xbf800000 0x1fff 0x0 0x80000000 0x2000 0x0 0x0 0x0 0x40000000 0x0 0x0 0x0", rare(1, "0x3f800000", "0x7f800000", "0x80000000", "0xff800000", "0x7f7fffff", "0x7f800001", "0x7f802000"), f32special}},
		},
	}
	fp8 := &matrixFamily{
		name: "mma_sum_fp8", version: "8.7", target: "sm_89", doc: "mma.sync of e4m3 and e5m2: how products are added",
		ins: []matrixInput{{"a", "u8", 4}, {"b", "u8", 2}, {"c", "f32", 4}, {"h", "f16", 2}},
		launches: []matrixLaunch{
			{"near", []string{"mask 31 0xbf 0x20", "mask 32 0xbf 0x20", f32near, "mask 33 " + f16near}},
			{"wide", []string{"mask 34 0xf3 0", "mask 35 0xf3 0", f32wide, "mask 36 0xbfff 0"}},
			{"special", []string{"list 1 0x00 0x80 0x38 0x3c 0x00 0x01 0x00 0xbc 0x00 0x7b 0x00 0x00 0x00", rare(1, "0x3c", "0x7f", "0x80", "0x7c", "0x7b", "0xfc"), f32special, "list 3 0x0000 0x8000 0x7bff 0xfbff 0x7c00 0x8000 0xbc00"}},
		},
	}
	for _, t := range list("e4m3.e4m3 e5m2.e5m2 e4m3.e5m2") {
		fp8.ops = append(fp8.ops, mma("m16n8k32", "f32."+t+".f32", "f32", 4, 2, "c", 4), mma("m16n8k32", "f16."+t+".f16", "f16", 4, 2, "h", 2))
	}
	fp8.ops = append(fp8.ops, mma("m16n8k16", "f32.e5m2.e4m3.f32", "f32", 2, 1, "c", 4), mma("m16n8k16", "f16.e4m3.e4m3.f16", "f16", 2, 1, "h", 2))
	f64 := &matrixFamily{
		name: "mma_sum_f64", version: "7.8", target: "sm_90", doc: "mma.sync of f64: how products are added",
		ins: []matrixInput{{"a", "f64", 8}, {"b", "f64", 4}, {"c", "f64", 4}},
		ops: []matrixOp{
			mma("m8n8k4", "f64.f64.f64.f64", "f64", 1, 1, "c", 2), mma("m16n8k4", "f64.f64.f64.f64", "f64", 2, 1, "c", 4),
			mma("m16n8k8", "f64.f64.f64.f64", "f64", 4, 2, "c", 4), mma("m16n8k16", "f64.f64.f64.f64", "f64", 8, 4, "c", 4),
		},
		launches: []matrixLaunch{
			{"near", []string{"uniform 41 -4 4", "uniform 42 -4 4", "uniform 43 -4 4"}},
			{"wide", []string{"mask 44 0x83ffffffffffffff 0x3c00000000000000", "mask 45 0x83ffffffffffffff 0x3c00000000000000", "mask 46 0x83ffffffffffffff 0x3800000000000000"}},
		},
	}
	return append([]*matrixFamily{f16, bf16, tf32, fp8, f64}, integerMatrices()...)
}

// integerMatrices returns the families of integers and bits.
func integerMatrices() []*matrixFamily {
	f := &matrixFamily{
		name: "mma_sum_int", version: "7.1", target: "sm_80", doc: "mma.sync of integers and bits, c near where sums saturate",
		ins: []matrixInput{{"a", "u32", 4}, {"b", "u32", 2}, {"c", "u32", 4}},
		launches: []matrixLaunch{
			{"rand", []string{"rand 51", "rand 52", "rand 53"}},
			{"ends", []string{"rand 54", "rand 55", "list 1 0x7fffffff 0x80000000 0x7fff0000 0x80010000 0 0xffffffff 0x7fffff00 0x80000100"}},
		},
	}
	for _, t := range list("s8.s8 u8.s8 s8.u8 u8.u8") {
		for _, sat := range []string{"", "satfinite."} {
			f.ops = append(f.ops, mma("m16n8k32", sat+"s32."+t+".s32", "u32", 4, 2, "c", 4))
		}
	}
	f.ops = append(f.ops, mma("m8n8k16", "satfinite.s32.s8.u8.s32", "u32", 1, 1, "c", 2), mma("m16n8k16", "satfinite.s32.s8.s8.s32", "u32", 2, 1, "c", 4),
		mma("m8n8k32", "satfinite.s32.s4.u4.s32", "u32", 1, 1, "c", 2), mma("m16n8k32", "satfinite.s32.s4.s4.s32", "u32", 2, 1, "c", 4),
		mma("m16n8k64", "s32.u4.s4.s32", "u32", 4, 2, "c", 4), mma("m16n8k64", "satfinite.s32.s4.s4.s32", "u32", 4, 2, "c", 4))
	for _, op := range list("xor and") {
		f.ops = append(f.ops, bitMma("m8n8k128", op, 1, 1, 2), bitMma("m16n8k128", op, 2, 1, 4), bitMma("m16n8k256", op, 4, 2, 4))
	}
	return []*matrixFamily{f}
}

func bitMma(shape, op string, na, nb, nc int) matrixOp {
	o := mma(shape, "s32.b1.b1.s32", "u32", na, nb, "c", nc)
	o.text = strings.Replace(o.text, ".s32 ", ".s32."+op+".popc ", 1)
	return o
}
