package ptx

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// ReportOptions says how [WriteSites] and [CheckReport.Write] write. Nil means text
// about all functions.
type ReportOptions struct {
	JSON bool   // one JSON value instead of text
	Func string // only this function; "" for all
}

// SiteReport is what WriteSites says about one function; the JSON form is an
// array of these.
type SiteReport struct {
	Kind   string      `json:"kind"` // "entry" or "func"
	Name   string      `json:"name"`
	Pos    string      `json:"pos"` // line:col
	Params []ParamJSON `json:"params"`
	Regs   []RegJSON   `json:"regs"`
	Entry  string      `json:"entry"`
	Sites  []SiteJSON  `json:"sites"`
	Blocks []BlockJSON `json:"blocks"`
}

// ParamJSON is a parameter in a SiteReport; Ret says that it is a return value.
type ParamJSON struct {
	Name   string `json:"name"`
	Type   string `json:"type"`
	Offset uint64 `json:"offset"`
	Size   uint64 `json:"size"`
	Align  uint64 `json:"align"`
	Ptr    string `json:"ptr,omitempty"` // state space of a .ptr parameter
	Ret    bool   `json:"ret,omitempty"`
}

// RegJSON is a register declaration in a SiteReport.
type RegJSON struct {
	Name  string `json:"name"`
	Type  string `json:"type"`
	Count uint32 `json:"count,omitempty"`
	Depth int    `json:"depth,omitempty"`
}

// SiteJSON is one place in a SiteReport.
type SiteJSON struct {
	Pos    string   `json:"pos"`
	Kind   string   `json:"kind"` // "exit", "trap", "call", "sync", "chain" or an access class
	Instr  string   `json:"instr,omitempty"`
	Guard  string   `json:"guard,omitempty"` // "%p1", "!%p1"
	Space  string   `json:"space,omitempty"`
	Type   string   `json:"type,omitempty"`
	Vec    uint8    `json:"vec,omitempty"`
	Bytes  uint32   `json:"bytes,omitempty"`
	Addr   string   `json:"addr,omitempty"`
	Notes  []string `json:"notes,omitempty"`
	Source string   `json:"source,omitempty"` // file:line of the .loc it stands under
}

// BlockJSON is a basic block in a SiteReport.
type BlockJSON struct {
	Pos   string `json:"pos"`
	Last  string `json:"last"`
	Succs []int  `json:"succs"`
	Dead  bool   `json:"dead,omitempty"`
}

