// Package ptx knows NVIDIA's PTX assembly as text: how it is spelled, where its
// functions, exits, memory accesses and source lines are, and how to put other
// text between its statements without touching the rest.
//
// The parser is lossless. It keeps the source and describes it by byte offsets;
// an opcode, modifier or directive that it does not know is kept like any
// other. Edits are splices of the source ([Edits], [Weaver]), never a reprint, so
// a file without edits stays the same bytes. What the instructions compute is
// none of this package's business: that is ptx/emu's.
//
// All facts about the language are from NVIDIA's "Parallel Thread Execution
// ISA" documents (1.0 to 9.x) and from what ptxas does.
//
// # Stability
//
// Programs may import this package. Before version 1.0 names may still change; the changelog says
// which. A file without edits stays the same bytes in any version.
package ptx

import (
	"iter"
	"strings"
	"sync"
)

// A File is a parsed PTX module. It is immutable after [Parse] and safe for
// concurrent use.
//
// The tree is flat: Stmts holds every statement of the module in source order,
// scopes being a StmtOpen and a StmtClose that know one another, and the other
// slices hold what statements point at by index. No node contains a pointer, so
// that a module of many megabytes costs the garbage collector nothing.
type File struct {
	Name        string   // as given to Parse; for messages only
	Src         string   // the whole source, as given
	Version     Version  // of the .version directive; zero when there is none
	Targets     []string // of the .target directive: "sm_90a", "debug", …
	AddressSize int      // of .address_size; 32 when there is none (PTX ISA §11.1)

	Stmts []Stmt // every statement in source order
	Funcs []Func // every .entry and .func, prototypes and call prototypes included, in source order

	args  []Operand
	decls []Decl
	names []Declarator
	attrs []Stmt
	lines *lineTable
	funcs *funcTable
}

// A Version is a PTX ISA version, as in ".version 8.4".
type Version struct{ Major, Minor uint8 }

// StmtKind says what a [Stmt] is.
type StmtKind uint8

// The statement kinds. The comment says what the fields Name, Args and Ref mean.
const (
	StmtBad       StmtKind = iota // never in a File
	StmtInstr                     // instruction: Name = opcode, Args = operands
	StmtLabel                     // "name:": Name = label
	StmtDecl                      // variable, register or parameter declaration: Ref = index for File.Decl
	StmtOpen                      // "{": Ref = index in Stmts of the matching StmtClose
	StmtClose                     // "}": Ref = index in Stmts of the matching StmtOpen
	StmtFunc                      // header of an .entry or .func, prototype or definition: Ref = index in Funcs; a definition is followed by its StmtOpen
	StmtPrototype                 // .callprototype: Ref = index in Funcs
	StmtDirective                 // .version .target .pragma .branchtargets .alias … and unknown ones: Name = with its dot; Args = operands, if any
	StmtLoc                       // .loc: see File.loc
	StmtFile                      // .file: see File.sourceFile
	StmtSection                   // .section NAME { … }: Name = the section's name; contents not parsed
)

// StmtFlags are details of a [Stmt].
type StmtFlags uint8

// The flags of a statement.
const (
	GuardNot    StmtFlags = 1 << iota // the guard is negated: @!p
	UnknownWord                       // an opcode or directive that this package has no name for
)

// A Stmt is one statement. What it is made of is reached through the File it
// belongs to: [File.Text], [File.Args], File.mods, [File.Decl].
type Stmt struct {
	Kind  StmtKind
	Flags StmtFlags
	Op    Op  // StmtInstr: the opcode, OpUnknown when it is not in the table
	Pos   Pos // first byte: of the guard, or of the statement itself
	End   Pos // after the last byte: behind ';', ':', the brace, or the last word of a directive without ';'

	Guard Span // StmtInstr: the guard's register, without @ and !; empty when not predicated
	Name  Span // see StmtKind
	Mods  Pos  // StmtInstr: where the modifiers end; they start at Name.End
	Ref   uint32
	arg   uint32
	nargs uint32
}

