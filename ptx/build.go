package ptx

import (
	"fmt"
	"strconv"
	"strings"
)

// A Builder writes PTX statements: probe code, declarations, whole functions.
// A method reads like the instruction it writes:
//
//	t := b.Reg(U64, "%t")
//	b.Add(U64, t, t, Imm(8))
//	b.On(p).Red("", SpaceGlobal, "add", U64, Addr(t, 0), Imm(1))
//
// A combination that PTX does not have (a type, a width, a value that does not
// fit, an instruction that the target lacks) is remembered, and [Builder.Source]
// returns the first such error; so callers check once.
type Builder struct {
	buf     strings.Builder
	err     error
	guard   string
	indent  string
	version Version
	target  Target
}

// BuildOptions say what the code is for. Nil checks no version and target.
type BuildOptions struct {
	Version Version // of the module that the code goes into; zero: any
	Target  Target  // zero: any
	Indent  string  // in front of every line; "" means a tab
}

// NewBuilder returns an empty Builder.
func NewBuilder(o *BuildOptions) *Builder {
	b := &Builder{indent: "\t"}
	if o != nil {
		b.version, b.target = o.Version, o.Target
		if o.Indent != "" {
			b.indent = o.Indent
		}
	}
	return b
}

// An Arg is an operand of an instruction to build. The zero Arg is the sink "_".
type Arg struct {
	text string
	typ  Type // of a register; TypeNone when not known
	kind OperandKind
	bits uint64 // of an integer
	neg  bool   // the integer is negative
}

// String returns the operand as PTX spells it.
func (a Arg) String() string {
	if a.text == "" {
		return "_"
	}
	return a.text
}

// Name is a register whose type is not known, a special register, a variable, a
// function or a label.
func Name(name string) Arg { return Arg{text: name, kind: OperandName} }

// TypedReg is a register of type t that is declared elsewhere.
func TypedReg(t Type, name string) Arg { return Arg{text: name, typ: t, kind: OperandName} }

// Imm is a signed integer constant.
func Imm(v int64) Arg {
	return Arg{text: strconv.FormatInt(v, 10), kind: OperandInt, bits: uint64(v), neg: v < 0}
}

// Hex is an unsigned integer constant, written in hexadecimal.
func Hex(v uint64) Arg {
	return Arg{text: "0x" + strconv.FormatUint(v, 16), kind: OperandInt, bits: v}
}

// Addr is the memory operand [base+off].
func Addr(base Arg, off int64) Arg {
	text := "[" + base.String()
	if off != 0 {
		text += "+" + strconv.FormatInt(off, 10) // PTX has no [a-8], but [a+-8]
	}
	return Arg{text: text + "]", kind: OperandAddr}
}

func joinArgs(args []Arg) string {
	words := make([]string, len(args))
	for i, a := range args {
		words[i] = a.String()
	}
	return strings.Join(words, ", ")
}

// Source returns the code, or the first mistake made with b.
func (b *Builder) Source() (string, error) {
	if b.err != nil {
		return "", b.err
	}
	return b.buf.String(), nil
}

func (b *Builder) fail(format string, args ...any) {
	if b.err == nil {
		b.err = fmt.Errorf(format, args...)
	}
}

// Line writes one line of text as it is, for what has no method.
func (b *Builder) Line(text string) { b.buf.WriteString(b.indent + text + "\n") }

// Label writes "name:".
func (b *Builder) Label(name string) {
	if opened(name) != "" {
		b.fail("label %q: %s", name, opened(name))
		return
	}
	b.buf.WriteString(name + ":\n")
}

// opened says why name is not one identifier; "" when it is.
func opened(name string) string {
	if name == "" {
		return "is empty"
	}
	if k, end := scan(name, 0); k != TokIdent || end != len(name) {
		return "is not an identifier"
	}
	return ""
}

// Reg declares a register and returns it.
func (b *Builder) Reg(t Type, name string) Arg {
	if why := opened(name); why != "" || t == TypeNone || t >= TexRef {
		b.fail("register %q of type %q: %s", name, t, why)
		return Arg{}
	}
	b.Line(".reg " + t.String() + " " + name + ";")
	return TypedReg(t, name)
}

// On makes the next instruction conditional: @p.
func (b *Builder) On(p Arg) *Builder { return b.predicate(p, "@") }

// OnNot makes the next instruction conditional: @!p.
func (b *Builder) OnNot(p Arg) *Builder { return b.predicate(p, "@!") }

func (b *Builder) predicate(p Arg, at string) *Builder {
	if p.kind != OperandName || p.typ != Pred && p.typ != TypeNone {
		b.fail("guard %s: not a predicate register", p)
	}
	b.guard = at + p.String() + " "
	return b
}

