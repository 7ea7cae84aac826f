package ptx

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "rewrite the wanted parts of testdata/golden")

// goldenParts makes the parts of a golden file from its in.ptx and edits.
var goldenParts = map[string]func(t *testing.T, f *File, edits string) string{
	"tree": func(t *testing.T, f *File, _ string) string {
		var b strings.Builder
		if err := dump(&b, f); err != nil {
			t.Fatal(err)
		}
		return b.String()
	},
	"fmt.ptx": func(t *testing.T, f *File, _ string) string { return format(t, f) },
	"sites":   func(t *testing.T, f *File, _ string) string { return sitesText(t, f, nil) },
	"sites.json": func(t *testing.T, f *File, _ string) string {
		return sitesText(t, f, &ReportOptions{JSON: true})
	},
	"check": func(t *testing.T, f *File, _ string) string {
		var b strings.Builder
		if _, err := f.Check().Write(&b, f.Name, nil); err != nil {
			t.Fatal(err)
		}
		return b.String()
	},
	"want.ptx": weaveEdits,
}

func sitesText(t *testing.T, f *File, o *ReportOptions) string {
	var b strings.Builder
	if err := WriteSites(&b, f, o); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// weaveEdits does what the lines of edits say:
//
//	module | code
//	entry FUNC | code
//	exit FUNC | code
//	declare FUNC | code
//	header FUNC | directive
//	before FUNC text of the statement | code
//	after FUNC text of the statement | code
//	around FUNC text of the statement | code before | code behind
//
// Refused probes become comments at the end.
func weaveEdits(t *testing.T, f *File, edits string) string {
	w := NewWeaver(f)
	refused := ""
	for line := range strings.Lines(edits) {
		parts := strings.Split(strings.TrimSpace(line), " | ")
		verb, rest, _ := strings.Cut(parts[0], " ")
		name, pattern, _ := strings.Cut(rest, " ")
		if err := weaveEdit(w, verb, name, pattern, parts[1:]); err != nil {
			refused += "// " + err.Error() + "\n"
		}
	}
	out, err := w.Source()
	if err != nil {
		t.Fatal(err)
	}
	return out + refused
}

func weaveEdit(w *Weaver, verb, name, pattern string, code []string) error {
	if verb == "module" {
		w.Module(code[0])
		return nil
	}
	fn := w.f.Lookup(name)
	if fn == nil {
		return fmt.Errorf("no function %s", name)
	}
	st := w.f.Sites(fn)
	switch verb {
	case "declare":
		w.Declare(fn, code[0])
		return nil
	case "header":
		w.Header(fn, code[0])
		return nil
	case "entry":
		return w.Entry(st, "\t"+code[0])
	case "exit":
		for i := range st.Exits {
			if err := w.Exit(st, &st.Exits[i], "\t"+code[0]); err != nil {
				return err
			}
		}
		return nil
	}
	for i := fn.Open + 1; i < fn.Close; i++ {
		if !strings.Contains(w.f.Text(w.f.Stmts[i].Span()), pattern) {
			continue
		}
		switch verb {
		case "before":
			return w.Before(st, i, "\t"+code[0])
		case "after":
			return w.After(st, i, "\t"+code[0])
		case "around":
			return w.Around(st, i, "\t"+code[0], "\t"+code[1])
		}
	}
	return fmt.Errorf("%s: no statement %q", verb, pattern)
}

func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/golden/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no golden files", err)
	}
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			ar, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			part := map[string]string{}
			for _, p := range ar.Files {
				part[p.Name] = string(p.Data)
			}
			f := mustParse(t, "in.ptx", part["in.ptx"])
			checkLossless(t, "in.ptx", f.Src)
			checked := 0
			for i := range ar.Files {
				p := &ar.Files[i]
				run := goldenParts[p.Name]
				if run == nil {
					continue
				}
				checked++
				got := run(t, f, part["edits"])
				if *update {
					p.Data = []byte(got)
				} else if diff := cmp.Diff(string(p.Data), got); diff != "" {
					t.Errorf("%s (-want +got, -update rewrites it):\n%s", p.Name, diff)
				}
			}
			if checked == 0 {
				t.Error("nothing to compare")
			}
			if b := txtar.Format(ar); *update {
				if err := os.WriteFile(path, b, 0o644); err != nil {
					t.Fatal(err)
				}
			} else if old, err := os.ReadFile(path); err != nil || !bytes.Equal(b, old) {
				t.Errorf("%s is not in txtar's own layout", path)
			}
		})
	}
}

// TestGoldenWeaves: what the golden edits make assembles where the input does.
func TestGoldenWeaves(t *testing.T) {
	as := ptxas(t)
	files, err := filepath.Glob("testdata/golden/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, path := range files {
		ar, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range ar.Files {
			if p.Name != "want.ptx" {
				continue
			}
			tried++
			f := mustParse(t, path, string(p.Data))
			if out, ok := assemble(t, as, f.Src, f.Target().String()); !ok {
				t.Errorf("%s: %s", path, out)
			}
		}
	}
	if tried == 0 {
		t.Error("no golden edits")
	}
}