// WriteSites writes what is in the functions of f that have a body: parameters,
// registers, exits, memory accesses, calls, synchronisation and blocks. The
// error is the writer's, or says that there is no such function.
func WriteSites(w io.Writer, f *File, o *ReportOptions) error {
	if o == nil {
		o = &ReportOptions{}
	}
	files := f.SourceFiles()
	reports := []SiteReport{}
	for i := range f.Funcs {
		fn := &f.Funcs[i]
		if fn.HasBody() && (o.Func == "" || f.Text(fn.Name) == o.Func) {
			reports = append(reports, f.siteReport(fn, files))
		}
	}
	if o.Func != "" && len(reports) == 0 {
		return fmt.Errorf("%s: no function %s with a body", f.Name, o.Func)
	}
	if o.JSON {
		return writeJSON(w, reports)
	}
	b := bufio.NewWriter(w)
	for i := range reports {
		reports[i].text(b)
	}
	return b.Flush()
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func (f *File) lineCol(p Pos) string {
	at := f.Position(p)
	return fmt.Sprintf("%d:%d", at.Line, at.Col)
}

func (f *File) siteReport(fn *Func, files map[uint32]string) SiteReport {
	st := f.Sites(fn)
	r := SiteReport{Kind: "func", Name: st.Name, Pos: f.lineCol(fn.Pos), Entry: f.lineCol(st.Entry)}
	r.Params, r.Regs, r.Blocks = []ParamJSON{}, []RegJSON{}, []BlockJSON{} // not null in JSON
	if fn.Kind == FuncEntry {
		r.Kind = "entry"
	}
	for _, p := range st.Returns {
		r.Params = append(r.Params, p.json(true))
	}
	for _, p := range st.Params {
		r.Params = append(r.Params, p.json(false))
	}
	for _, g := range st.Regs {
		r.Regs = append(r.Regs, RegJSON{g.Name, g.Type.String(), g.Count, g.Depth})
	}
	for i := range st.Blocks {
		b := &st.Blocks[i]
		r.Blocks = append(r.Blocks, BlockJSON{f.lineCol(f.Stmts[b.First].Pos), f.lineCol(f.Stmts[b.Last].Pos), append([]int{}, b.Succs...), !b.Reachable})
	}
	r.Sites = (&siteLister{f: f, st: st, files: files, out: []SiteJSON{}}).list()
	return r
}

func (p *Param) json(ret bool) ParamJSON {
	j := ParamJSON{Name: p.Name, Type: p.Type.String(), Offset: p.Offset, Size: p.Size, Align: p.Align, Ret: ret}
	if p.Pointer {
		j.Ptr = p.PtrSpace.String()
	}
	return j
}

// siteLister merges the kinds of sites of a function by statement.
type siteLister struct {
	f     *File
	st    *Sites
	files map[uint32]string
	loc   string // file:line of the last .loc
	out   []SiteJSON
}

func (l *siteLister) list() []SiteJSON {
	st := l.st
	var exit, access, call, sync, trap, chain int
	for i := st.Func.Open + 1; i <= st.Func.Close; i++ {
		s := &l.f.Stmts[i]
		if s.Kind == StmtLoc {
			loc := l.f.loc(s)
			name, ok := l.files[loc.File]
			if !ok {
				name = fmt.Sprintf("file %d", loc.File)
			}
			l.loc = fmt.Sprintf("%s:%d", name, loc.Line)
			if loc.InlinedLine != 0 {
				l.loc += fmt.Sprintf(" inlined at %d", loc.InlinedLine)
			}
		}
		for ; chain < len(st.Chains) && st.Chains[chain].First == i; chain++ {
			l.add(i, "chain", SiteJSON{Notes: []string{"to " + l.f.lineCol(l.f.Stmts[st.Chains[chain].Last].Pos)}})
		}
		for ; access < len(st.Accesses) && st.Accesses[access].Stmt == i; access++ {
			l.access(&st.Accesses[access])
		}
		for ; call < len(st.Calls) && st.Calls[call].Stmt == i; call++ {
			l.call(&st.Calls[call])
		}
		for ; sync < len(st.Syncs) && st.Syncs[sync].Stmt == i; sync++ {
			l.add(i, "sync", SiteJSON{Notes: notes(st.Syncs[sync].Kind.String(), true, "aligned", st.Syncs[sync].Aligned)})
		}
		for ; trap < len(st.Traps) && st.Traps[trap] == i; trap++ {
			l.add(i, "trap", SiteJSON{})
		}
		for ; exit < len(st.Exits) && st.Exits[exit].Stmt == i; exit++ {
			e := &st.Exits[exit]
			l.add(i, "exit", SiteJSON{Notes: notes(e.Kind.String(), true, "uniform", e.Uniform, "after trap", e.AfterTrap, "unreachable", !e.Reachable)})
		}
	}
	return l.out
}

// notes returns the words whose condition holds; arguments come in pairs.
func notes(pairs ...any) (out []string) {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1].(bool) {
			out = append(out, pairs[i].(string))
		}
	}
	return out
}