// Inst writes an instruction that has no method of its own. The opcode has all
// its modifiers.
func (b *Builder) Inst(opcode string, args ...Arg) {
	guard := b.guard
	b.guard = ""
	word, _, _ := strings.Cut(opcode, ".")
	if opOf(word) == OpUnknown {
		b.fail("%s: unknown opcode", opcode)
		return
	}
	if b.version != (Version{}) {
		if n := Needs(opcode); !n.Met(b.version, b.target) {
			b.fail("%s needs %s; the module says %s, %s", opcode, n, b.version, b.target)
			return
		}
	}
	line := guard + opcode
	if len(args) > 0 {
		line += " " + joinArgs(args)
	}
	b.Line(line + ";")
}

// Classes of types that instructions take.
type typeSet uint64

func setOf(types ...Type) (s typeSet) {
	for _, t := range types {
		s |= 1 << t
	}
	return s
}

var (
	bitTypes   = setOf(B16, B32, B64)
	intTypes   = setOf(U16, U32, U64, S16, S32, S64)
	floatTypes = setOf(F32, F64)
	numTypes   = intTypes | floatTypes
	memTypes   = setOf(B8, B16, B32, B64, U8, U16, U32, U64, S8, S16, S32, S64, F32, F64)
)

// typed writes "op.t args" after checking that op takes t and every operand
// fits t.
func (b *Builder) typed(op string, ok typeSet, t Type, args ...Arg) {
	if t >= typeCount || ok&(1<<t) == 0 {
		b.fail("%s%s: no such instruction", op, t)
		return
	}
	for _, a := range args {
		if why := a.unfit(t); why != "" {
			b.fail("%s%s %s: operand %s %s", op, t, joinArgs(args), a, why)
			return
		}
	}
	b.Inst(op+t.String(), args...)
}

// unfit says why a can't be an operand of type t; "" when it can.
func (a Arg) unfit(t Type) string {
	switch a.kind {
	case OperandName:
		if a.typ != TypeNone && (a.typ.Size() != t.Size() || (a.typ == Pred) != (t == Pred)) {
			return "is a register of type " + a.typ.String()
		}
	case OperandInt:
		if t.Float() {
			return "is no floating-point constant"
		}
		bits := uint(t.Size() * 8)
		if t == Pred {
			bits = 1
		}
		if bits < 64 && (!a.neg && a.bits>>bits != 0 || a.neg && int64(a.bits) < -1<<(bits-1)) {
			return "does not fit"
		}
	case OperandAddr:
		return "is an address"
	}
	return ""
}

// bits returns the untyped type of the size of t.
func bits(t Type) Type {
	switch t.Size() {
	case 1:
		return B8
	case 2:
		return B16
	case 4:
		return B32
	case 8:
		return B64
	}
	return t
}

// Add writes add.t d, a, b.
func (b *Builder) Add(t Type, d, x, y Arg) { b.typed("add", numTypes, t, d, x, y) }

// Sub writes sub.t d, a, b.
func (b *Builder) Sub(t Type, d, x, y Arg) { b.typed("sub", numTypes, t, d, x, y) }

// Mul writes mul.lo.t for integers and mul.t for floats.
func (b *Builder) Mul(t Type, d, x, y Arg) {
	if t.Float() {
		b.typed("mul", floatTypes, t, d, x, y)
		return
	}
	b.typed("mul.lo", intTypes, t, d, x, y)
}

// Mad writes mad.lo.t d, a, b, c for integers and fma.rn.t for floats.
func (b *Builder) Mad(t Type, d, x, y, z Arg) {
	if t.Float() {
		b.typed("fma.rn", floatTypes, t, d, x, y, z)
		return
	}
	b.typed("mad.lo", intTypes, t, d, x, y, z)
}

// And writes and.bN d, a, b for a type of N bits, and.pred for predicates.
func (b *Builder) And(t Type, d, x, y Arg) { b.typed("and", bitTypes|1<<Pred, bits(t), d, x, y) }

// Or writes or.bN d, a, b.
func (b *Builder) Or(t Type, d, x, y Arg) { b.typed("or", bitTypes|1<<Pred, bits(t), d, x, y) }

// Xor writes xor.bN d, a, b.
func (b *Builder) Xor(t Type, d, x, y Arg) { b.typed("xor", bitTypes|1<<Pred, bits(t), d, x, y) }

// Shl writes shl.bN d, a, n; the count n is 32 bits wide for every type.
func (b *Builder) Shl(t Type, d, x, n Arg) {
	if why := n.unfit(U32); why != "" {
		b.fail("shl%s: count %s %s", bits(t), n, why)
		return
	}
	n.typ, n.kind = TypeNone, OperandName
	b.typed("shl", bitTypes, bits(t), d, x, n)
}

