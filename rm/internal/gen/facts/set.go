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

// Set is the facts of many versions, every fact once, with the versions it
// holds for.
type Set struct {
	Versions []string // ascending
	Tables   map[string]Table
}

// Table holds the forms of each fact, by key.
type Table map[string][]*Variant

// Variant is one form of a fact and the spans of versions, as indexes into
// [Set.Versions], that have it.
type Variant struct {
	Spans [][2]int
	Data  json.RawMessage
}

// The tables, each a file TABLE.jsonl in the facts directory.
const (
	Types     = "types"
	Scalars   = "scalars"
	Aliases   = "aliases"
	Enums     = "enums"
	Escapes   = "escapes"
	UVM       = "uvm"
	UVMTest   = "uvm_test"
	KMS       = "kms"
	NVSwitch  = "nvswitch"
	NVSwCtl   = "nvswitch_ctl"
	NVLink    = "nvlink"
	DRM       = "drm"
	Controls  = "controls"
	Classes   = "classes"
	Statuses  = "status"
	Flags     = "ctrl_flags"
	Category  = "categories"
	Embeddeds = "embedded"
	Domains   = "domains"
	Roles     = "roles"
	Counts    = "counts"
	Dirs      = "dir"
)

// Names lists the tables in the order in which they are written.
func Names() []string {
	return []string{
		Types, Scalars, Aliases, Enums, Escapes, UVM, UVMTest, KMS, NVSwitch, NVSwCtl, NVLink, DRM,
		Controls, Classes, Statuses, Flags, Category, Embeddeds, Domains, Roles, Counts, Dirs,
	}
}

// NewSet returns a set of no versions.
func NewSet() *Set {
	s := &Set{Tables: map[string]Table{}}
	for _, n := range Names() {
		s.Tables[n] = Table{}
	}
	return s
}

// compareVersions orders driver versions by their numbers.
func compareVersions(a, b string) int {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(x), len(y)) {
		m, _ := strconv.Atoi(x[i])
		n, _ := strconv.Atoi(y[i])
		if c := cmp.Compare(m, n); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(x), len(y))
}

// At returns the fact as version i has it, nil if that version has none.
func (t Table) At(key string, i int) json.RawMessage {
	for _, v := range t[key] {
		for _, s := range v.Spans {
			if s[0] <= i && i <= s[1] {
				return v.Data
			}
		}
	}
	return nil
}

// Add puts one version's facts into the set, replacing what the set has of
// that version.
func (s *Set) Add(f *Facts) error {
	rows, err := f.rows()
	if err != nil {
		return fmt.Errorf("facts of %s: %w", f.Version, err)
	}
	i, known := slices.BinarySearchFunc(s.Versions, f.Version, compareVersions)
	if !known {
		s.Versions = slices.Insert(s.Versions, i, f.Version)
	}
	for name, t := range s.Tables {
		for _, l := range t {
			for _, v := range l {
				v.Spans = without(v.Spans, i, !known)
			}
		}
		for key, d := range rows[name] {
			t.put(key, i, d)
		}
		for key, l := range t {
			l = slices.DeleteFunc(l, func(v *Variant) bool { return len(v.Spans) == 0 })
			if len(l) == 0 {
				delete(t, key)
				continue
			}
			slices.SortFunc(l, func(a, b *Variant) int { return cmp.Compare(a.Spans[0][0], b.Spans[0][0]) })
			t[key] = l
		}
	}
	return nil
}

// Compare lists how one version's facts differ from what the set has of that
// version. It is an error if the set lacks the version.
func (s *Set) Compare(f *Facts) ([]string, error) {
	i, known := slices.BinarySearchFunc(s.Versions, f.Version, compareVersions)
	if !known {
		return nil, fmt.Errorf("no facts of version %s to compare with", f.Version)
	}
	rows, err := f.rows()
	if err != nil {
		return nil, fmt.Errorf("facts of %s: %w", f.Version, err)
	}
	var out []string
	for _, name := range Names() {
		t := s.Tables[name]
		for _, key := range slices.Sorted(maps.Keys(t)) {
			old := t.At(key, i)
			now, ok := rows[name][key]
			switch {
			case old == nil && ok:
				out = append(out, fmt.Sprintf("%s %s: new: %s", name, key, now))
			case old != nil && !ok:
				out = append(out, fmt.Sprintf("%s %s: gone: %s", name, key, old))
			case !bytes.Equal(old, now):
				out = append(out, fmt.Sprintf("%s %s: %s, was %s", name, key, now, old))
			}
		}
		for key, now := range rows[name] {
			if t[key] == nil {
				out = append(out, fmt.Sprintf("%s %s: new: %s", name, key, now))
			}
		}
	}
	return out, nil
}

