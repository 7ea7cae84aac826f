package ptx

import (
	"fmt"
	"sort"
	"strings"
	"sync"
)

// lineTable holds the offset of every line's first byte, made on first use:
// most parses never ask for a line.
type lineTable struct {
	once   sync.Once
	starts []Pos
}

// A Position is a place in a source for a reader. Line and Col are 1-based and
// Col counts bytes.
type Position struct {
	File      string
	Line, Col int
}

// String returns "file:line:col".
func (p Position) String() string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Col) }

func (t *lineTable) load(src string) []Pos {
	t.once.Do(func() {
		starts := make([]Pos, 1, 1+strings.Count(src, "\n"))
		for i := 0; ; {
			n := strings.IndexByte(src[i:], '\n')
			if n < 0 {
				break
			}
			i += n + 1
			starts = append(starts, Pos(i))
		}
		t.starts = starts
	})
	return t.starts
}

// Position returns the line and column of p in the source of f.
func (f *File) Position(p Pos) Position {
	starts := f.lines.load(f.Src)
	n := sort.Search(len(starts), func(i int) bool { return starts[i] > p })
	return Position{f.Name, n, int(p-starts[n-1]) + 1}
}

// A Loc is what a .loc directive says: where the statements after it come from.
// File is an index for File.sourceFile; 0 in all fields means unknown.
type Loc struct {
	File, Line, Col uint32

	// Function is the label that names the inlined function in .debug_str, and
	// InlinedFile, InlinedLine and InlinedCol the place it was inlined into;
	// zero when the statement was not inlined.
	Function                             string
	InlinedFile, InlinedLine, InlinedCol uint32
}

// loc returns what a StmtLoc says; it panics for other statements.
func (f *File) loc(s *Stmt) Loc {
	if s.Kind != StmtLoc {
		panic("BUG: ptx: File.loc of a statement that is no StmtLoc")
	}
	p := parser{f: f, src: f.Src[:s.End], end: int(s.Name.End)}
	p.next()
	l := Loc{File: p.number(), Line: p.number(), Col: p.number()}
	for p.c == ',' {
		p.next()
		word := p.text()
		p.next()
		if word == "inlined_at" {
			l.InlinedFile, l.InlinedLine, l.InlinedCol = p.number(), p.number(), p.number()
			continue
		}
		l.Function = p.text()
		p.next()
		if p.c == '+' {
			p.next()
			p.next()
		}
	}
	return l
}

// number consumes an integer; values beyond 32 bits become the largest one.
func (p *parser) number() uint32 {
	if p.tok != TokInt {
		return 0
	}
	v, _ := intValue(p.text())
	p.next()
	return uint32(min(v.bits, 1<<32-1))
}

// sourceFile returns the index and the name of a StmtFile, the quotes removed
// and the rest as written; it panics for other statements.
func (f *File) sourceFile(s *Stmt) (index uint32, name string) {
	if s.Kind != StmtFile {
		panic("BUG: ptx: File.sourceFile of a statement that is no StmtFile")
	}
	p := parser{f: f, src: f.Src[:s.End], end: int(s.Name.End)}
	p.next()
	index = p.number()
	return index, p.src[p.pos+1 : p.end-1]
}

// SourceFiles returns the names of all .file directives by index. Of two with
// the same index the last counts.
func (f *File) SourceFiles() map[uint32]string {
	names := map[uint32]string{}
	for i := range f.Stmts {
		if s := &f.Stmts[i]; s.Kind == StmtFile {
			n, name := f.sourceFile(s)
			names[n] = name
		}
	}
	return names
}

// Loc returns the .loc that statement i of the File stands under: the nearest
// before it in the function. ok is false when there is none.
func (st *Sites) Loc(f *File, i uint32) (l Loc, ok bool) {
	n := sort.Search(len(st.locs), func(k int) bool { return st.locs[k] > i })
	if n == 0 {
		return Loc{}, false
	}
	return f.loc(&f.Stmts[st.locs[n-1]]), true
}