func (l *siteLister) add(i uint32, kind string, j SiteJSON) {
	s := &l.f.Stmts[i]
	j.Kind, j.Pos, j.Source = kind, l.f.lineCol(s.Pos), l.loc
	if s.Kind == StmtInstr {
		j.Instr = l.f.FullOpcode(s)
	}
	if s.Guarded() {
		j.Guard = l.f.Text(s.Guard)
		if s.Flags&GuardNot != 0 {
			j.Guard = "!" + j.Guard
		}
	}
	if l.st.inChain(i) {
		j.Notes = append(j.Notes, "in carry chain")
	}
	l.out = append(l.out, j)
}

func (l *siteLister) access(a *Access) {
	j := SiteJSON{Space: a.Space.String() + a.Sub, Type: a.Type.String(), Vec: a.Vec, Bytes: a.Bytes}
	if a.Addr != NoOperand {
		j.Addr = l.f.Text(l.f.Args(&l.f.Stmts[a.Stmt])[a.Addr].Span())
	}
	has := func(fl AccessFlags) bool { return a.Flags&fl != 0 }
	j.Notes = notes("reads", has(AccessReads), "writes", has(AccessWrites), "volatile", has(AccessVolatile), "non-coherent", has(AccessNonCoherent),
		"uniform", has(AccessUniform), "tensor map", has(AccessTensor), "descriptor", has(AccessDescriptor),
		"overwrites its address", has(AccessOverwrites), "cache policy", has(AccessPolicy))
	for _, word := range []string{a.Op, a.Sem, a.Scope, a.Cache, a.Evict, a.Fetch} {
		if word != "" {
			j.Notes = append(j.Notes, word)
		}
	}
	l.add(a.Stmt, a.Class.String(), j)
}

func (l *siteLister) call(c *Call) {
	j := SiteJSON{Addr: c.Callee}
	j.Notes = notes("indirect", c.Indirect, "uniform", c.Uniform, "does not return", c.Noreturn, "extern", c.Extern)
	if c.Table != "" {
		j.Notes = append(j.Notes, "by "+c.Table)
	}
	l.add(c.Stmt, "call", j)
}

func (r *SiteReport) text(w io.Writer) {
	fmt.Fprintf(w, ".%s %s at %s, entry probe at %s\n", r.Kind, r.Name, r.Pos, r.Entry)
	for _, p := range r.Params {
		word := "param"
		if p.Ret {
			word = "return"
		}
		fmt.Fprintf(w, "  %s %s %s offset %d size %d align %d", word, p.Name, p.Type, p.Offset, p.Size, p.Align)
		if p.Ptr != "" {
			fmt.Fprintf(w, " pointer to %s", p.Ptr)
		}
		fmt.Fprintln(w)
	}
	for _, g := range r.Regs {
		fmt.Fprintf(w, "  reg %s %s", g.Type, g.Name)
		if g.Count > 0 {
			fmt.Fprintf(w, "<%d>", g.Count)
		}
		if g.Depth > 0 {
			fmt.Fprintf(w, " in scope %d", g.Depth)
		}
		fmt.Fprintln(w)
	}
	for i := range r.Sites {
		fmt.Fprintln(w, "  "+r.Sites[i].text())
	}
	for i, b := range r.Blocks {
		fmt.Fprintf(w, "  block %d %s to %s ->", i, b.Pos, b.Last)
		for _, n := range b.Succs {
			fmt.Fprintf(w, " %d", n)
		}
		if b.Dead {
			fmt.Fprint(w, " unreachable")
		}
		fmt.Fprintln(w)
	}
}

func (j *SiteJSON) text() string {
	words := []string{j.Pos, j.Kind}
	if j.Guard != "" {
		words = append(words, "@"+j.Guard)
	}
	for _, word := range []string{j.Instr, j.Space, j.Addr} {
		if word != "" {
			words = append(words, word)
		}
	}
	if j.Bytes != 0 {
		words = append(words, fmt.Sprintf("%d bytes", j.Bytes))
	}
	line := strings.Join(words, " ")
	if len(j.Notes) > 0 {
		line += " (" + strings.Join(j.Notes, ", ") + ")"
	}
	if j.Source != "" {
		line += " # " + j.Source
	}
	return line
}

