package script

import (
	"fmt"
	"math"
	"strings"

	"github.com/cilium/ebpf/asm"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
)

// Registers: R6 is the context, R0 what an expression came to. Everything else is on the
// stack, which the compiler to PTX keeps in registers.
const ctx = asm.R6

const stackBytes = 512

const flagNoExist = 1 // BPF_NOEXIST

// A gen writes the instructions of a probe at one of its points.
type gen struct {
	p      *Program
	probe  *probe
	point  *point
	fields map[string]object.ContextField
	insns  asm.Instructions
	labels []int // by number: the instruction
	jumps  []fixup
	vars   map[string]int16
	used   int // bytes of stack in use
	end    int // label
	loops  []loop
	line   sourceLine
}

// A fixup is a jump whose label was not placed when it was written.
type fixup struct{ insn, label int }

// A loop is what break and continue go to.
type loop struct{ again, out int }

// A sourceLine is where an instruction is from, for what the proof says of it.
type sourceLine struct {
	file, text string
	line       int
}

func (s sourceLine) String() string     { return s.text }
func (s sourceLine) FileName() string   { return s.file }
func (s sourceLine) LineNumber() uint32 { return uint32(s.line) }

func newGen(p *Program, b *probe, pt *point) *gen {
	g := &gen{p: p, probe: b, point: pt, fields: make(map[string]object.ContextField), vars: make(map[string]int16)}
	fields := proof.ContextFields(pt.kind.Point)
	if pt.kind.host != object.HostNone {
		fields = object.HostContextFields(pt.kind.host)
	}
	for _, f := range fields {
		g.fields[f.Name] = f
	}
	return g
}

// program writes everything, and resolves the jumps.
func (g *gen) program(name string) asm.Instructions {
	g.at(g.probe.span)
	g.end = g.label()
	// Nothing else is ever where variables are, so they are 0 before they are assigned.
	for _, name := range g.probe.vars {
		g.vars[name] = g.alloc(1, g.probe.span)
	}
	g.add(asm.Mov.Reg(ctx, asm.R1))
	if g.probe.filter != nil {
		g.at(g.probe.filter.pos())
		g.cond(g.probe.filter, g.end, false)
	}
	g.block(g.probe.body)
	g.place(g.end)
	g.add(asm.Mov.Imm(asm.R0, 0), asm.Return())
	if len(g.insns) > maxInsns {
		g.p.lexer.fail(g.probe.span, "the probe becomes %d instructions; %d are the most", len(g.insns), maxInsns)
	}
	// Offsets of jumps count slots, of which a load of 64 bits takes two.
	slots := make([]int, len(g.insns)+1)
	for i := range g.insns {
		slots[i+1] = slots[i] + int(g.insns[i].Width())
	}
	for _, j := range g.jumps {
		off := slots[g.labels[j.label]] - slots[j.insn+1]
		if off < math.MinInt16 || off > math.MaxInt16 {
			g.p.lexer.fail(g.probe.span, "the probe is too long: a jump of %d instructions", off)
		}
		g.insns[j.insn].Offset = int16(off)
	}
	g.insns[0] = g.insns[0].WithSymbol(name)
	return g.insns
}

// at says which part of the text the next instructions are from.
func (g *gen) at(s span) {
	e := g.p.lexer.errorAt(s, "")
	text, _, _ := strings.Cut(g.p.lexer.text[s.at:s.end], "\n")
	g.line = sourceLine{e.File, text, e.Line}
}

func (g *gen) add(list ...asm.Instruction) {
	for _, in := range list {
		g.insns = append(g.insns, in.WithSource(g.line))
	}
}

func (g *gen) label() int {
	g.labels = append(g.labels, -1)
	return len(g.labels) - 1
}

func (g *gen) place(label int) { g.labels[label] = len(g.insns) }

