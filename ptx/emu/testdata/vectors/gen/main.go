// Command gen writes the vectors of one instruction family each: a kernel in which every thread applies the family's
// instructions to its own inputs, and the description of its launch. The format is in ../README.md.
//
//	go run ./ptx/emu/testdata/vectors/gen ptx/emu/testdata/vectors
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// block is the number of threads in a block of every generated kernel.
const block = 64

// class says how a type name of the descriptions is held in registers and stored.
type class struct {
	reg   string // register type
	mem   string // type of ld and st
	vec   string // type in the description
	width int    // bytes
}

func classOf(typ string) class {
	switch typ {
	case "pred":
		return class{".pred", "u8", "u8", 1}
	case "u8":
		return class{".b16", "u8", "u8", 1}
	case "s8":
		return class{".b16", "s8", "u8", 1}
	case "u16", "f16", "bf16":
		return class{".b16", "b16", typ, 2}
	case "u32":
		return class{".b32", "b32", typ, 4}
	case "u64":
		return class{".b64", "b64", typ, 8}
	case "f32":
		return class{".f32", "f32", typ, 4}
	case "f64":
		return class{".f64", "f64", typ, 8}
	}
	panic("BUG: unknown type " + typ)
}

// family is a kernel under construction.
type family struct {
	name, doc       string
	version, target string
	n               int // threads, and elements of each input
	ins             []input
	outs            []*results
	ops             strings.Builder
}

type input struct{ name, typ, pattern string }

// results is an output buffer: the results of all operations with one type and one way to compare, n elements each.
type results struct {
	typ, compare string
	count        int
}

// newFamily starts a kernel of n threads. n must be a multiple of block: the kernels have no bounds check.
func newFamily(name, version, target string, n int, doc string) *family {
	if n%block != 0 {
		panic("BUG: " + name + ": odd number of threads")
	}
	return &family{name: name, doc: doc, version: version, target: target, n: n}
}

// in adds an input: register name and type, with one element a thread.
func (f *family) in(name, typ, pattern string) *family {
	f.ins = append(f.ins, input{name, typ, pattern})
	return f
}

// op adds operations whose result d (of type typ) is compared byte for byte. Several instructions may be given in one text.
func (f *family) op(typ string, texts ...string) { f.add(typ, "exact", texts) }

// ulp adds operations whose result may be n units in the last place or abs away.
func (f *family) ulp(typ string, n int, abs string, texts ...string) {
	f.add(typ, fmt.Sprintf("ulp %d %s", n, abs), texts)
}

func (f *family) add(typ, compare string, texts []string) {
	k := 0
	for k < len(f.outs) && (f.outs[k].typ != typ || f.outs[k].compare != compare) {
		k++
	}
	if k == len(f.outs) {
		f.outs = append(f.outs, &results{typ: typ, compare: compare})
	}
	o, c := f.outs[k], classOf(typ)
	for _, text := range texts {
		fmt.Fprintf(&f.ops, "\t{\n\t.reg %s d;\n", c.reg)
		for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
			fmt.Fprintf(&f.ops, "\t%s\n", strings.TrimSpace(line))
		}
		val := "d"
		if typ == "pred" {
			f.ops.WriteString("\t.reg .b16 v;\n\tselp.b16 v, 1, 0, d;\n")
			val = "v"
		}
		fmt.Fprintf(&f.ops, "\tst.global.%s [out%d+%d], %s;\n\t}\n", c.mem, k, o.count*f.n*c.width, val)
		o.count++
	}
}

// write writes NAME.ptx and NAME.vec into dir.
func (f *family) write(dir string) error {
	var ptx, vec, params strings.Builder
	fmt.Fprintf(&ptx, "// %s\n// Written by gen; do not edit.\n.version %s\n.target %s\n.address_size 64\n\n", f.doc, f.version, f.target)
	fmt.Fprintf(&vec, "# %s\n# Written by gen; do not edit.\nptx %s.ptx\nkernel %s\ngrid %d 1 1\nblock %d 1 1\n", f.doc, f.name, f.name, f.n/block, block)
	var names, loads []string
	param := func(name, buffer string) {
		names = append(names, "\t.param .u64 p_"+name)
		fmt.Fprintf(&params, "param buffer %s 0\n", buffer)
	}
	for _, in := range f.ins {
		c := classOf(in.typ)
		param(in.name, in.name)
		fmt.Fprintf(&vec, "buffer %s %s %d %s\n", in.name, c.vec, f.n, in.pattern)
		loads = append(loads, fmt.Sprintf("\t.reg %s %s;\n\tld.param.u64 %%p, [p_%s];\n\tcvta.to.global.u64 %%p, %%p;\n\tmad.wide.u32 %%p, %%i, %d, %%p;\n\tld.global.%s %s, [%%p];\n",
			c.reg, in.name, in.name, c.width, c.mem, in.name))
	}
	for k, o := range f.outs {
		c := classOf(o.typ)
		name := fmt.Sprintf("out%d", k)
		param(name, name)
		fmt.Fprintf(&vec, "buffer %s %s %d zero\n", name, c.vec, o.count*f.n)
		loads = append(loads, fmt.Sprintf("\t.reg .b64 %s;\n\tld.param.u64 %%p, [p_%s];\n\tcvta.to.global.u64 %%p, %%p;\n\tmad.wide.u32 %s, %%i, %d, %%p;\n", name, name, name, c.width))
	}
	vec.WriteString(params.String())
	for k, o := range f.outs {
		fmt.Fprintf(&vec, "output out%d %s\n", k, o.compare)
	}
	fmt.Fprintf(&ptx, ".visible .entry %s(\n%s\n)\n{\n", f.name, strings.Join(names, ",\n"))
	ptx.WriteString("\t.reg .b32 %i, %t;\n\t.reg .b64 %p;\n\tmov.u32 %i, %ctaid.x;\n\tmov.u32 %t, %ntid.x;\n\tmul.lo.u32 %i, %i, %t;\n\tmov.u32 %t, %tid.x;\n\tadd.u32 %i, %i, %t;\n")
	ptx.WriteString(strings.Join(loads, ""))
	ptx.WriteString(f.ops.String())
	ptx.WriteString("\tret;\n}\n")
	if err := os.WriteFile(filepath.Join(dir, f.name+".ptx"), []byte(ptx.String()), 0o666); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, f.name+".vec"), []byte(vec.String()), 0o666)
}

// each applies every format to every argument: "add.%s d, a, b;" × s32, u32.
func each(formats []string, args ...string) []string {
	var all []string
	for _, f := range formats {
		for _, a := range args {
			all = append(all, strings.ReplaceAll(f, "%s", a))
		}
	}
	return all
}

func list(words string) []string { return strings.Fields(words) }

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gen DIR")
		os.Exit(2)
	}
	var all []*family
	all = append(all, integers()...)
	all = append(all, bits()...)
	all = append(all, comparisons()...)
	all = append(all, floats()...)
	all = append(all, halves()...)
	all = append(all, conversions()...)
	all = append(all, videos()...)
	for _, f := range all {
		if err := f.write(os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, "gen:", err)
			os.Exit(1)
		}
	}
	for _, f := range append(matrices(), tileMatrices()...) {
		if err := f.write(os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, "gen:", err)
			os.Exit(1)
		}
	}
	for _, f := range wgmmas() {
		if err := f.write(filepath.Join(os.Args[1], "wgmma")); err != nil {
			fmt.Fprintln(os.Stderr, "gen:", err)
			os.Exit(1)
		}
	}
}