// CheckReport is what WriteCheck says; the JSON form is one of these.
type CheckReport struct {
	Version  string   `json:"version"`
	Target   string   `json:"target"`
	Entries  int      `json:"entries"`
	Funcs    int      `json:"funcs"`
	Errors   []string `json:"errors"`   // features that the file's version or target lacks
	Warnings []string `json:"warnings"` // words that are not known

	// Missing is what keeps the CPU machine from executing the file. Check does
	// not fill it in; ptx/emu does.
	Missing []string `json:"missing,omitempty"`
}

// Check returns what can be said of f without an assembler: the features that
// it uses but its version or target does not have, and the opcodes,
// modifiers and directives that are not known.
func (f *File) Check() *CheckReport {
	r := &CheckReport{Version: f.Version.String(), Target: f.Target().String(), Errors: []string{}, Warnings: []string{}}
	if f.Version == (Version{}) {
		r.Errors = append(r.Errors, f.where("")+": no .version directive before this")
	}
	switch {
	case f.Target().SM != 0:
	case len(f.Targets) != 0:
		r.Errors = append(r.Errors, f.where(".target")+": unknown target "+strings.Join(f.Targets, ", "))
	default:
		r.Errors = append(r.Errors, f.where(".version")+": no .target sm_NN directive here")
	}
	for i := range f.Funcs {
		switch f.Funcs[i].Kind {
		case FuncEntry:
			r.Entries++
		case FuncDevice:
			r.Funcs++
		}
	}
	if len(r.Errors) == 0 {
		for _, e := range f.CheckFeatures() {
			r.Errors = append(r.Errors, e.Error())
		}
	}
	unknown := func(s *Stmt) {
		if s.Flags&UnknownWord != 0 {
			r.Warnings = append(r.Warnings, fmt.Sprintf("%s: unknown %s", f.Position(s.Pos), f.Text(s.Name)))
		}
	}
	for i := range f.Stmts {
		s := &f.Stmts[i]
		unknown(s)
		if s.Kind != StmtInstr || s.Flags&UnknownWord != 0 {
			continue
		}
		for m := range f.mods(s) {
			if !knownModifier(m) {
				r.Warnings = append(r.Warnings, fmt.Sprintf("%s: unknown modifier %s of %s", f.Position(s.Pos), m, f.Opcode(s)))
			}
		}
	}
	for i := range f.attrs {
		unknown(&f.attrs[i])
	}
	return r
}

// where returns the position of the directive; of the first statement if it is not there.
func (f *File) where(directive string) string {
	var at Pos
	for i := range f.Stmts {
		s := &f.Stmts[i]
		if i == 0 {
			at = s.Pos
		}
		if s.Kind == StmtDirective && f.Text(s.Name) == directive {
			at = s.Pos
			break
		}
	}
	return f.Position(at).String()
}

// Write writes the report about the file name: errors, warnings and what is
// missing line by line and a closing line of totals. It returns the writer's
// error; ok is false when the report has errors or something is missing.
func (r *CheckReport) Write(w io.Writer, name string, o *ReportOptions) (ok bool, err error) {
	ok = len(r.Errors) == 0 && len(r.Missing) == 0
	if o != nil && o.JSON {
		return ok, writeJSON(w, r)
	}
	b := bufio.NewWriter(w)
	for _, list := range [][]string{r.Errors, r.Warnings, r.Missing} {
		for _, e := range list {
			fmt.Fprintln(b, e)
		}
	}
	fmt.Fprintf(b, "%s: PTX ISA %s, %s, %d entries, %d functions, %d errors, %d warnings",
		name, r.Version, r.Target, r.Entries, r.Funcs, len(r.Errors), len(r.Warnings))
	if len(r.Missing) != 0 {
		fmt.Fprintf(b, ", %d missing", len(r.Missing))
	}
	fmt.Fprintln(b)
	return ok, b.Flush()
}
