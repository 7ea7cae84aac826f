// Package cpp is a C preprocessor: it expands what includes, conditions and macros
// say, and keeps every macro for those who want its value. It covers what ABI
// headers use, and reports what it cannot read instead of guessing.
package cpp

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"nvtrace/internal/gen/ctoken"
)

// Macro is a macro definition.
type Macro struct {
	Name   string
	Func   bool // takes arguments
	Body   []ctoken.Token
	File   string
	params []string
	vararg bool
}

// Preprocessor expands one unit of translation. It keeps every macro that it
// meets.
type Preprocessor struct {
	Files   []string          // headers read, in order of their first use
	Order   []string          // names of all macros, in order of their first definition
	All     map[string]*Macro // their last definitions, also of those undefined later
	Missing []string          // headers that were included and not found
	Out     []ctoken.Token    // the expanded text

	fsys  fs.FS
	dirs  []string
	stubs map[string]string
	now   map[string]*Macro
	once  map[string]bool
	run   []ctoken.Token // text that waits to be expanded
	depth int
	work  int // tokens handled by expansion so far
	limit int
	errs  []error
}

// NewPreprocessor prepares a unit: fsys holds the sources, dirs are the include
// directories in it, stubs stand in for system headers, and predefined is read
// first.
func NewPreprocessor(fsys fs.FS, dirs []string, stubs map[string]string, predefined string) *Preprocessor {
	p := &Preprocessor{fsys: fsys, dirs: dirs, stubs: stubs, now: map[string]*Macro{}, All: map[string]*Macro{}, once: map[string]bool{}, limit: maxWork}
	p.text("<predefined>", predefined)
	p.All, p.Order = map[string]*Macro{}, nil
	return p
}

// Read reads a header by its path.
func (p *Preprocessor) Read(name string) error {
	b, err := fs.ReadFile(p.fsys, name)
	if err != nil {
		return err
	}
	p.text(name, string(b))
	return nil
}

// Errors returns what could not be made sense of.
func (p *Preprocessor) Errors() []error { return p.errs }

func (p *Preprocessor) fail(format string, a ...any) {
	p.errs = append(p.errs, fmt.Errorf(format, a...))
}

func (p *Preprocessor) find(name string, quote bool, from string) (string, string, bool) {
	if quote && from[0] != '<' {
		f := path.Join(path.Dir(from), name)
		if b, err := fs.ReadFile(p.fsys, f); err == nil {
			return f, string(b), true
		}
	}
	if s, ok := p.stubs[name]; ok {
		return "<" + name + ">", s, true
	}
	for _, d := range p.dirs {
		f := path.Join(d, name)
		if b, err := fs.ReadFile(p.fsys, f); err == nil {
			return f, string(b), true
		}
	}
	return "", "", false
}

// branch is an #if that is open.
type branch struct {
	live   bool // its text counts
	taken  bool // one of its alternatives did
	parent bool // the text around it counts
}

const maxIncludes = 60

func (p *Preprocessor) text(file, s string) {
	if p.once[file] {
		return
	}
	if p.depth > maxIncludes {
		p.fail("%s: included too deeply", file)
		return
	}
	p.depth++
	defer func() { p.depth-- }()
	if file[0] != '<' {
		p.Files = append(p.Files, file)
	}
	st := []branch{{true, true, true}}
	for _, line := range ctoken.Lines(s) {
		line = strings.TrimLeft(line, " \t")
		live := st[len(st)-1].live
		switch {
		case line == "":
		case line[0] == '#':
			p.flush()
			st = p.directive(file, line[1:], st)
		case live:
			l := ctoken.Lex(line)
			if len(l) > 0 {
				l[0].Space = true
			}
			p.run = append(p.run, l...)
		}
	}
	if len(st) != 1 {
		p.fail("%s: #if without #endif", file)
	}
	p.flush()
}

