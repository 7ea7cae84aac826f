package ptx

import (
	"fmt"
	"strconv"
	"strings"
)

// A Weaver puts probe code into a module. It keeps a probe to the threads that
// execute the statement it belongs to, gives it a scope of its own and does not
// tear apart what belongs together; the rest of the text stays byte by byte.
//
// A probe's code is PTX statements. Registers, variables and labels that it
// declares are its own: every probe is wrapped in { … }. It must not end the
// thread or branch out of itself.
type Weaver struct {
	f      *File
	edits  *Edits
	prefix string
	n      int
	header Pos
}

// A SiteError says why a probe can't be put at a statement.
type SiteError struct {
	At     Position
	Reason string
}

// Error returns "file:line:col: no probe here: reason".
func (e *SiteError) Error() string { return fmt.Sprintf("%s: no probe here: %s", e.At, e.Reason) }

// NewWeaver returns a Weaver for f, which is not changed.
func NewWeaver(f *File) *Weaver {
	w := &Weaver{f: f, edits: NewEdits(f.Src), prefix: freshPrefix(f.Src, "nvt")}
	for i := range f.Stmts {
		s := &f.Stmts[i]
		word := f.Text(s.Name)
		if s.Kind != StmtDirective || word != ".version" && word != ".target" && word != ".address_size" {
			break
		}
		w.header = s.End
	}
	return w
}

// freshPrefix returns stem, or stem with a number behind it, such that the text
// occurs nowhere in src: every name made with it is new in every scope, a range
// like %r<10> of the source included.
func freshPrefix(src, stem string) string {
	if !strings.Contains(src, stem) {
		return stem
	}
	taken := map[string]bool{} // numbers behind stem
	for rest := src; ; {
		_, after, ok := strings.Cut(rest, stem)
		if !ok {
			break
		}
		taken[after[:digits(after, 0)]] = true
		rest = after
	}
	for n := 1; ; n++ {
		if s := strconv.Itoa(n); !taken[s] {
			return stem + s + "_"
		}
	}
}

// Fresh returns a name that is not used anywhere in the module and was not
// returned before: kind is the first byte, '%' for a register, '$' for a label,
// '_' for a variable or function; stem is for the reader.
func (w *Weaver) Fresh(kind byte, stem string) string {
	w.n++
	return string(rune(kind)) + w.prefix + stem + strconv.Itoa(w.n)
}

// Stem returns what all names that Fresh returns begin with, behind their first byte: it
// occurs nowhere in the module.
func (w *Weaver) Stem() string { return w.prefix }

// Edits returns the edits made so far; more may be added to them.
func (w *Weaver) Edits() *Edits { return w.edits }

// Source returns the module with all probes.
func (w *Weaver) Source() (string, error) { return w.edits.Apply() }

// Module puts declarations or functions in front of the first declaration of
// the module.
func (w *Weaver) Module(text string) { w.edits.InsertBefore(w.header, "\n"+text) }

// Declare puts declarations at the start of fn's body, where all of the body
// sees them.
func (w *Weaver) Declare(fn *Func, text string) {
	w.edits.InsertAfter(w.f.Stmts[fn.Open].End, "\n\t"+text)
}

// Header puts a performance directive, ".maxnreg 64", behind those of fn's
// header. PTX takes some only once and not all together; that is the caller's
// to know ([File.Attr]).
func (w *Weaver) Header(fn *Func, directive string) {
	w.edits.InsertAfter(fn.End, "\n"+directive)
}

// Entry puts a probe at the entry of a function, once per thread and call.
func (w *Weaver) Entry(st *Sites, code string) error {
	if !st.Func.HasBody() {
		return &SiteError{w.f.Position(st.Func.Pos), "the function has no body in this file"}
	}
	w.edits.InsertBefore(st.Entry, "\n\t{\n"+strings.TrimSuffix(code, "\n")+"\n\t}")
	return nil
}

// Exit puts a probe before a way out. Exits that can't be reached get none.
func (w *Weaver) Exit(st *Sites, e *Exit, code string) error {
	if e.AfterTrap || !e.Reachable {
		return nil
	}
	return w.Before(st, e.Stmt, code)
}

// Before puts a probe before statement i of the File, an instruction or the
// closing brace of the body. For a guarded instruction the probe runs in the
// threads in which the guard holds. Inside a carry chain the probe goes before
// the chain when that makes no difference to it.
func (w *Weaver) Before(st *Sites, i uint32, code string) error {
	s := &w.f.Stmts[i]
	if s.Kind != StmtInstr && s.Kind != StmtClose {
		return w.refuse(i, "not an instruction")
	}
	at := i
	if c := st.chainAt(i); c != nil && i > c.First {
		switch {
		case !w.touched(c.First, i, code+" "+w.f.Text(s.Guard)):
			at = c.First
		case carries(code):
			return w.refuse(i, "inside a carry chain, and the probe needs the carry flag and a value from within the chain")
		}
	}
	text := w.wrap(s, w.f.Text(s.Guard), code)
	if s.Kind == StmtClose {
		w.edits.InsertBefore(s.Pos, "\t"+text+"\n")
		return nil
	}
	w.edits.InsertBefore(w.f.front(at), text+"\n\t")
	return nil
}

