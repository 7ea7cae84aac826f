// Package facts reads and writes nvattach/api/facts: what NVIDIA's public
// headers declare, a fact a line, with the releases in which it holds.
package facts

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Set is the facts about one library.
type Set struct {
	Library  string
	Releases []Release // ascending
	Types    Table
	Funcs    Table
}

// Table holds facts by name, then by release, each as compact JSON.
type Table map[string]map[string]string

// Release is a release of the toolkit, and what the library was in it.
type Release struct {
	Name  string `json:"release"`
	Major int    `json:"major"` // of the file's name; 0: without meaning
}

// NewSet returns an empty set.
func NewSet(library string) *Set { return &Set{Library: library, Types: Table{}, Funcs: Table{}} }

// Put notes a fact of a release.
func (t Table) Put(name, release string, fact any) error {
	b, err := json.Marshal(fact)
	if err != nil {
		return err
	}
	if t[name] == nil {
		t[name] = map[string]string{}
	}
	t[name][release] = string(b)
	return nil
}

// Add makes r a release of s and forgets what was known of it.
func (s *Set) Add(r Release) {
	s.Releases = slices.DeleteFunc(s.Releases, func(old Release) bool { return old.Name == r.Name })
	s.Releases = append(s.Releases, r)
	slices.SortFunc(s.Releases, func(a, b Release) int { return compareReleases(a.Name, b.Name) })
	for _, t := range []Table{s.Types, s.Funcs} {
		for _, facts := range t {
			delete(facts, r.Name)
		}
	}
}

func compareReleases(a, b string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(as), len(bs)) {
		x, _ := strconv.Atoi(as[i])
		y, _ := strconv.Atoi(bs[i])
		if c := cmp.Compare(x, y); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(as), len(bs))
}

// line is a line of a file.
type line struct {
	Type string          `json:"t,omitempty"`
	Func string          `json:"f,omitempty"`
	Span string          `json:"v,omitempty"`
	Fact json.RawMessage `json:"d,omitempty"`
}

// Append appends the file's text: the releases, then types, then functions.
func (s *Set) Append(dst []byte) ([]byte, error) {
	head, err := json.Marshal(s.Releases)
	if err != nil {
		return nil, err
	}
	dst = append(append(dst, head...), '\n')
	for i, t := range []Table{s.Types, s.Funcs} {
		for _, name := range slices.Sorted(maps.Keys(t)) {
			for _, l := range s.spans(t[name]) {
				if i == 0 {
					l.Type = name
				} else {
					l.Func = name
				}
				b, err := json.Marshal(l)
				if err != nil {
					return nil, err
				}
				dst = append(append(dst, b...), '\n')
			}
		}
	}
	return dst, nil
}

// spans groups a fact's releases: one line for each form that it had.
func (s *Set) spans(by map[string]string) (lines []line) {
	at := map[string]int{}
	open := ""
	for i, r := range s.Releases {
		fact, ok := by[r.Name]
		if !ok {
			open = ""
			continue
		}
		n, known := at[fact]
		if !known {
			n = len(lines)
			at[fact] = n
			lines = append(lines, line{Fact: json.RawMessage(fact)})
		}
		if fact != open {
			if lines[n].Span != "" {
				lines[n].Span += ","
			}
			lines[n].Span += r.Name + "-"
		}
		open = fact
		if i+1 < len(s.Releases) && by[s.Releases[i+1].Name] != fact {
			lines[n].Span += r.Name
		}
	}
	return lines
}

// Parse reads the text of a file.
func Parse(library string, text []byte) (*Set, error) {
	s := NewSet(library)
	sc := bufio.NewScanner(bytes.NewReader(text))
	sc.Buffer(nil, 4<<20)
	for n := 1; sc.Scan(); n++ {
		if n == 1 {
			if err := json.Unmarshal(sc.Bytes(), &s.Releases); err != nil {
				return nil, fmt.Errorf("%s: line 1: %w", library, err)
			}
			continue
		}
		var l line
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", library, n, err)
		}
		t, name := s.Types, l.Type
		if l.Func != "" {
			t, name = s.Funcs, l.Func
		}
		if err := s.unspan(t, name, l); err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", library, n, err)
		}
	}
	return s, sc.Err()
}

func (s *Set) unspan(t Table, name string, l line) error {
	for span := range strings.SplitSeq(l.Span, ",") {
		first, last, ok := strings.Cut(span, "-")
		from := slices.IndexFunc(s.Releases, func(r Release) bool { return r.Name == first })
		to := len(s.Releases) - 1
		if last != "" {
			to = slices.IndexFunc(s.Releases, func(r Release) bool { return r.Name == last })
		}
		if !ok || from < 0 || to < from {
			return fmt.Errorf("span %q", span)
		}
		for _, r := range s.Releases[from : to+1] {
			if err := t.Put(name, r.Name, l.Fact); err != nil {
				return err
			}
		}
	}
	return nil
}

// Read reads the facts of all libraries in a folder, by name.
func Read(dir string) ([]*Set, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	var sets []*Set
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		s, err := Parse(strings.TrimSuffix(filepath.Base(f), ".jsonl"), text)
		if err != nil {
			return nil, err
		}
		sets = append(sets, s)
	}
	if len(sets) == 0 {
		return nil, fmt.Errorf("%s: no facts (*.jsonl) in it", dir)
	}
	return sets, nil
}

// Write writes s to its file in a folder.
func (s *Set) Write(dir string) error {
	b, err := s.Append(nil)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, s.Library+".jsonl"), b, 0o644)
}
