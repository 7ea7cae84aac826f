// Package face tests what others see of nvtrace's packages: that a module of their own can import
// them, and that links in doc comments lead somewhere.
package face

import (
	"fmt"
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestImported builds and runs a module of its own that imports the public packages. It takes as long
// as linking a program does.
func TestImported(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for from, to := range map[string]string{"testdata/user/go.mod": "go.mod", "testdata/user/main.go": "main.go", "../../go.sum": "go.sum"} {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		b = []byte(strings.Replace(string(b), "=> ../../../..", "=> "+root, 1))
		if err := os.WriteFile(filepath.Join(dir, to), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "run", "-mod=mod", ".", filepath.Join(root, "traces/corpus/rminfo.nvt"), filepath.Join(root, "fatbin/testdata/two.13.0.speed.fatbin"))
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if want := "ioctls: 18 tables: 580.142\nentries: 2\nkernels: [k]\n"; err != nil || string(out) != want {
		t.Errorf("%v: %s\nwant %s", err, out, want)
	}
}

// declared are the names of a package, with those of methods and fields as "Type.Name".
type declared map[string]bool

// dir is a folder with Go files.
type dir struct {
	files []*ast.File
	names declared
}

// TestDocLinks: what stands in brackets in a doc comment and looks like a name of Go's is one.
func TestDocLinks(t *testing.T) {
	fset := token.NewFileSet()
	dirs := parseAll(t, fset, "../..")
	links, bad := 0, 0
	for path, d := range dirs {
		for _, f := range d.files {
			for _, group := range f.Comments {
				text := group.Text()
				if !strings.Contains(text, "[") {
					continue
				}
				for _, name := range linksOf(text) {
					links++
					if !leads(name, path, d, f, dirs) {
						bad++
						t.Errorf("%s: [%s] leads nowhere", fset.Position(group.Pos()), name)
					}
				}
			}
		}
	}
	if links < 100 {
		t.Errorf("only %d links were found", links)
	}
	t.Logf("%d links, %d of them bad", links, bad)
}

// parseAll parses the Go files of a tree, tests left out.
func parseAll(t *testing.T, fset *token.FileSet, root string) map[string]*dir {
	t.Helper()
	dirs := make(map[string]*dir)
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch name := filepath.Base(path); {
		case err != nil:
			return err
		case e.IsDir() && (name == "testdata" || strings.HasPrefix(name, ".") && len(name) > 2):
			return filepath.SkipDir
		case e.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		d := dirs[rel]
		if d == nil {
			d = &dir{names: make(declared)}
			dirs[rel] = d
		}
		d.files = append(d.files, f)
		d.names.add(f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// add adds what a file declares.
func (d declared) add(f *ast.File) {
	for _, decl := range f.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if recv := decl.Recv; recv != nil && len(recv.List) == 1 {
				d[typeName(recv.List[0].Type)+"."+decl.Name.Name] = true
			} else {
				d[decl.Name.Name] = true
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					for _, n := range spec.Names {
						d[n.Name] = true
					}
				case *ast.TypeSpec:
					d[spec.Name.Name] = true
					d.members(spec)
				}
			}
		}
	}
}

// members adds the fields of a struct, and the methods of an interface.
func (d declared) members(spec *ast.TypeSpec) {
	var list *ast.FieldList
	switch typ := spec.Type.(type) {
	case *ast.StructType:
		list = typ.Fields
	case *ast.InterfaceType:
		list = typ.Methods
	default:
		return
	}
	for _, field := range list.List {
		if len(field.Names) == 0 { // embedded: what it has is not looked for
			d[spec.Name.Name+".*"] = true
		}
		for _, n := range field.Names {
			d[spec.Name.Name+"."+n.Name] = true
		}
	}
}

func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.IndexListExpr:
		return typeName(e.X)
	case *ast.Ident:
		return e.Name
	}
	return fmt.Sprintf("%T", e)
}

// A link is a name that is exported, or a package's and one that is.
var link = regexp.MustCompile(`^\*?((?:[a-z][a-z0-9/]*\.)?[A-Z]\w*(?:\.[A-Z]\w*)?)$`)

// linksOf returns the names in a comment that are links, or would be if they led somewhere.
func linksOf(text string) (list []string) {
	var names []string
	note := func(_, name string) bool { names = append(names, name); return true }
	p := comment.Parser{
		LookupSym:     note,
		LookupPackage: func(name string) (string, bool) { return name, true },
	}
	walk := func(x []comment.Text) {
		for _, t := range x {
			if l, ok := t.(*comment.DocLink); ok {
				name := l.Name
				if l.Recv != "" {
					name = l.Recv + "." + name
				}
				if l.ImportPath != "" {
					name = l.ImportPath + "." + name
				}
				if link.MatchString(name) {
					list = append(list, name)
				}
			}
		}
	}
	for _, b := range p.Parse(text).Content {
		switch b := b.(type) {
		case *comment.Paragraph:
			walk(b.Text)
		case *comment.List:
			for _, item := range b.Items {
				for _, c := range item.Content {
					if par, ok := c.(*comment.Paragraph); ok {
						walk(par.Text)
					}
				}
			}
		}
	}
	return list
}

// leads reports whether a name in a comment of a file leads somewhere.
func leads(name, path string, d *dir, f *ast.File, dirs map[string]*dir) bool {
	has := func(d *dir, name string) bool {
		recv, _, is := strings.Cut(name, ".")
		return d.names[name] || is && d.names[recv+".*"]
	}
	pkg, rest, _ := strings.Cut(name, ".")
	if pkg[0] >= 'A' && pkg[0] <= 'Z' {
		return has(d, name)
	}
	if pkg == f.Name.Name {
		return has(d, rest)
	}
	for _, imp := range f.Imports {
		file := strings.Trim(imp.Path.Value, `"`)
		if imp.Name != nil && imp.Name.Name != pkg || imp.Name == nil && filepath.Base(file) != pkg && file != pkg {
			continue
		}
		ours, is := strings.CutPrefix(file, "nvtrace/")
		return !is || dirs[ours] != nil && has(dirs[ours], rest)
	}
	if ours := dirs[strings.TrimPrefix(pkg, "nvtrace/")]; ours != nil {
		return has(ours, rest)
	}
	_, standard := comment.DefaultLookupPackage(pkg)
	return standard
}

// TestLinksOf: which brackets are links.
func TestLinksOf(t *testing.T) {
	got := strings.Join(linksOf("It is [Reader], not [flags] or a[I]; see [traces.Event] and [*Writer.Close].\n\n\tcode [Here]\n"), " ")
	if want := "Reader traces.Event Writer.Close"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