// jump adds a jump to a label.
func (g *gen) jump(in asm.Instruction, label int) {
	g.jumps = append(g.jumps, fixup{len(g.insns), label})
	g.add(in)
}

func (g *gen) always(label int) { g.jump(asm.Ja.Label(""), label) }

// alloc takes words of stack, and returns the offset of the first.
func (g *gen) alloc(words int, s span) int16 {
	g.used += 8 * words
	if g.used > stackBytes {
		g.p.lexer.fail(s, "too many variables and values at once: a thread has %d bytes for them", stackBytes)
	}
	return int16(-g.used)
}

// scope frees what was taken since, when the function that it returns is called.
func (g *gen) scope() func() {
	used := g.used
	return func() { g.used = used }
}

func (g *gen) store(off int16, r asm.Register) {
	g.add(asm.StoreMem(asm.RFP, off, r, asm.DWord))
}

// set puts a number on the stack.
func (g *gen) set(off int16, n int64) {
	g.constant(asm.R1, n)
	g.store(off, asm.R1)
}

func (g *gen) load(r asm.Register, off int16) {
	g.add(asm.LoadMem(r, asm.RFP, off, asm.DWord))
}

func (g *gen) constant(r asm.Register, n int64) {
	if n == int64(int32(n)) {
		g.add(asm.Mov.Imm(r, int32(n)))
	} else {
		g.add(asm.LoadImm(r, n, asm.DWord))
	}
}

// address puts the address of a part of the stack into a register.
func (g *gen) address(r asm.Register, off int16) {
	g.add(asm.Mov.Reg(r, asm.RFP), asm.Add.Imm(r, int32(off)))
}

func (g *gen) call(helper int32) { g.add(asm.BuiltinFunc(helper).Call()) }

func (g *gen) mapPointer(r asm.Register, name string) {
	g.add(asm.LoadMapPtr(r, 0).WithReference(name))
}

func (g *gen) block(b *block) {
	for _, s := range b.list {
		g.at(s.pos())
		g.stmt(s)
	}
}

func (g *gen) stmt(s stmt) {
	switch s := s.(type) {
	case *block:
		g.block(s)
	case *callStmt:
		defer g.scope()()
		g.callStmt(s.call)
	case *assign:
		defer g.scope()()
		g.assign(s)
	case *ifStmt:
		other, out := g.label(), g.label()
		g.cond(s.c, other, false)
		g.block(s.then)
		if s.els != nil {
			g.always(out)
		}
		g.place(other)
		if s.els != nil {
			g.block(s.els)
		}
		g.place(out)
	case *whileStmt:
		l := loop{g.label(), g.label()}
		g.place(l.again)
		g.cond(s.c, l.out, false)
		g.loops = append(g.loops, l)
		g.block(s.body)
		g.loops = g.loops[:len(g.loops)-1]
		g.always(l.again)
		g.place(l.out)
	case *rangeStmt:
		g.count(s)
	case *unrollStmt:
		for range s.n {
			g.block(s.body)
			if len(g.insns) > maxInsns {
				g.p.lexer.fail(s.span, "unrolled, this has more than %d instructions", maxInsns)
			}
		}
	case *jump:
		switch s.word {
		case "return":
			g.always(g.end)
		case "break":
			g.always(g.loops[len(g.loops)-1].out)
		default:
			g.always(g.loops[len(g.loops)-1].again)
		}
	default:
		panic(fmt.Sprintf("BUG: statement %T", s))
	}
}

