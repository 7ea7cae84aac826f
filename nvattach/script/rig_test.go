package script

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/nvattach"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/ptx"
	"nvtrace/ptx/emu"
	"nvtrace/traces/glob"
)

// addOne is a kernel in which each of the first n threads adds 1 to its number of a
// buffer.
const addOne = `.version 8.0
.target sm_90
.address_size 64
.visible .entry addOne(.param .u64 buf, .param .u32 n)
{
	.reg .pred %p;
	.reg .b32 %r<7>;
	.reg .b64 %rd<3>;
	mov.u32 %r1, %ctaid.x;
	mov.u32 %r2, %ntid.x;
	mov.u32 %r3, %tid.x;
	mad.lo.u32 %r4, %r1, %r2, %r3;
	ld.param.u32 %r5, [n];
	setp.ge.u32 %p, %r4, %r5;
	@%p bra done;
	ld.param.u64 %rd1, [buf];
	mul.wide.u32 %rd2, %r4, 4;
	add.u64 %rd1, %rd1, %rd2;
	ld.global.u32 %r6, [%rd1];
	add.u32 %r6, %r6, 1;
	st.global.u32 [%rd1], %r6;
done:
	ret;
}
`

// The launch: 3 blocks of 48 threads, of which 100 add.
const (
	gridX, blockX, adding = 3, 48, 100
)

// content is what the buffer holds at i before.
func content(i int64) int64 { return i * i % 97 }

// A world is a machine with a program in addOne.
type world struct {
	machine *emu.Machine
	maps    *mapmem.Maps
	plan    *nvattach.Plan
	text    string // of the module with the program
	buf     emu.Region
}

// launch runs addOne with the program.
func launch(tb testing.TB, p *Program, o *nvattach.PlanOptions) *world {
	tb.Helper()
	return launchIn(tb, addOne, p, o)
}

// launchIn runs a kernel that does the same, with the program.
func launchIn(tb testing.TB, source string, p *Program, o *nvattach.PlanOptions) *world {
	tb.Helper()
	plan, err := nvattach.NewPlan([]*object.Object{p.Object}, o)
	if err != nil {
		tb.Fatal(err)
	}
	p.Sites = plan.Sites
	machine := &emu.Options{}
	if need.Race {
		machine.Workers = 1
	}
	w := &world{machine: emu.New(machine), plan: plan}
	if w.maps, err = plan.NewMaps(&mapmem.MapOptions{SMs: w.machine.Device().SMs}); err != nil {
		tb.Fatal(err)
	}
	mem, err := w.machine.Alloc(w.maps.Size()+256, "maps")
	if err != nil {
		tb.Fatal(err)
	}
	if err := w.maps.Place((mem.Base + 255) &^ 255); err != nil {
		tb.Fatal(err)
	}
	if err := w.maps.Init(w.machine, 4321, 0); err != nil {
		tb.Fatal(err)
	}
	_, settings, err := p.Begin()
	if err != nil {
		tb.Fatal(err)
	}
	for _, s := range settings {
		if err := w.maps.Apply(w.machine, s, nil); err != nil {
			tb.Fatal(err)
		}
	}
	f, err := ptx.Parse("addOne.ptx", source, nil)
	if err != nil {
		tb.Fatal(err)
	}
	woven, err := plan.Weave(f, w.maps, nil)
	if err != nil {
		tb.Fatal(err)
	}
	w.text = woven.Text
	if f, err = ptx.Parse("woven.ptx", woven.Text, nil); err != nil {
		tb.Fatal(err)
	}
	mod, err := w.machine.Load(f)
	if err != nil {
		tb.Fatalf("%v\n%s", err, woven.Text)
	}
	k, err := mod.Kernel("addOne")
	if err != nil {
		tb.Fatal(err)
	}
	if w.buf, err = w.machine.Alloc(4*adding, "buf"); err != nil {
		tb.Fatal(err)
	}
	if err := w.maps.SetReadable(w.machine, []mapmem.Range{{Base: w.buf.Base, End: w.buf.Base + 4*adding}}); err != nil {
		tb.Fatal(err)
	}
	for i := range adding {
		binary.LittleEndian.PutUint32(w.buf.Data[4*i:], uint32(content(int64(i))))
	}
	params := binary.LittleEndian.AppendUint64(nil, w.buf.Base)
	params = binary.LittleEndian.AppendUint32(params, adding)
	if _, err := w.machine.Launch(context.Background(), k, &emu.LaunchConfig{Grid: emu.Dim3{X: gridX}, Block: emu.Dim3{X: blockX}, Params: params}); err != nil {
		tb.Fatal(err)
	}
	for i := range adding {
		if got := binary.LittleEndian.Uint32(w.buf.Data[4*i:]); got != uint32(content(int64(i)))+1 {
			tb.Fatalf("the kernel left %d at %d", got, i)
		}
	}
	return w
}

// tables reads the maps, and what was printed, a line each.
func (w *world) tables(tb testing.TB, p *Program) (tables []*mapmem.Table, lines []string) {
	tb.Helper()
	for _, m := range w.maps.All {
		if m.Def.Ring() {
			err := w.maps.NewReader(m).Drain(w.machine, true, func(r mapmem.Record) { lines = append(lines, p.Record(r.Data)) })
			if err != nil {
				tb.Fatal(err)
			}
			continue
		}
		t, err := w.maps.Read(w.machine, m)
		if err != nil {
			tb.Fatal(err)
		}
		tables = append(tables, t)
	}
	slices.Sort(lines)
	return tables, lines
}

// shownOf joins what is shown.
func shownOf(list []Shown) string {
	var b bytes.Buffer
	for _, s := range list {
		b.WriteString(s.Text)
	}
	return b.String()
}

