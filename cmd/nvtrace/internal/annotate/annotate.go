// Package annotate shows what probes counted beside the lines of source, or the instructions, that it is about.
package annotate

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"nvtrace/fatbin"
)

// A Listing is what was counted in kernels.
type Listing struct {
	Kernels []Kernel `json:"kernels"`
}

// A Kernel is a kernel, or a device function, in which something was counted.
type Kernel struct {
	Name         string        `json:"kernel"`
	Demangled    string        `json:"demangled"`
	Total        int64         `json:"total"`
	Lines        []Line        `json:"lines"`        // those whose line is known, by file and line
	Instructions []Instruction `json:"instructions"` // in the order of the code
}

// A Line is a line of the source.
type Line struct {
	File  string `json:"file"`
	Line  int    `json:"line"`
	Count int64  `json:"count"`
}

// An Instruction is one at which something was counted.
type Instruction struct {
	Insn  int    `json:"insn"` // instructions of the function before it
	Text  string `json:"instruction"`
	File  string `json:"file,omitempty"`
	Line  int    `json:"line,omitempty"`
	Count int64  `json:"count"`
}

// place is a key of a map, as the script language writes it.
type place struct {
	Kernel      string `json:"kernel"`
	Insn        int    `json:"insn"`
	Instruction string `json:"instruction"`
	File        string `json:"file"`
	Line        int    `json:"line"`
}

// part is a part of a document of maps: a map, or what was said of a kernel.
type part struct {
	Map     string
	Entries []struct {
		Key   any
		Value json.RawMessage
	}
}

// Read reads a document of --maps=json: the sums of its map that has places as keys.
func Read(document []byte) (*Listing, error) {
	var parts []part
	if err := json.Unmarshal(document, &parts); err != nil {
		return nil, fmt.Errorf("not what --maps=json writes: %w", err)
	}
	found := ""
	sums := make(map[place]int64)
	for _, p := range parts {
		for _, entry := range p.Entries {
			at, ok := placeIn(entry.Key)
			if !ok {
				continue
			}
			if found != "" && found != p.Map {
				return nil, fmt.Errorf("%s and %s both have places as keys: which is meant is not known", found, p.Map)
			}
			found = p.Map
			var n int64
			if err := json.Unmarshal(entry.Value, &n); err != nil {
				return nil, fmt.Errorf("the values of %s are no whole numbers", p.Map)
			}
			sums[at] += n
		}
	}
	if found == "" {
		if len(parts) > 0 && !slices.ContainsFunc(parts, func(p part) bool { return len(p.Entries) > 0 }) {
			return nil, errors.New("nothing was counted")
		}
		return nil, errors.New("no map has places as keys; to count accesses by them: -e 'mem:* { @[place] = count(); }'")
	}
	return newListing(sums), nil
}

// placeIn finds the place in a key.
func placeIn(key any) (at place, ok bool) {
	parts, _ := key.([]any) // objects have keys of other forms
	for _, k := range parts {
		text, _ := k.(string)
		if strings.HasPrefix(text, `{"kernel":`) && json.Unmarshal([]byte(text), &at) == nil {
			return at, true
		}
	}
	return place{}, false
}

func newListing(sums map[place]int64) *Listing {
	type at struct {
		file string
		line int
	}
	kernels, lines := make(map[string]*Kernel), make(map[string]map[at]int64)
	for p, n := range sums {
		k := kernels[p.Kernel]
		if k == nil {
			k = &Kernel{Name: p.Kernel, Demangled: fatbin.Demangle(p.Kernel), Lines: []Line{}}
			kernels[p.Kernel], lines[p.Kernel] = k, make(map[at]int64)
		}
		k.Total += n
		k.Instructions = append(k.Instructions, Instruction{Insn: p.Insn, Text: p.Instruction, File: p.File, Line: p.Line, Count: n})
		if p.File != "" && p.Line > 0 {
			lines[p.Kernel][at{p.File, p.Line}] += n
		}
	}
	l := &Listing{Kernels: []Kernel{}}
	for name, k := range kernels {
		for a, n := range lines[name] {
			k.Lines = append(k.Lines, Line{a.file, a.line, n})
		}
		slices.SortFunc(k.Lines, func(a, b Line) int {
			return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
		})
		slices.SortFunc(k.Instructions, func(a, b Instruction) int {
			return cmp.Or(cmp.Compare(a.Insn, b.Insn), strings.Compare(a.Text, b.Text))
		})
		l.Kernels = append(l.Kernels, *k)
	}
	slices.SortFunc(l.Kernels, func(a, b Kernel) int { // what costs most comes first
		return cmp.Or(cmp.Compare(b.Total, a.Total), strings.Compare(a.Name, b.Name))
	})
	return l
}

