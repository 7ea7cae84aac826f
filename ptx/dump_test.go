package ptx

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

var stmtNames = [...]string{"bad", "instr", "label", "decl", "open", "close", "func", "prototype", "directive", "loc", "file", "section"}

// String returns the kind in a word.
func (k StmtKind) String() string {
	if int(k) < len(stmtNames) {
		return stmtNames[k]
	}
	return fmt.Sprintf("StmtKind(%d)", uint8(k))
}

var operandNames = [...]string{"bad", "name", "sink", "int", "f32", "f64", "addr", "vector", "group", "pair", "string", "expr"}

// String returns the kind in a word.
func (k OperandKind) String() string {
	if int(k) < len(operandNames) {
		return operandNames[k]
	}
	return fmt.Sprintf("OperandKind(%d)", uint8(k))
}

// dump writes the tree of f for a reader: a statement a line with its position
// and parts, its operands indented below.
func dump(w io.Writer, f *File) error {
	d := dumper{Writer: bufio.NewWriter(w), f: f}
	for i := range f.Stmts {
		s := &f.Stmts[i]
		if s.Kind == StmtClose {
			d.depth--
		}
		d.stmt(s)
		if s.Kind == StmtOpen {
			d.depth++
		}
	}
	return d.Flush()
}

type dumper struct {
	*bufio.Writer
	f     *File
	depth int
}

func (d *dumper) line(depth int, format string, args ...any) {
	for range depth {
		d.WriteString("  ")
	}
	fmt.Fprintf(d, format, args...)
	d.WriteByte('\n')
}

func (d *dumper) stmt(s *Stmt) {
	f := d.f
	head := fmt.Sprintf("%s %s %s", f.lineCol(s.Pos), s.Kind, f.Text(s.Name))
	switch s.Kind {
	case StmtInstr:
		head = fmt.Sprintf("%s instr %s", f.lineCol(s.Pos), f.FullOpcode(s))
		if s.Guarded() {
			not := ""
			if s.Flags&GuardNot != 0 {
				not = "!"
			}
			head += " @" + not + f.Text(s.Guard)
		}
	case StmtLoc:
		head = fmt.Sprintf("%s loc %+v", f.lineCol(s.Pos), f.loc(s))
	case StmtFile:
		n, name := f.sourceFile(s)
		head = fmt.Sprintf("%s file %d %q", f.lineCol(s.Pos), n, name)
	}
	if s.Flags&UnknownWord != 0 {
		head += " unknown"
	}
	d.line(d.depth, "%s", head)
	switch s.Kind {
	case StmtDecl:
		d.decl(f.Decl(s))
	case StmtFunc, StmtPrototype:
		d.fn(f.Func(s))
	default:
		d.operands(f.Args(s), d.depth+1)
	}
}

func (d *dumper) fn(fn *Func) {
	kind := [...]string{FuncEntry: "entry", FuncDevice: "func", FuncPrototype: "prototype"}[fn.Kind]
	d.line(d.depth+1, "%s%s body %t", kind, fn.Linkage, fn.HasBody())
	for _, list := range []struct {
		what  string
		decls []Decl
	}{{"return", d.f.Returns(fn)}, {"param", d.f.Params(fn)}} {
		for i := range list.decls {
			d.line(d.depth+1, "%s", list.what)
			d.depth++
			d.decl(&list.decls[i])
			d.depth--
		}
	}
	attrs := d.f.Attrs(fn)
	for i := range attrs {
		unknown := ""
		if attrs[i].Flags&UnknownWord != 0 {
			unknown = " unknown"
		}
		d.line(d.depth+1, "attr %s%s", d.f.Text(attrs[i].Name), unknown)
		d.operands(d.f.Args(&attrs[i]), d.depth+2)
	}
}

var linkageNames = [...]string{".extern", ".visible", ".weak", ".common", ".managed", ".unified", "other"}

// String returns the words of the set, each with a blank before it.
func (l Linkage) String() string {
	var s strings.Builder
	for i, name := range linkageNames {
		if l&(1<<i) != 0 {
			s.WriteString(" " + name)
		}
	}
	return s.String()
}

func (d *dumper) decl(decl *Decl) {
	line := fmt.Sprintf("%s %s", decl.Space, decl.Type)
	if decl.Type == TypeNone {
		line = fmt.Sprintf("%s type %q", decl.Space, d.f.Text(decl.TypeWord))
	}
	if decl.Vec != 1 {
		line += fmt.Sprintf(" vec %d", decl.Vec)
	}
	if decl.Align != 0 {
		line += fmt.Sprintf(" align %d", decl.Align)
	}
	if decl.Ptr {
		line += fmt.Sprintf(" ptr %s align %d", decl.PtrSpace, decl.PtrAlign)
	}
	d.line(d.depth+1, "%s%s", line, decl.Linkage)
	names := d.f.Names(decl)
	for i := range names {
		n := &names[i]
		line := fmt.Sprintf("%q", d.f.Text(n.Name))
		if n.Range != 0 {
			line += fmt.Sprintf(" range %d", n.Range)
		}
		if n.NDims != 0 {
			line += fmt.Sprintf(" dims %d elems %d flex %t", n.NDims, n.Elems, n.Flex)
		}
		d.line(d.depth+2, "%s", line)
		for v := range d.f.InitValues(n) {
			d.line(d.depth+3, "[%d] %s %#x %s generic %t mask %#x", v.Index, v.Kind, v.Bits, v.Symbol, v.Generic, v.Mask)
		}
	}
}

func (d *dumper) operands(list []Operand, depth int) {
	for i := range list {
		o := &list[i]
		var line strings.Builder
		fmt.Fprintf(&line, "%s %s", o.Kind, d.f.Text(o.Span()))
		switch o.Kind {
		case OperandName, OperandAddr:
			if o.Has(HasOffset) {
				fmt.Fprintf(&line, " base %q offset %d", d.f.Text(o.Name), o.Int())
			}
			if o.Sel != SelNone {
				fmt.Fprintf(&line, " selector %d", o.Sel)
			}
		case OperandInt, OperandF32, OperandF64:
			fmt.Fprintf(&line, " bits %#x", o.Bits)
		}
		for j, name := range [...]string{"not", "minus", "", "unified", "unsigned", "folded", "overflow"} {
			if name != "" && o.Flags&(1<<j) != 0 {
				line.WriteString(" " + name)
			}
		}
		d.line(depth, "%s", line.String())
		d.operands(d.f.Kids(o), depth+1)
	}
}