// Guarded reports whether the statement has a guard predicate.
func (s *Stmt) Guarded() bool { return !s.Guard.Empty() }

// Span returns the bytes of the whole statement.
func (s *Stmt) Span() Span { return Span{s.Pos, s.End} }

// OperandKind says what an [Operand] is.
type OperandKind uint8

// The operand kinds.
const (
	OperandBad    OperandKind = iota // never in a File
	OperandName                      // register, variable, label or function: Name; a displacement sym+4 or sym[2]: HasOffset, Bits = int64; a selector %tid.x: Sel
	OperandSink                      // "_"
	OperandInt                       // integer constant or folded constant expression: Bits (two's complement)
	OperandF32                       // 0fXXXXXXXX: Bits = IEEE 754 binary32 in the low half
	OperandF64                       // 1.5, 0dXXXXXXXXXXXXXXXX: Bits = IEEE 754 binary64
	OperandAddr                      // "[…]": Name = base, empty for [imm]; Bits = displacement (int64); Kids = what follows the first comma
	OperandVector                    // "{a, b}": Kids
	OperandGroup                     // "(a, b)" of a call: Kids
	OperandPair                      // "a|b": two Kids
	OperandString                    // "…" of a .pragma or .file, Name = with its quotes
	OperandExpr                      // constant expression with names in it that could not be folded: its text only
)

// OperandFlags are details of an [Operand].
type OperandFlags uint8

// The flags of an operand.
const (
	Not       OperandFlags = 1 << iota // "!p"
	Minus                              // "-x" of a register operand (old PTX: -%r1 in a vector or video operand)
	HasOffset                          // a displacement is written: [a+0] has it, [a] has not
	Unified                            // "[a].unified"
	Unsigned                           // integer with the suffix U, or a folded expression of unsigned type
	Folded                             // the value was computed from an expression
	Overflow                           // the integer does not fit 64 bits; Bits holds the low ones
)

// Selector is the ".x" of an operand (PTX ISA: vector components, special
// registers, video instructions).
type Selector uint8

// The selectors. .r .g .b .a are X Y Z W.
const (
	SelNone  Selector = iota
	SelX              // .x .r
	SelY              // .y .g
	SelZ              // .z .b
	SelW              // .w .a
	SelOther          // .b0 .h1 .b3210 …: the text is Span{Name.End, End}
)

// An Operand is one operand of an instruction or directive, or a part of one.
type Operand struct {
	Kind  OperandKind
	Flags OperandFlags
	Sel   Selector
	nkids uint32
	Pos   Pos  // first byte
	End   Pos  // after the last byte
	Name  Span // see OperandKind
	kid   uint32
	Bits  uint64 // see OperandKind
}

// Span returns the operand's bytes.
func (o *Operand) Span() Span { return Span{o.Pos, o.End} }

// Int returns Bits as a signed integer: the value of an OperandInt, the
// displacement of a name or an address.
func (o *Operand) Int() int64 { return int64(o.Bits) }

// Has reports whether all the flags in x are set.
func (o *Operand) Has(x OperandFlags) bool { return o.Flags&x == x }

// Linkage is a set of linking and other attributes of a declaration or function.
type Linkage uint16

// The linkage bits (PTX ISA §11.6, §5.4.8).
const (
	Extern Linkage = 1 << iota
	Visible
	Weak
	Common
	Managed   // .attribute(.managed)
	UnifiedAt // .attribute(.unified(…))
	OtherAttr // an attribute or word that this package does not know; its text is within the declaration
)