// count is a loop whose number and end the program can't change.
func (g *gen) count(s *rangeStmt) {
	defer g.scope()()
	now, end := g.alloc(1, s.span), int16(0)
	lit, isConst := s.to.(*intLit)
	isConst = isConst && lit.n == int64(int32(lit.n))
	g.expr(s.from)
	g.store(now, asm.R0)
	if !isConst {
		end = g.alloc(1, s.span)
		g.expr(s.to)
		g.store(end, asm.R0)
	}
	l := loop{g.label(), g.label()}
	g.place(l.again)
	g.load(asm.R0, now)
	if isConst {
		g.jump(asm.JSGE.Imm(asm.R0, int32(lit.n), ""), l.out)
	} else {
		g.load(asm.R1, end)
		g.jump(asm.JSGE.Reg(asm.R0, asm.R1, ""), l.out)
	}
	g.store(g.vars[s.v.name], asm.R0)
	g.add(asm.Add.Imm(asm.R0, 1))
	g.store(now, asm.R0)
	g.loops = append(g.loops, l)
	g.block(s.body)
	g.loops = g.loops[:len(g.loops)-1]
	g.always(l.again)
	g.place(l.out)
}

// maxInsns bounds what a probe becomes, also by unroll.
const maxInsns = 1 << 13

// cond jumps to a label if a condition is what is wanted, and goes on otherwise.
func (g *gen) cond(x expr, label int, want bool) {
	switch x := x.(type) {
	case *unary:
		if x.op == "!" {
			g.cond(x.x, label, !want)
			return
		}
	case *binExpr:
		if x.op == "&&" || x.op == "||" {
			if (x.op == "||") == want { // either operand decides
				g.cond(x.x, label, want)
				g.cond(x.y, label, want)
				return
			}
			out := g.label()
			g.cond(x.x, out, !want)
			g.cond(x.y, label, want)
			g.place(out)
			return
		}
		if op, ok := compares[x.op]; ok {
			if !want {
				op = compares[opposite[x.op]]
			}
			n, isConst := g.operands(x)
			if isConst {
				g.jump(op.Imm(asm.R0, n, ""), label)
			} else {
				g.jump(op.Reg(asm.R0, asm.R1, ""), label)
			}
			return
		}
	}
	g.expr(x)
	op := asm.JEq
	if want {
		op = asm.JNE
	}
	g.jump(op.Imm(asm.R0, 0, ""), label)
}

var compares = map[string]asm.JumpOp{"==": asm.JEq, "!=": asm.JNE, "<": asm.JSLT, "<=": asm.JSLE, ">": asm.JSGT, ">=": asm.JSGE}

