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
	once   *sync.Once
	starts *[]Pos
}

// A Position is a place in a source for a reader. Line and Col are 1-based and
// Col counts bytes.
type Position struct {
	File      string
	Line, Col int
}

// String returns "file:line:col".
func (p Position) String() string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Col) }

func newLineTable() lineTable { return lineTable{new(sync.Once), new([]Pos)} }

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
		*t.starts = starts
	})
	return *t.starts
}

// Position returns the line and column of p in the source of f.
func (f *File) Position(p Pos) Position {
	starts := f.lines.load(f.Src)
	n := sort.Search(len(starts), func(i int) bool { return starts[i] > p })
	return Position{f.Name, n, int(p-starts[n-1]) + 1}
}