// directive obeys one line after #.
func (p *Preprocessor) directive(file, line string, st []branch) []branch {
	l := ctoken.Lex(line)
	if len(l) == 0 {
		return st
	}
	top := &st[len(st)-1]
	rest := l[1:]
	switch l[0].Text {
	case "if", "ifdef", "ifndef":
		v := top.live && p.opens(l[0].Text, rest)
		return append(st, branch{top.live && v, v, top.live})
	case "elif":
		v := top.parent && !top.taken && p.condition(rest)
		top.live, top.taken = v, top.taken || v
		return st
	case "else":
		top.live, top.taken = top.parent && !top.taken, true
		return st
	case "endif":
		if len(st) == 1 {
			p.fail("%s: #endif without #if", file)
			return st
		}
		return st[:len(st)-1]
	}
	if !top.live {
		return st
	}
	switch l[0].Text {
	case "define":
		p.define(rest, file)
	case "undef":
		if len(rest) > 0 {
			delete(p.now, rest[0].Text)
		}
	case "pragma":
		p.pragma(file, rest)
	case "include":
		p.include(file, line, rest)
	case "error":
		p.fail("%s: #error%s", file, strings.TrimPrefix(line, "error"))
	}
	return st
}

func (p *Preprocessor) opens(what string, rest []ctoken.Token) bool {
	if what == "if" {
		return p.condition(rest)
	}
	defined := len(rest) > 0 && p.now[rest[0].Text] != nil
	return defined == (what == "ifdef")
}

func (p *Preprocessor) pragma(file string, l []ctoken.Token) {
	switch {
	case len(l) > 0 && l[0].Text == "once":
		p.once[file] = true
	case len(l) > 0 && l[0].Text == "pack":
		p.run = slices.Concat(p.run, ctoken.Lex(" __pragma("), l, ctoken.Lex(")"))
	}
}

func (p *Preprocessor) include(file, line string, rest []ctoken.Token) {
	raw := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "include"))
	if raw == "" || raw[0] != '"' && raw[0] != '<' {
		var b strings.Builder
		for _, t := range p.Expand(rest) {
			b.WriteString(t.Text)
		}
		raw = b.String()
	}
	end := ">"
	if strings.HasPrefix(raw, `"`) {
		end = `"`
	}
	if len(raw) < 2 {
		p.fail("%s: #include of nothing", file)
		return
	}
	name, _, ok := strings.Cut(raw[1:], end)
	if !ok {
		p.fail("%s: malformed #include %s", file, raw)
		return
	}
	f, s, ok := p.find(name, end == `"`, file)
	if !ok {
		p.Missing = append(p.Missing, name)
		return
	}
	p.text(f, s)
}

func (p *Preprocessor) flush() {
	if len(p.run) > 0 {
		r := p.run
		p.run = nil
		p.Out = append(p.Out, p.Expand(r)...)
	}
}

func (p *Preprocessor) define(l []ctoken.Token, file string) {
	if len(l) == 0 {
		return
	}
	m := &Macro{Name: l[0].Text, File: file}
	l = l[1:]
	if len(l) > 0 && l[0].Text == "(" && !l[0].Space {
		m.Func = true
		i := 1
		for ; i < len(l) && l[i].Text != ")"; i++ {
			switch l[i].Text {
			case ",":
			case "...":
				m.vararg = true
				m.params = append(m.params, "__VA_ARGS__")
			default:
				m.params = append(m.params, l[i].Text)
			}
		}
		l = l[min(i+1, len(l)):]
	}
	m.Body = l
	if p.All[m.Name] == nil {
		p.Order = append(p.Order, m.Name)
	}
	p.now[m.Name], p.All[m.Name] = m, m
}

// condition evaluates the expression of an #if.
func (p *Preprocessor) condition(l []ctoken.Token) bool {
	var r []ctoken.Token
	for i := 0; i < len(l); i++ {
		if l[i].Text != "defined" {
			r = append(r, l[i])
			continue
		}
		name := ""
		switch {
		case i+2 < len(l) && l[i+1].Text == "(":
			name = l[i+2].Text
			i += 3
		case i+1 < len(l):
			name = l[i+1].Text
			i++
		}
		v := "0"
		if p.now[name] != nil {
			v = "1"
		}
		r = append(r, ctoken.Token{Kind: ctoken.Number, Text: v})
	}
	e := ctoken.Evaluator{Cursor: &ctoken.Cursor{Tokens: p.Expand(r)}, Wide: true, Zero: true}
	v, err := e.Whole()
	return err == nil && v.Int != 0
}