var opposite = map[string]string{"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}

// operands puts the first operand into R0 and the second into R1, unless it is a constant
// that an instruction holds.
func (g *gen) operands(x *binExpr) (n int32, isConst bool) {
	if lit, ok := x.y.(*intLit); ok && lit.n == int64(int32(lit.n)) {
		g.expr(x.x)
		return int32(lit.n), true
	}
	defer g.scope()()
	g.expr(x.x)
	first := g.alloc(1, x.span)
	g.store(first, asm.R0)
	g.expr(x.y)
	g.add(asm.Mov.Reg(asm.R1, asm.R0))
	g.load(asm.R0, first)
	return 0, false
}

var arithmetic = map[string]asm.ALUOp{
	"+": asm.Add, "-": asm.Sub, "*": asm.Mul, "/": asm.SDiv, "%": asm.SMod, "&": asm.And, "|": asm.Or, "^": asm.Xor, "<<": asm.LSh, ">>": asm.ArSh,
}

// expr puts the value of an expression into R0.
func (g *gen) expr(x expr) {
	switch x := x.(type) {
	case *intLit:
		g.constant(asm.R0, x.n)
	case *strLit:
		if x.t == typeHeld {
			g.intern(x)
			return
		}
		g.constant(asm.R0, x.n)
	case *nameRef:
		g.name(x)
	case *varRef:
		g.load(asm.R0, g.vars[x.name])
	case *mapRef:
		g.lookup(x)
		out := g.label()
		g.jump(asm.JEq.Imm(asm.R0, 0, ""), out)
		g.add(asm.LoadMem(asm.R0, asm.R0, 0, asm.DWord))
		g.place(out)
	case *unary:
		switch x.op {
		case "-":
			g.expr(x.x)
			g.add(asm.Neg.Imm(asm.R0, 0))
		case "~":
			g.expr(x.x)
			g.add(asm.Xor.Imm(asm.R0, -1))
		case "!":
			g.truth(x)
		default:
			g.expr(x.x)
			if c := casts[x.op]; c.bits < 64 {
				back := asm.RSh
				if c.signed {
					back = asm.ArSh
				}
				g.add(asm.LSh.Imm(asm.R0, int32(64-c.bits)), back.Imm(asm.R0, int32(64-c.bits)))
			}
		}
	case *binExpr:
		g.binary(x)
	case *call:
		switch {
		case x.fn.bytes > 0:
			g.read(x)
			return
		case x.fn.Name == "str":
			g.intern(x)
			return
		case x.fn.Name == "strncmp":
			g.strncmp(x)
			return
		}
		if len(x.args) == 2 {
			defer g.scope()()
			first := g.alloc(1, x.span)
			g.expr(x.args[0])
			g.store(first, asm.R0)
			g.expr(x.args[1])
			g.add(asm.Mov.Reg(asm.R2, asm.R0))
			g.load(asm.R1, first)
		} else {
			g.expr(x.args[0])
			g.add(asm.Mov.Reg(asm.R1, asm.R0))
		}
		g.call(x.fn.helper)
	case *choice:
		other, out := g.label(), g.label()
		g.cond(x.c, other, false)
		g.expr(x.x)
		g.always(out)
		g.place(other)
		g.expr(x.y)
		g.place(out)
	default:
		panic(fmt.Sprintf("BUG: expression %T", x))
	}
}

func (g *gen) binary(x *binExpr) {
	op, ok := arithmetic[x.op]
	if !ok {
		g.truth(x)
		return
	}
	n, isConst := g.operands(x)
	if x.op == "<<" || x.op == ">>" { // of which the low 6 bits count
		if isConst {
			n &= 63
		} else {
			g.add(asm.And.Imm(asm.R1, 63))
		}
	}
	if isConst && (op != asm.SDiv && op != asm.SMod || n != 0) {
		g.add(op.Imm(asm.R0, n))
		return
	}
	if isConst {
		g.constant(asm.R1, 0)
	}
	g.add(op.Reg(asm.R0, asm.R1))
}

// truth puts 1 or 0 into R0.
func (g *gen) truth(x expr) {
	not, out := g.label(), g.label()
	g.cond(x, not, false)
	g.constant(asm.R0, 1)
	g.always(out)
	g.place(not)
	g.constant(asm.R0, 0)
	g.place(out)
}

func (g *gen) name(x *nameRef) {
	defer g.scope()()
	switch b := x.def; {
	case b == nil && g.point.kind.host == object.HostUSDT:
		g.argument(x, helper.USDTArg)
	case b == nil && g.point.kind.host == object.HostEntry: // which know where a function of Go's has them
		g.argument(x, helper.FuncArg)
	case b == nil && g.point.kind.host != object.HostNone:
		g.field(asm.R0, callArgs[g.point.kind.host][x.arg])
	case b == nil:
		g.argument(x, helper.FuncArg)
	case b.Name == "retval" && g.point.kind.host == object.HostNone:
		out := g.alloc(1, x.span)
		g.set(out, 0)
		g.add(asm.Mov.Reg(asm.R1, ctx))
		g.address(asm.R2, out)
		g.call(helper.FuncRet)
		g.load(asm.R0, out)
	case b.Name == "retval":
		g.field(asm.R0, callResult[g.point.kind.host])
	case b.Type == typeStack:
		g.stack(x.span)
	case b.Type == typeHeld:
		g.intern(x)
	case b.Type == typeStr:
		g.constant(asm.R0, g.p.constant(g.written(b.Name)))
	case b.linear != nil:
		g.linear(b.linear)
	case b.helper != 0:
		for i, name := range b.args {
			g.field(asm.R1+asm.Register(i), name)
		}
		g.call(b.helper)
		if b.shift > 0 {
			g.add(asm.RSh.Imm(asm.R0, b.shift))
		}
		if b.since {
			g.constant(asm.R1, g.p.start)
			g.add(asm.Sub.Reg(asm.R0, asm.R1))
		}
		if b.low {
			g.add(asm.LSh.Imm(asm.R0, 32), asm.RSh.Imm(asm.R0, 32))
		}
	default:
		g.field(asm.R0, b.field)
	}
}

// stack puts the number of the stack into R0, see typeStack.
func (g *gen) stack(s span) {
	defer g.scope()()
	pid, none := g.alloc(1, s), g.label()
	g.call(helper.ProcessThread)
	g.add(asm.RSh.Imm(asm.R0, 32), asm.LSh.Imm(asm.R0, 32))
	g.store(pid, asm.R0)
	g.add(asm.Mov.Reg(asm.R1, ctx))
	g.mapPointer(asm.R2, stacksName)
	g.constant(asm.R3, 0)
	g.call(helper.StackID)
	out := g.label()
	g.jump(asm.JSLT.Imm(asm.R0, 0, ""), none) // there is another of its number
	g.load(asm.R1, pid)
	g.add(asm.Add.Imm(asm.R0, 1), asm.Or.Reg(asm.R0, asm.R1))
	g.always(out)
	g.place(none)
	g.constant(asm.R0, 0)
	g.place(out)
}

// argument has a helper write an argument, and puts that into R0.
func (g *gen) argument(x *nameRef, helper int32) {
	defer g.scope()()
	out := g.alloc(1, x.span)
	g.set(out, 0)
	g.add(asm.Mov.Reg(asm.R1, ctx))
	g.constant(asm.R2, int64(x.arg))
	g.address(asm.R3, out)
	g.call(helper)
	g.load(asm.R0, out)
}

// read puts the number at an address of memory into R0.
func (g *gen) read(x *call) {
	defer g.scope()()
	out := g.alloc(1, x.span)
	g.expr(x.args[0])
	g.add(asm.Mov.Reg(asm.R3, asm.R0))
	g.set(out, 0) // what can't be read is 0
	g.address(asm.R1, out)
	g.constant(asm.R2, int64(x.fn.bytes))
	g.call(helper.ReadUser)
	g.load(asm.R0, out)
}

func (g *gen) field(r asm.Register, name string) {
	f, ok := g.fields[name]
	if !ok {
		panic("BUG: no field " + name)
	}
	g.add(asm.LoadMem(r, ctx, int16(f.Offset), map[int]asm.Size{4: asm.Word, 8: asm.DWord}[f.Size]))
}

// around has what is counted in what: blocks in the grid, threads in the block.
var around = map[string]struct{ in, of string }{
	"tid": {"thread", "block_dim"}, "ctaid": {"block", "grid"}, "ntid": {"", "block_dim"}, "nctaid": {"", "grid"},
}

// linear puts the number of something in what is around it into R0, or how many there
// are: x + y*nx + z*nx*ny, for the outer and then the inner.
func (g *gen) linear(parts []string) {
	for i, part := range parts {
		a := around[part]
		if a.in == "" { // how many there are
			g.field(asm.R0, a.of+".x")
			for _, axis := range []string{".y", ".z"} {
				g.field(asm.R1, a.of+axis)
				g.add(asm.Mul.Reg(asm.R0, asm.R1))
			}
			continue
		}
		for k, axis := range []string{".z", ".y", ".x"} {
			if i > 0 || k > 0 {
				g.field(asm.R1, a.of+axis)
				g.add(asm.Mul.Reg(asm.R0, asm.R1))
				g.field(asm.R1, a.in+axis)
				g.add(asm.Add.Reg(asm.R0, asm.R1))
			} else {
				g.field(asm.R0, a.in+axis)
			}
		}
	}
}