// Mov writes mov.t d, a.
func (b *Builder) Mov(t Type, d, x Arg) { b.typed("mov", bitTypes|numTypes|1<<Pred, t, d, x) }

// Cvt converts: cvt.to.from d, a. Between floats and integers, and to narrower
// floats, the rounding modifier ".rn", ".rzi" … must be given, else "".
func (b *Builder) Cvt(rounding string, to, from Type, d, x Arg) {
	ok := memTypes &^ setOf(B8, B16, B32, B64)
	if ok&(1<<to) == 0 || ok&(1<<from) == 0 {
		b.fail("cvt%s%s: no such instruction", to, from)
		return
	}
	need := to.Float() != from.Float() || to.Float() && to.Size() < from.Size()
	if need != (rounding != "") {
		b.fail("cvt%s%s%s: a rounding modifier is needed exactly when the value may change", rounding, to, from)
		return
	}
	// A register may be wider than the type it is read or written as.
	if d.typ != TypeNone && d.typ.Size() < to.Size() || x.typ != TypeNone && x.typ.Size() < from.Size() {
		b.fail("cvt%s%s %s, %s: a register is narrower than its type", to, from, d, x)
		return
	}
	b.Inst("cvt"+rounding+to.String()+from.String(), d, x)
}

// comparisons by what they take: 1 every number, 2 unsigned, 4 floats, 8 bits.
var comparisons = map[string]uint8{
	"eq": 1 | 8, "ne": 1 | 8, "lt": 1, "le": 1, "gt": 1, "ge": 1, "lo": 2, "ls": 2, "hi": 2, "hs": 2,
	"equ": 4, "neu": 4, "ltu": 4, "leu": 4, "gtu": 4, "geu": 4, "num": 4, "nan": 4,
}

// Setp writes setp.cmp.t p, a, b.
func (b *Builder) Setp(cmp string, t Type, p, x, y Arg) {
	takes := comparisons[cmp]
	var ok typeSet
	if takes&1 != 0 {
		ok |= numTypes
	}
	if takes&2 != 0 {
		ok |= setOf(U16, U32, U64)
	}
	if takes&4 != 0 {
		ok |= floatTypes
	}
	if takes&8 != 0 {
		ok |= bitTypes
	}
	if why := p.unfit(Pred); why != "" {
		b.fail("setp.%s%s: destination %s %s", cmp, t, p, why)
		return
	}
	p.typ = TypeNone
	b.typed("setp."+cmp, ok, t, p, x, y)
}

// Selp writes selp.t d, a, b, p: a where p holds, b elsewhere.
func (b *Builder) Selp(t Type, d, x, y, p Arg) {
	if why := p.unfit(Pred); why != "" {
		b.fail("selp%s: predicate %s %s", t, p, why)
		return
	}
	p.typ = TypeNone
	b.typed("selp", bitTypes|numTypes, t, d, x, y, p)
}

// memory writes a store or reduction. The value's register may be wider than t.
func (b *Builder) memory(op string, t Type, addr, value Arg) {
	switch {
	case addr.kind != OperandAddr:
		b.fail("%s%s: %s is no address", op, t, addr)
	case t >= typeCount || memTypes&(1<<t) == 0:
		b.fail("%s%s: no such instruction", op, t)
	case value.kind == OperandName && value.typ != TypeNone && (value.typ.Size() < t.Size() || value.typ == Pred):
		b.fail("%s%s: register %s of type %s is too narrow", op, t, value, value.typ)
	case value.kind == OperandInt && value.unfit(t) != "":
		b.fail("%s%s: %s %s", op, t, value, value.unfit(t))
	default:
		b.Inst(op+t.String(), addr, value)
	}
}

// spaceWord returns ".global" and so on, "" for the generic space.
func (b *Builder) spaceWord(s Space) string {
	switch s {
	case SpaceGeneric:
		return ""
	case SpaceGlobal, SpaceShared, SpaceLocal, SpaceParam, SpaceConst:
		return s.String()
	}
	b.fail("memory access in the state space %s", s)
	return ""
}

// St writes st.mods.space.t addr, value.
func (b *Builder) St(mods string, s Space, t Type, addr, value Arg) {
	if s == SpaceConst {
		b.fail("st.const%s: constants can't be written", t)
	}
	b.memory("st"+mods+b.spaceWord(s), t, addr, value)
}

// Red writes red.mods.space.op.t addr, value.
func (b *Builder) Red(mods string, s Space, op string, t Type, addr, value Arg) {
	b.memory("red"+mods+b.spaceWord(s)+"."+op, t, addr, value)
}

// Bra writes bra label.
func (b *Builder) Bra(label string) {
	if why := opened(label); why != "" {
		b.fail("bra %q: %s", label, why)
		return
	}
	b.Inst("bra", Name(label))
}