// without takes index i out of the spans; insert first moves the indexes from i
// on up by one.
func without(spans [][2]int, i int, insert bool) [][2]int {
	var out [][2]int
	for _, s := range spans {
		if insert {
			if s[0] >= i {
				s[0]++
			}
			if s[1] >= i {
				s[1]++
			}
		}
		if i < s[0] || i > s[1] {
			out = append(out, s)
			continue
		}
		if s[0] < i {
			out = append(out, [2]int{s[0], i - 1})
		}
		if i < s[1] {
			out = append(out, [2]int{i + 1, s[1]})
		}
	}
	return out
}

func (t Table) put(key string, i int, d json.RawMessage) {
	for _, v := range t[key] {
		if bytes.Equal(v.Data, d) {
			v.Spans = with(v.Spans, i)
			return
		}
	}
	t[key] = append(t[key], &Variant{Spans: [][2]int{{i, i}}, Data: d})
}

// with adds index i, which no span holds, to the spans.
func with(spans [][2]int, i int) [][2]int {
	at, _ := slices.BinarySearchFunc(spans, i, func(s [2]int, i int) int { return cmp.Compare(s[0], i) })
	spans = slices.Insert(spans, at, [2]int{i, i})
	if at+1 < len(spans) && spans[at+1][0] == i+1 {
		spans[at][1] = spans[at+1][1]
		spans = slices.Delete(spans, at+1, at+2)
	}
	if at > 0 && spans[at-1][1] == i-1 {
		spans[at-1][1] = spans[at][1]
		spans = slices.Delete(spans, at, at+1)
	}
	return spans
}

type line struct {
	Key  string          `json:"k"`
	Vers string          `json:"v"`
	Data json.RawMessage `json:"d"`
}

// Write puts the set into dir as text, one fact a line. A span that reaches the
// newest version is left open, so that a version which changes little changes
// few lines.
func (s *Set) Write(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, "versions.txt"), []byte(strings.Join(s.Versions, "\n")+"\n"), 0o644); err != nil {
		return err
	}
	for _, name := range Names() {
		var b bytes.Buffer
		t := s.Tables[name]
		for _, key := range slices.Sorted(maps.Keys(t)) {
			for _, v := range t[key] {
				k, err := json.Marshal(key)
				if err != nil {
					return err
				}
				fmt.Fprintf(&b, `{"k":%s,"v":"%s","d":%s}`+"\n", k, s.spell(v.Spans), v.Data)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, name+".jsonl"), b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (s *Set) spell(spans [][2]int) string {
	l := make([]string, len(spans))
	for i, x := range spans {
		l[i] = s.Versions[x[0]] + "-"
		if x[1] != len(s.Versions)-1 {
			l[i] += s.Versions[x[1]]
		}
	}
	return strings.Join(l, ",")
}

func (s *Set) spans(text string) ([][2]int, error) {
	var out [][2]int
	for part := range strings.SplitSeq(text, ",") {
		from, to, ok := strings.Cut(part, "-")
		i, found := slices.BinarySearchFunc(s.Versions, from, compareVersions)
		if !ok || !found {
			return nil, fmt.Errorf("span %q: no such version", part)
		}
		j := len(s.Versions) - 1
		if to != "" {
			if j, found = slices.BinarySearchFunc(s.Versions, to, compareVersions); !found || j < i {
				return nil, fmt.Errorf("span %q: no such version", part)
			}
		}
		out = append(out, [2]int{i, j})
	}
	return out, nil
}

// Read takes a set from the text files in dir.
func Read(dir string) (*Set, error) {
	s := NewSet()
	b, err := os.ReadFile(filepath.Join(dir, "versions.txt"))
	if err != nil {
		return nil, fmt.Errorf("facts: %w", err)
	}
	s.Versions = strings.Fields(string(b))
	if !slices.IsSortedFunc(s.Versions, compareVersions) {
		return nil, fmt.Errorf("facts: %s: versions are not in ascending order", dir)
	}
	for _, name := range Names() {
		if err := s.readTable(filepath.Join(dir, name+".jsonl"), s.Tables[name]); err != nil {
			return nil, fmt.Errorf("facts: %w", err)
		}
	}
	return s, nil
}

func (s *Set) readTable(path string, t Table) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<22)
	for n := 1; sc.Scan(); n++ {
		var l line
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			return fmt.Errorf("%s:%d: %w", path, n, err)
		}
		sp, err := s.spans(l.Vers)
		if err != nil {
			return fmt.Errorf("%s:%d: %w", path, n, err)
		}
		t[l.Key] = append(t[l.Key], &Variant{Spans: sp, Data: l.Data})
	}
	return sc.Err()
}
