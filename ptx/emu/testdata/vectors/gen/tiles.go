package main

import (
	"fmt"
	"strings"
)

// A tile is a wmma.mma: its shape, the types of its elements as the instruction names them, and the registers of each
// fragment.
type tile struct {
	m, n, k        int
	d, ab, c       string
	nd, na, nb, nc int
}

// tileMatrices returns the families of wmma. They are matrixFamilies whose threads load no registers: each warp has a tile
// of every buffer.
func tileMatrices() []*matrixFamily {
	half := func(m, n int, d, c string, nd, nc int) tile { return tile{m, n, 16, d, "f16", c, nd, 8, 8, nc} }
	f := &tileFamily{
		name: "wmma_sum", version: "7.0", target: "sm_80", doc: "wmma of f16, bf16, tf32, f64 and s8: how products are added",
		tiles: []tile{
			half(16, 16, "f32", "f32", 8, 8), half(16, 16, "f16", "f16", 4, 4), half(16, 16, "f32", "f16", 8, 4), half(16, 16, "f16", "f32", 4, 8),
			half(32, 8, "f32", "f32", 8, 8), half(8, 32, "f16", "f16", 4, 4),
			{16, 16, 16, "f32", "bf16", "f32", 8, 4, 4, 8},
			{8, 32, 16, "f32", "bf16", "f32", 8, 2, 8, 8},
			{16, 16, 8, "f32", "tf32", "f32", 8, 4, 4, 8},
			{8, 8, 4, "f64", "f64", "f64", 2, 1, 1, 2},
			{16, 16, 16, "s32", "s8", "s32", 8, 2, 2, 8},
			{32, 8, 16, "s32", "u8", "s32", 8, 4, 1, 8},
		},
	}
	return []*matrixFamily{f.family()}
}

type tileFamily struct {
	name, doc, version, target string
	tiles                      []tile
}

// tileElements is what each warp has of a buffer: no matrix of a tile has more, with what lies before it.
const tileElements = 32*16 + 128

// buffers of the inputs, by the type of their elements.
var tileBuffers = map[string]string{"f16": "f16", "bf16": "bf16", "tf32": "u32", "f64": "f64", "s8": "u8", "u8": "u8", "f32": "f32", "s32": "u32"}

// family writes each tile as one op, which stores its result itself.
func (t *tileFamily) family() *matrixFamily {
	f := &matrixFamily{inMemory: true, name: t.name, version: t.version, target: t.target, doc: t.doc}
	patterns := map[string][]string{
		"f16":  {"mask 61 0x8fff 0x3000", "mask 62 0xbfff 0"},
		"bf16": {"mask 63 0x81ff 0x3e00", "mask 64 0x87ff 0x3800"},
		"u32":  {"mask 65 0x81ffffff 0x3e000000", "mask 66 0x87ffffff 0x38000000"},
		"f64":  {"uniform 67 -4 4", "mask 68 0x83ffffffffffffff 0x3c00000000000000"},
		"u8":   {"rand 69", "special 3"},
		"f32":  {f32near, f32wide},
	}
	near, wide := matrixLaunch{name: "near"}, matrixLaunch{name: "wide"}
	for _, typ := range list("f16 bf16 u32 f64 u8 f32") {
		f.ins = append(f.ins, matrixInput{name: "in_" + typ, typ: typ, regs: tileRegs(typ)})
		near.patterns = append(near.patterns, patterns[typ][0])
		wide.patterns = append(wide.patterns, patterns[typ][1])
	}
	f.launches = []matrixLaunch{near, wide}
	for _, x := range t.tiles {
		f.ops = append(f.ops, x.op())
	}
	return f
}

// tileRegs is how many registers of a warp's threads hold its part of a buffer.
func tileRegs(typ string) int {
	_, size := register(typ)
	return tileElements * classOf(typ).width / 32 / size
}

// op returns the tile's instructions. a is at the beginning of the warp's part of the buffer, b begins 32 elements
// later, c 64: which numbers are multiplied does not matter.
func (x tile) op() matrixOp {
	shape := fmt.Sprintf("m%dn%dk%d", x.m, x.n, x.k)
	var b strings.Builder
	reg := func(typ, name string, n int) {
		r, _ := register(typ)
		fmt.Fprintf(&b, ".reg %s %s<%d>;\n\t", r, name, n)
	}
	base := func(typ string, skip int) {
		buf := tileBuffers[typ]
		w := classOf(buf).width
		fmt.Fprintf(&b, "shr.u32 %%t, %%i, 5;\n\tld.param.u64 %%p, [p_in_%s];\n\tcvta.to.global.u64 %%p, %%p;\n\tmad.wide.u32 %%p, %%t, %d, %%p;\n\t", buf, tileElements*w)
		if skip != 0 {
			fmt.Fprintf(&b, "add.u64 %%p, %%p, %d;\n\t", skip*w)
		}
	}
	reg(x.ab, "a", x.na)
	reg(x.ab, "b", x.nb)
	reg(x.c, "c", x.nc)
	load := func(which, layout, typ string, n, lead, skip int) {
		base(typ, skip)
		fmt.Fprintf(&b, "wmma.load.%s.sync.aligned.%s.%s.global.%s %s, [%%p], %d;\n\t", which, layout, shape, typ, names(which, n), lead)
	}
	load("a", "row", x.ab, x.na, x.k, 0)
	load("b", "col", x.ab, x.nb, x.k, 32)
	load("c", "row", x.c, x.nc, x.n, 64)
	switch x.ab {
	case "f16":
		fmt.Fprintf(&b, "wmma.mma.sync.aligned.row.col.%s.%s.%s", shape, x.d, x.c)
	case "f64":
		fmt.Fprintf(&b, "wmma.mma.sync.aligned.row.col.%s.rn.f64.f64.f64.f64", shape)
	default:
		fmt.Fprintf(&b, "wmma.mma.sync.aligned.row.col.%s.%s.%s.%s.%s", shape, x.d, x.ab, x.ab, x.c)
	}
	fmt.Fprintf(&b, " %s, %s, %s, %s;", names("d", x.nd), names("a", x.na), names("b", x.nb), names("c", x.nc))
	store := fmt.Sprintf("wmma.store.d.sync.aligned.row.%s.global.%s [%%s], %%s, %d;", shape, x.d, x.n)
	return matrixOp{typ: tileBuffers[x.d], regs: x.nd, text: b.String(), store: store}
}