// A Decl is one declaration of variables, registers or a parameter:
//
//	.visible .global .align 8 .b8 buf[64] = {1, 2};
//	.reg .b32 %r<5>, %x;
//	.param .u64 .ptr .global .align 16 p
//
// Its names are [File.Names].
type Decl struct {
	Pos, End Pos
	Space    Space
	Type     Type
	Vec      uint8 // 2, 4 or 8 for .v2 .v4 .v8; 1 otherwise
	Linkage  Linkage
	Align    uint32 // of .align; 0 when not written
	Ptr      bool   // .ptr is written
	PtrSpace Space  // the space after .ptr; SpaceGeneric when none
	PtrAlign uint32 // the .align after .ptr; 0 when not written
	Bank     Span   // the number of .const[n], empty otherwise
	TypeWord Span   // the type as written; also when Type is TypeNone because it is not known
	name     uint32
	nnames   uint32
}

// A Declarator is one name in a [Decl].
type Declarator struct {
	Name   Span   // without <n> and [n]; "_" in call prototypes
	End    Pos    // after the declarator, its initialiser included
	Range  uint32 // n of %r<n>, which declares %r0 … %r(n-1); 0 otherwise
	NDims  uint8  // number of [..]
	Flex   bool   // the first dimension is empty: buf[]
	Elems  uint64 // product of the dimensions that are written; 1 for none
	Init   Span   // the initialiser after '=', empty when none
	Filler bool   // ".param .b32 _" or a nameless one
}

// FuncKind says what a [Func] is.
type FuncKind uint8

// The function kinds.
const (
	FuncEntry     FuncKind = iota // .entry
	FuncDevice                    // .func
	FuncPrototype                 // .callprototype
)

// A Func is the header of a kernel (.entry), a device function (.func) or a
// .callprototype.
type Func struct {
	Kind     FuncKind
	Linkage  Linkage
	Noreturn bool
	Pos, End Pos    // header, without the '{'; of a prototype including ';'
	Name     Span   // "_" or empty for FuncPrototype
	Stmt     uint32 // index in File.Stmts of its StmtFunc or StmtPrototype
	Open     uint32 // index of its StmtOpen; 0 for a declaration without body
	Close    uint32 // index of its StmtClose; 0 for a declaration without body
	attr     uint32 // first header directive in File.attrs
	nattrs   uint32
	ret      uint32
	nret     uint32
	param    uint32
	nparams  uint32
}

// HasBody reports whether this is a definition.
func (fn *Func) HasBody() bool { return fn.Open != 0 }

// Text returns the source bytes of sp.
func (f *File) Text(sp Span) string {
	if sp.Empty() || int(sp.End) > len(f.Src) {
		return ""
	}
	return f.Src[sp.Pos:sp.End]
}

// Args returns the operands of an instruction or directive, in order. The slice
// is the File's own: do not change it.
func (f *File) Args(s *Stmt) []Operand { return f.args[s.arg : s.arg+s.nargs : s.arg+s.nargs] }

// Kids returns the parts of a vector, group, pair or address. The slice is the
// File's own: do not change it.
func (f *File) Kids(o *Operand) []Operand { return f.args[o.kid : o.kid+o.nkids : o.kid+o.nkids] }

// Decl returns the declaration of a StmtDecl. It panics for other statements.
func (f *File) Decl(s *Stmt) *Decl {
	if s.Kind != StmtDecl {
		panic("BUG: ptx: File.Decl of a statement that is no StmtDecl")
	}
	return &f.decls[s.Ref]
}

// Func returns the function of a StmtFunc or StmtPrototype. It panics for other
// statements.
func (f *File) Func(s *Stmt) *Func {
	if s.Kind != StmtFunc && s.Kind != StmtPrototype {
		panic("BUG: ptx: File.Func of a statement that is no StmtFunc")
	}
	return &f.Funcs[s.Ref]
}

// Names returns the names that d declares. The slice is the File's own.
func (f *File) Names(d *Decl) []Declarator {
	return f.names[d.name : d.name+d.nnames : d.name+d.nnames]
}

// Params returns the parameters of fn, one Decl with one name each. The slice
// is the File's own.
func (f *File) Params(fn *Func) []Decl {
	return f.decls[fn.param : fn.param+fn.nparams : fn.param+fn.nparams]
}