// What is shown around lines that were counted.
const (
	around = 2 // lines before the first, and behind the last
	gap    = 5 // lines without a count that are shown between two with one
)

// Text writes the listing: by lines of the source where they are known, by instructions elsewhere or where that is
// wanted.
func (l *Listing) Text(w io.Writer, instructions bool) error {
	sources := make(map[string]source)
	var b strings.Builder
	for i := range l.Kernels {
		k := &l.Kernels[i]
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "%s: %d", k.Demangled, k.Total)
		if !instructions && len(k.Lines) == 0 {
			b.WriteString(" (no line is known: compile with -lineinfo)")
		}
		b.WriteString("\n")
		if instructions || len(k.Lines) == 0 {
			k.instructions(&b)
		} else {
			k.lines(&b, sources)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// share returns a part of the kernel's sum, in percent.
func (k *Kernel) share(n int64) string {
	if k.Total == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f", 100*float64(n)/float64(k.Total))
}

func (k *Kernel) instructions(b *strings.Builder) {
	fmt.Fprintf(b, "%14s %6s %6s  %s\n", "COUNT", "%", "INSN", "INSTRUCTION")
	next := 0
	for _, in := range k.Instructions {
		if in.Insn > next {
			fmt.Fprintf(b, "%29s  …\n", "")
		}
		next = in.Insn + 1
		fmt.Fprintf(b, "%14d %6s %6d  %s\n", in.Count, k.share(in.Count), in.Insn, in.Text)
	}
}

func (k *Kernel) lines(b *strings.Builder, sources map[string]source) {
	rest := k.Total
	for from := 0; from < len(k.Lines); {
		name := k.Lines[from].File
		to := from
		for to < len(k.Lines) && k.Lines[to].File == name {
			rest -= k.Lines[to].Count
			to++
		}
		text, ok := sources[name]
		if !ok {
			text = readSource(name)
			sources[name] = text
		}
		k.file(b, name, text, k.Lines[from:to])
		from = to
	}
	if rest != 0 {
		fmt.Fprintf(b, "%14d %6s %6s  (instructions of no known line)\n", rest, k.share(rest), "")
	}
}

// file shows the lines of one file.
func (k *Kernel) file(b *strings.Builder, name string, of source, lines []Line) {
	source, title := of.lines, name
	switch {
	case source == nil:
		title += " (not found here: its lines are not shown)"
	case of.name != name:
		title += " (its lines are those of " + of.name + " here)"
	}
	fmt.Fprintf(b, "%14s %6s %6s  %s\n", "COUNT", "%", "LINE", title)
	bare := func(from, to int) {
		for n := max(from, 1); n <= min(to, len(source)); n++ {
			fmt.Fprintf(b, "%14s %6s %6d  %s\n", "", "", n, source[n-1])
		}
	}
	last := lines[0].Line - around - 1
	for _, l := range lines {
		if l.Line-last-1 > gap+around {
			bare(last+1, last+around)
			fmt.Fprintf(b, "%29s  …\n", "")
			last = l.Line - around - 1
		}
		bare(last+1, l.Line-1)
		text := ""
		if l.Line <= len(source) {
			text = source[l.Line-1]
		}
		fmt.Fprintf(b, "%14d %6s %6d  %s\n", l.Count, k.share(l.Count), l.Line, text)
		last = l.Line
	}
	bare(last+1, last+around)
}

// mostSource bounds a file that is read as a source.
const mostSource = 64 << 20

// A source is the file that lines are shown of.
type source struct {
	name  string
	lines []string // nil: it is not here
}

// readSource reads a source, as its name says or in this folder.
func readSource(name string) source {
	for _, at := range []string{name, path.Base(name)} {
		if st, err := os.Stat(at); err != nil || !st.Mode().IsRegular() || st.Size() > mostSource {
			continue
		}
		if b, err := os.ReadFile(at); err == nil {
			return source{at, strings.Split(strings.ReplaceAll(string(b), "\t", "    "), "\n")}
		}
	}
	return source{}
}
