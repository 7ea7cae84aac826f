// Command knots measures how the files of each package use one another. A file uses another
// when it names an object that the other declares: a function, a type, a field, a method, a
// variable, a constant. Files that use one another in a circle (a strongly connected component)
// can only be understood together; the largest circle of a package is its knot.
//
// limits.txt holds the knots as they are: the command fails where one has grown, and says
// where a limit can be lowered, which -write does. -list prints the figures of all packages,
// -files those of one with the circle's files, and what each uses of the others.
package main

import (
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// What any package may have. A circle of up to free files is not worth a row in the table.
// Beyond most files, or, where a package has at least ten, beyond share percent of them, a
// new row is refused.
const (
	free  = 5
	most  = 20
	share = 60
)

// table is where the limits are, from the root of the module.
const table = "internal/knots/limits.txt"

//go:embed limits.txt
var limits string

func main() {
	list := flag.Bool("list", false, "print the figures of all packages")
	files := flag.String("files", "", "print the circle of this `package`, and what its files use of one another")
	write := flag.Bool("write", false, "lower the limits in "+table+" to today's figures, and add new packages")
	flag.Parse()
	if err := run(os.Stdout, *list, *files, *write); err != nil {
		fmt.Fprintln(os.Stderr, "knots:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, list bool, files string, write bool) error {
	pattern := "./..."
	if files != "" {
		pattern = files
	}
	figures, err := measure(".", pattern)
	if err != nil {
		return err
	}
	switch {
	case files != "":
		for _, f := range figures {
			f.print(out)
		}
		return nil
	case list:
		for _, f := range figures {
			fmt.Fprintf(out, "%-40s %3d files %3d in a circle %3d%%\n", f.pkg, f.files, len(f.circle), f.percent())
		}
		return nil
	}
	rows, err := parse(limits)
	if err != nil {
		return err
	}
	worse, lower := compare(rows, figures)
	if write {
		lowered, err := rewrite(rows, figures)
		return errors.Join(err, os.WriteFile(table, []byte(lowered), 0o644))
	}
	for _, line := range lower {
		fmt.Fprintln(out, line)
	}
	if len(lower) > 0 {
		fmt.Fprintln(out, "to lower the limits: go run ./internal/knots -write")
	}
	if len(worse) > 0 {
		return errors.New(strings.Join(worse, "\n       "))
	}
	return nil
}

// A figure is what one package has.
type figure struct {
	pkg    string // from the root of the module
	files  int
	circle []string                       // the files of its largest circle, sorted; none if no two are in one
	uses   map[string]map[string][]string // by file, by the file that it uses: the objects
}

func (f *figure) percent() int {
	if f.files == 0 {
		return 0
	}
	return (100*len(f.circle) + f.files - 1) / f.files
}

// knotted reports whether the package is beyond what a new one may have.
func (f *figure) knotted() bool {
	return len(f.circle) > most || f.files >= 10 && len(f.circle)*100 > f.files*share
}

// print writes the circle, and what holds it together.
func (f *figure) print(out io.Writer) {
	fmt.Fprintf(out, "%s: %d of %d files in a circle\n", f.pkg, len(f.circle), f.files)
	for _, from := range f.circle {
		for _, to := range f.circle {
			if names := f.uses[from][to]; len(names) > 0 {
				fmt.Fprintf(out, "%s -> %s: %s\n", from, to, strings.Join(names, " "))
			}
		}
	}
}

// measure loads the packages of a folder as they are for Linux on amd64, without tests.
func measure(dir, pattern string) ([]*figure, error) {
	cfg := &packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedSyntax |
			packages.NeedTypes | packages.NeedTypesInfo | packages.NeedImports | packages.NeedExportFile | packages.NeedModule,
		Dir: dir,
		Env: append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0"),
	}
	pkgs, err := packages.Load(cfg, pattern)
	if err != nil {
		return nil, err
	}
	var figures []*figure
	for _, p := range pkgs {
		for _, e := range p.Errors {
			return nil, e
		}
		figures = append(figures, figureOf(p))
	}
	slices.SortFunc(figures, func(a, b *figure) int { return strings.Compare(a.pkg, b.pkg) })
	return figures, nil
}

func figureOf(p *packages.Package) *figure {
	f := &figure{pkg: p.PkgPath, files: len(p.Syntax), uses: make(map[string]map[string][]string)}
	if p.Module != nil {
		f.pkg = strings.TrimPrefix(strings.TrimPrefix(p.PkgPath, p.Module.Path), "/")
	}
	if f.pkg == "" {
		f.pkg = "."
	}
	for _, file := range p.Syntax {
		f.uses[filepath.Base(p.Fset.File(file.Pos()).Name())] = make(map[string][]string)
	}
	for ident, object := range p.TypesInfo.Uses {
		if object.Pkg() != p.Types || !object.Pos().IsValid() {
			continue
		}
		from := filepath.Base(p.Fset.File(ident.Pos()).Name())
		to := filepath.Base(p.Fset.File(object.Pos()).Name())
		if from != to && !slices.Contains(f.uses[from][to], object.Name()) {
			f.uses[from][to] = append(f.uses[from][to], object.Name())
		}
	}
	graph := make(map[string][]string)
	for from, uses := range f.uses {
		graph[from] = slices.Sorted(maps.Keys(uses))
		for _, names := range uses {
			slices.Sort(names)
		}
	}
	f.circle = largest(graph)
	return f
}

// largest returns the largest strongly connected component of a graph of more than one
// node, sorted (Tarjan, Depth-first search and linear graph algorithms, 1972). Of those
// of one size it is the first by name.
func largest(graph map[string][]string) (best []string) {
	index := make(map[string]int) // when a node was first seen, from 1
	low := make(map[string]int)   // the first node that it leads back to
	on := make(map[string]bool)
	var stack []string
	var visit func(node string)
	visit = func(node string) {
		index[node] = len(index) + 1
		low[node] = index[node]
		stack = append(stack, node)
		on[node] = true
		for _, next := range graph[node] {
			if index[next] == 0 {
				visit(next)
				low[node] = min(low[node], low[next])
			} else if on[next] {
				low[node] = min(low[node], index[next])
			}
		}
		if low[node] != index[node] {
			return
		}
		start := slices.Index(stack, node)
		circle := slices.Sorted(slices.Values(stack[start:]))
		stack = stack[:start]
		for _, done := range circle {
			on[done] = false
		}
		if len(circle) > 1 && (len(circle) > len(best) || len(circle) == len(best) && circle[0] < best[0]) {
			best = circle
		}
	}
	for _, node := range slices.Sorted(maps.Keys(graph)) {
		if index[node] == 0 {
			visit(node)
		}
	}
	return best
}