// A happening is a thread at a place of addOne.
type happening struct {
	kind   object.Kind
	thread int64
	fields map[string]Value
}

// instructions are those of addOne, by basic block; each thread of the first adding runs
// all of them but the guarded branch, the others those of the first and the last block.
var instructions = [][]string{
	{
		"mov.u32 %r1, %ctaid.x;", "mov.u32 %r2, %ntid.x;", "mov.u32 %r3, %tid.x;", "mad.lo.u32 %r4, %r1, %r2, %r3;",
		"ld.param.u32 %r5, [n];", "setp.ge.u32 %p, %r4, %r5;", "@%p bra done;",
	},
	{
		"ld.param.u64 %rd1, [buf];", "mul.wide.u32 %rd2, %r4, 4;", "add.u64 %rd1, %rd1, %rd2;", "ld.global.u32 %r6, [%rd1];",
		"add.u32 %r6, %r6, 1;", "st.global.u32 [%rd1], %r6;",
	},
	{"ret;"},
}

// happenings are what the probes of addOne see, in an order in which they may happen.
func happenings(base uint64) []happening {
	var list []happening
	for i := range int64(gridX * blockX) {
		note := func(kind object.Kind, site string, more map[string]Value) {
			fields := map[string]Value{"site": text("addOne, " + site), "source": text("(no line: compile with -lineinfo)")}
			maps.Copy(fields, more)
			list = append(list, happening{kind, i, fields})
		}
		note(object.KindEntry, "entry", nil)
		n := int64(0) // instructions before
		for b, insns := range instructions {
			if b == 1 && i >= adding {
				n += int64(len(insns))
				continue
			}
			for k, line := range insns {
				opcode, _, _ := strings.Cut(strings.TrimPrefix(line, "@%p "), " ")
				site := fmt.Sprintf("instruction %d: %s", n, line)
				fields := map[string]Value{
					"opcode": text(strings.TrimSuffix(opcode, ";")), "insn": number(n), "block": number(int64(b)), "insns": number(int64(len(insns))),
				}
				if k == 0 {
					note(object.KindBlock, site, fields)
				}
				if strings.HasPrefix(opcode, "setp") {
					fields["operand1"], fields["operand2"] = number(i), number(adding)
				}
				if opcode != "bra" || i >= adding {
					note(object.KindInsn, site, fields)
				}
				if strings.Contains(opcode, "global") {
					fields["addr"], fields["size"], fields["space"] = number(int64(base)+4*i), number(4), Value{N: 1, Text: "global", IsText: true}
					fields["kind"], fields["value"] = Value{N: 1, Text: "load", IsText: true}, number(content(i))
					if strings.HasPrefix(opcode, "st") {
						fields["kind"], fields["value"] = Value{N: 2, Text: "store", IsText: true}, number(content(i)+1)
					}
					note(object.KindMem, site, fields)
				}
				if opcode == "ret;" {
					note(object.KindExit, site, nil)
				}
				n++
			}
		}
	}
	return list
}

// builtin is what a built-in is for a happening.
func (h *happening) builtin(base uint64) func(x *nameRef) Value {
	return func(x *nameRef) Value {
		if x.def == nil {
			return number([]int64{int64(base), adding, 0, 0}[min(x.arg, 3)])
		}
		if v, ok := h.fields[x.name]; ok {
			return v
		}
		switch x.name {
		case "kernel":
			return text("addOne")
		case "tid":
			return number(h.thread)
		case "tid.x":
			return number(h.thread % blockX)
		case "laneid":
			return number(h.thread % blockX % 32)
		case "ctaid", "ctaid.x":
			return number(h.thread / blockX)
		case "ntid", "ntid.x":
			return number(blockX)
		case "nctaid", "nctaid.x":
			return number(gridX)
		case "ntid.y", "ntid.z", "nctaid.y", "nctaid.z":
			return number(1)
		case "pid":
			return number(4321)
		case "nsecs", "cycles":
			return number(1)
		}
		return number(0)
	}
}

// bufferAt is the number in n bytes of the buffer as it was before, 0 outside of it.
func bufferAt(off, n uint64) (v int64) {
	const size = 4 * adding
	if off > size || n > size-off {
		return 0
	}
	for i := range n {
		at := off + i
		v |= content(int64(at/4)) >> (8 * (at % 4)) & 0xff << (8 * i)
	}
	return v
}

// interpret is run by the host's interpreter: the truth that compiled code is held to.
func (p *Program) interpret(base uint64) (*interp, string) {
	in, _ := p.begun()
	in.out.Reset()
	for _, m := range p.maps {
		if m.array() && (m.agg == aggCount || m.agg == aggSum || m.value == typeInt) {
			in.s.tables[m.name].entry(nil) // it is 0 from the start
		}
	}
	var lines []string
	for _, h := range happenings(base) {
		in.name, in.read = h.builtin(base), func(addr uint64, n int32) int64 { return bufferAt(addr-base, uint64(n)) }
		for _, b := range p.probes {
			for i := range b.points {
				at, err := object.ParsePoint(b.points[i].section, "")
				if err != nil || at.Kind != h.kind || !at.Matches("addOne", false) || at.Opcode != "" && !glob.Match(at.Opcode, h.fields["opcode"].Text) {
					continue
				}
				in.out.Reset()
				in.run(b)
				if in.out.Len() > 0 {
					lines = append(lines, in.out.String())
				}
			}
		}
	}
	slices.Sort(lines)
	in.out.Reset()
	out := strings.Join(lines, "") + shownOf(in.all(p, "END"))
	for _, m := range p.maps {
		var b strings.Builder
		in.s.tables[m.name].print(&b, printOptions{div: 1})
		out += b.String()
	}
	return in, out
}
