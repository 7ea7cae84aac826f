package ptx

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// corpus returns the PTX files under testdata by path, without those that are
// wrong on purpose.
func corpus(tb testing.TB) map[string]string {
	tb.Helper()
	files := map[string]string{}
	err := filepath.WalkDir("testdata", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && d.Name() == "errors" {
			return fs.SkipDir
		}
		if strings.HasSuffix(path, ".ptx") {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			files[filepath.ToSlash(path)] = string(b)
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	if len(files) < 5 {
		tb.Fatalf("only %d files under testdata", len(files))
	}
	return files
}

func mustParse(tb testing.TB, name, src string) *File {
	tb.Helper()
	f, err := Parse(name, src, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

// meaning returns the tokens of src that are not trivia, a blank between them.
func meaning(src string) string {
	var b strings.Builder
	for t := range Lex(src) {
		if !t.Kind.trivia() {
			b.WriteString(src[t.Pos:t.End])
			b.WriteByte(' ')
		}
	}
	return b.String()
}

// comments returns the comments and line markers of src, one a line.
func comments(src string) string {
	var b strings.Builder
	for t := range Lex(src) {
		switch t.Kind {
		case TokLineComment, TokComment, TokMarker:
			b.WriteString(strings.TrimRight(src[t.Pos:t.End], " \t\r") + "\n")
		}
	}
	return b.String()
}

func format(tb testing.TB, f *File) string {
	tb.Helper()
	var b strings.Builder
	if err := Format(&b, f); err != nil {
		tb.Fatal(err)
	}
	return b.String()
}

// checkLossless checks what must hold of every source that parses.
func checkLossless(tb testing.TB, name, src string) *File {
	tb.Helper()
	f, err := Parse(name, src, nil)
	if err != nil {
		return nil
	}
	if got, err := NewWeaver(f).Source(); err != nil || got != src {
		tb.Errorf("%s: no edits, but the text changes (error %v)", name, err)
	}
	at := Pos(0)
	for i := range f.Stmts {
		s := &f.Stmts[i]
		if s.Pos < at || s.End <= s.Pos {
			tb.Fatalf("%s: statement %d covers [%d,%d) after one that ends at %d", name, i, s.Pos, s.End, at)
		}
		if m := meaning(src[at:s.Pos]); m != "" {
			tb.Fatalf("%s: %q belongs to no statement", f.Position(at), m)
		}
		at = s.End
	}
	if m := meaning(src[at:]); m != "" {
		tb.Fatalf("%s: %q belongs to no statement", f.Position(at), m)
	}
	once := format(tb, f)
	if meaning(once) != meaning(src) {
		tb.Errorf("%s: formatting changes the tokens", name)
	}
	if comments(once) != comments(src) {
		tb.Errorf("%s: formatting changes the comments", name)
	}
	g, err := Parse(name, once, nil)
	if err != nil {
		tb.Fatalf("%s: formatted text does not parse: %v\n%s", name, err, once)
	}
	if twice := format(tb, g); twice != once {
		tb.Errorf("%s: formatting twice differs\n--- once\n%s--- twice\n%s", name, once, twice)
	}
	return f
}

func TestCorpus(t *testing.T) {
	for name, src := range corpus(t) {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse(name, src, nil); err != nil {
				t.Fatal(err)
			}
			f := checkLossless(t, name, src)
			if strings.Contains(name, "hard/") {
				return
			}
			for _, w := range f.Check().Warnings {
				t.Error(w)
			}
			for _, st := range f.AllSites() {
				if len(st.Exits) == 0 && len(st.Traps) == 0 && len(st.Blocks) < 2 {
					t.Errorf("%s: no way out", st.Name)
				}
			}
		})
	}
}

// TestFeaturesOfCorpus: the compilers' own output never uses what its version
// and target do not have.
func TestFeaturesOfCorpus(t *testing.T) {
	for name, src := range corpus(t) {
		if strings.Contains(name, "hard/") {
			continue
		}
		for _, e := range mustParse(t, name, src).CheckFeatures() {
			t.Error(e)
		}
	}
}