// Returns returns the return parameters of fn. The slice is the File's own.
func (f *File) Returns(fn *Func) []Decl {
	return f.decls[fn.ret : fn.ret+fn.nret : fn.ret+fn.nret]
}

// Attrs returns the directives of fn's header that stand between ')' and '{':
// .maxntid, .reqntid, .minnctapersm, .pragma, .noreturn and so on, as
// StmtDirectives.
func (f *File) Attrs(fn *Func) []Stmt {
	return f.attrs[fn.attr : fn.attr+fn.nattrs : fn.attr+fn.nattrs]
}

// Attr returns the header directive of fn with that name, ".maxntid", or nil.
func (f *File) Attr(fn *Func, name string) *Stmt {
	attrs := f.Attrs(fn)
	for i := range attrs {
		if f.Text(attrs[i].Name) == name {
			return &attrs[i]
		}
	}
	return nil
}

// Body returns the statements between the braces of fn, nested scopes included;
// nil for a declaration. Element i is f.Stmts[fn.Open+1+i].
func (f *File) Body(fn *Func) []Stmt {
	if !fn.HasBody() {
		return nil
	}
	return f.Stmts[fn.Open+1 : fn.Close : fn.Close]
}

// Opcode returns the opcode of an instruction without its modifiers: "ld".
func (f *File) Opcode(s *Stmt) string { return f.Text(s.Name) }

// mods yields the modifiers of an instruction, each with its dot: ".global",
// ".shared::cta", ".v4", ".f32".
func (f *File) mods(s *Stmt) iter.Seq[string] {
	return func(yield func(string) bool) {
		rest := f.Text(Span{s.Name.End, s.Mods})
		for rest != "" {
			var m string
			if m, rest = nextMod(rest); m != "" && !yield(m) {
				return
			}
		}
	}
}

// AppendMods appends the modifiers of an instruction to dst; see File.mods.
func (f *File) AppendMods(dst []string, s *Stmt) []string {
	for m := range f.mods(s) {
		dst = append(dst, m)
	}
	return dst
}

// HasMod reports whether the instruction has the modifier m, given with its dot.
func (f *File) HasMod(s *Stmt, m string) bool {
	for x := range f.mods(s) {
		if x == m {
			return true
		}
	}
	return false
}

// FullOpcode returns the opcode with its modifiers as written, "ld.global.v4.f32";
// blanks and comments that the source may have in between are left out.
func (f *File) FullOpcode(s *Stmt) string {
	t := f.Text(Span{s.Name.Pos, s.Mods})
	if !strings.ContainsAny(t, " \t\r\n\f\v/") {
		return t
	}
	b := []byte(f.Opcode(s))
	for m := range f.mods(s) {
		b = append(b, m...)
	}
	return string(b)
}

// Lookup returns the function of that name that has a body, or else the first
// declaration of it, or nil. Call prototypes have no name.
func (f *File) Lookup(name string) *Func {
	f.funcs.once.Do(func() {
		m := make(map[string]int, len(f.Funcs))
		for i := range f.Funcs {
			fn := &f.Funcs[i]
			if fn.Kind == FuncPrototype {
				continue
			}
			key := f.Text(fn.Name)
			if old, ok := m[key]; !ok || fn.HasBody() && !f.Funcs[old].HasBody() {
				m[key] = i
			}
		}
		f.funcs.byName = m
	})
	if i, ok := f.funcs.byName[name]; ok {
		return &f.Funcs[i]
	}
	return nil
}

// funcTable finds functions by name; made on first use.
type funcTable struct {
	once   sync.Once
	byName map[string]int
}

// nextMod cuts the first modifier off a run of modifiers; what stands between
// them, blanks and comments, is skipped.
func nextMod(s string) (mod, rest string) {
	for i := 0; i < len(s); {
		k, end := scan(s, i)
		if k == TokDirective {
			return s[i:end], s[end:]
		}
		i = end
	}
	return "", ""
}