// After puts a probe behind instruction i, for the threads that executed it.
func (w *Weaver) After(st *Sites, i uint32, code string) error {
	return w.Around(st, i, "", code)
}

// Around puts code before and behind instruction i. Both parts are in one
// scope: what the first declares, the second can use, for example an address
// that the instruction overwrites.
func (w *Weaver) Around(st *Sites, i uint32, before, after string) error {
	s := &w.f.Stmts[i]
	switch {
	case s.Kind != StmtInstr:
		return w.refuse(i, "not an instruction")
	case after == "":
		return w.Before(st, i, before)
	case w.f.flowOf(s) != flowNext && !s.Guarded():
		return w.refuse(i, "nothing runs after it")
	case w.f.flowOf(s) != flowNext:
		return w.refuse(i, "threads that execute it do not come to the next statement")
	}
	if c := st.chainAt(i); c != nil && (carries(before) || carries(after)) {
		return w.refuse(i, "inside a carry chain, and the probe needs the carry flag")
	}
	guard := w.f.Text(s.Guard)
	args := w.f.Args(s)
	if c := st.chainAt(i); c != nil && before == "" && guard == "" && i < c.Last && !w.touched(i+1, c.Last+1, after) {
		w.edits.InsertAfter(w.f.Stmts[c.Last].End, "\n\t"+w.wrap(s, "", after))
		return nil
	}
	if before == "" && (guard == "" || len(args) == 0 || !w.f.mentions(&args[0], guard)) {
		w.edits.InsertAfter(s.End, "\n\t"+w.wrap(s, guard, after))
		return nil
	}
	open, held := "{\n", guard
	if guard != "" && len(args) > 0 && w.f.mentions(&args[0], guard) {
		held = w.Fresh('%', "p")
		open += "\t.reg .pred " + held + ";\n\tmov.pred " + held + ", " + guard + ";\n"
	}
	// The declarations of the first part must be seen by the second, so only
	// its instructions can be skipped, not its scope.
	if before != "" {
		open += w.skip(s, guard, before) + "\n"
	}
	w.edits.InsertBefore(w.f.front(i), open+"\t")
	w.edits.InsertAfter(s.End, "\n"+w.skip(s, held, after)+"\n\t}")
	return nil
}

func (w *Weaver) refuse(i uint32, reason string) error {
	return &SiteError{w.f.Position(w.f.Stmts[i].Pos), reason}
}

// wrap gives code a scope, for the threads in which guard holds as s has it.
func (w *Weaver) wrap(s *Stmt, guard, code string) string {
	return "{\n" + w.skip(s, guard, code) + "\n\t}"
}

// skip lets the threads in which the guard does not hold go past code.
func (w *Weaver) skip(s *Stmt, guard, code string) string {
	code = strings.TrimSuffix(code, "\n")
	if guard == "" || code == "" {
		return code
	}
	inverse := "\t@!"
	if s.Flags&GuardNot != 0 {
		inverse = "\t@"
	}
	label := w.Fresh('$', "skip")
	return inverse + guard + " bra " + label + ";\n" + code + "\n" + label + ":"
}

// front returns where text before statement i goes. A pragma that speaks of the
// next instruction stays with it.
func (f *File) front(i uint32) Pos {
	for range 8 { // more in a row say the same thing again
		if i == 0 {
			break
		}
		s := &f.Stmts[i-1]
		if s.Kind != StmtDirective || f.Text(s.Name) != ".pragma" || !strings.Contains(f.Text(s.Span()), "used_bytes_mask") {
			break
		}
		i--
	}
	return f.Stmts[i].Pos
}

// chainAt returns the carry chain that statement i stands in, or nil.
func (st *Sites) chainAt(i uint32) *Chain {
	lo, hi := 0, len(st.Chains)
	for lo < hi {
		if mid := (lo + hi) / 2; st.Chains[mid].Last < i {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(st.Chains) && st.Chains[lo].First <= i {
		return &st.Chains[lo]
	}
	return nil
}

// inChain reports whether a probe before statement i would stand between an
// instruction that sets the carry flag and one that reads it.
func (st *Sites) inChain(i uint32) bool {
	c := st.chainAt(i)
	return c != nil && i > c.First
}

// touched reports whether code could see other values on the other side of the
// statements [from, to): whether it names a register that one of them writes, or
// one of them may change memory.
func (w *Weaver) touched(from, to uint32, code string) bool {
	for i := from; i < to; i++ {
		s := &w.f.Stmts[i]
		if s.Kind != StmtInstr {
			continue
		}
		switch s.Op {
		case OpSt, OpAtom, OpRed, OpCall:
			return true
		}
		args := w.f.Args(s)
		if len(args) == 0 {
			continue
		}
		for t := range Lex(code) {
			if t.Kind == TokIdent && w.f.mentions(&args[0], code[t.Pos:t.End]) {
				return true
			}
		}
	}
	return false
}

// carries reports whether code uses the carry flag.
func carries(code string) bool {
	for t := range Lex(code) {
		switch t.Kind {
		case TokDirective:
			if code[t.Pos:t.End] == ".cc" {
				return true
			}
		case TokIdent:
			if op := opOf(code[t.Pos:t.End]); op == OpAddc || op == OpSubc || op == OpMadc {
				return true
			}
		}
	}
	return false
}
