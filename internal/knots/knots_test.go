package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestLargest(t *testing.T) {
	for _, test := range []struct{ graph, want string }{
		{"", ""},
		{"a>b b>c a>c", ""},
		{"a>b b>a", "a b"},
		{"a>b b>c c>a c>d d>e e>d", "a b c"},
		{"d>e e>d a>b b>a", "a b"},
		// Two circles that share a node are one.
		{"a>b b>a b>c c>d d>b x>a d>y", "a b c d"},
		// What is left of a circle that was found first does not count for the next.
		{"a>b b>c c>b a>d d>c d>a", "a d"},
	} {
		graph := make(map[string][]string)
		for arrow := range strings.FieldsSeq(test.graph) {
			from, to, _ := strings.Cut(arrow, ">")
			graph[from] = append(graph[from], to)
		}
		if got := strings.Join(largest(graph), " "); got != test.want {
			t.Errorf("%s: %q, want %q", test.graph, got, test.want)
		}
	}
}

// TestMeasure has a package in which each kind of object is what one file uses of another:
// a type, a method, a field, a generic function, a constant. Tests and files for other
// systems do not count.
func TestMeasure(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":            "module example\n\ngo 1.26\n",
		"p/a.go":            "package p\n\ntype A struct{ F int }\n\nfunc (b *B) viaMethod() { b.M() }\n",
		"p/b.go":            "package p\n\ntype B struct{}\n\nfunc (*B) M() { _ = anA.F }\n",
		"p/c.go":            "package p\n\nvar anA A\n",
		"p/d.go":            "package p\n\nfunc Of[T any](T) int { return 0 }\n",
		"p/e.go":            "package p\n\nvar E = Of(1) + K\n",
		"p/f.go":            "package p\n\nconst K = 1\n",
		"p/g_windows.go":    "package p\n\nvar G = E\n",
		"p/h_test.go":       "package p\n\nvar H = E\n",
		"p/internal/q/q.go": "package q\n",
	} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	figures, err := measure(dir, "./...")
	if err != nil {
		t.Fatal(err)
	}
	if len(figures) != 2 || figures[0].pkg != "p" || figures[1].pkg != "p/internal/q" {
		t.Fatalf("packages %v", figures)
	}
	f := figures[0]
	if f.files != 6 || !slices.Equal(f.circle, []string{"a.go", "b.go", "c.go"}) || f.percent() != 50 {
		t.Errorf("%d files, circle %v, %d %%", f.files, f.circle, f.percent())
	}
	var out bytes.Buffer
	f.print(&out)
	want := `p: 3 of 6 files in a circle
a.go -> b.go: B M
b.go -> a.go: F
b.go -> c.go: anA
c.go -> a.go: A
`
	if out.String() != want {
		t.Errorf("printed\n%swant\n%s", out.String(), want)
	}
	if got := f.uses["e.go"]; !slices.Equal(got["d.go"], []string{"Of"}) || !slices.Equal(got["f.go"], []string{"K"}) {
		t.Errorf("e.go uses %v", got)
	}
}

func figuresOf(sizes map[string][2]int) (list []*figure) {
	for pkg, size := range sizes {
		list = append(list, &figure{pkg: pkg, circle: make([]string, size[0]), files: size[1]})
	}
	slices.SortFunc(list, func(a, b *figure) int { return strings.Compare(a.pkg, b.pkg) })
	return list
}

func TestCompare(t *testing.T) {
	rows, err := parse(header + "same 9\nworse 9\nbetter 9\nfree 9\ngone 9\n")
	if err != nil {
		t.Fatal(err)
	}
	figures := figuresOf(map[string][2]int{
		"same": {9, 30}, "worse": {10, 30}, "better": {8, 30}, "free": {4, 30}, "small": {5, 5}, "new": {6, 30},
	})
	worse, lower := compare(rows, figures)
	first := func(lines []string) (words []string) {
		for _, line := range lines {
			word, _, _ := strings.Cut(line, ":")
			words = append(words, word)
		}
		return words
	}
	if got := first(worse); !slices.Equal(got, []string{"new", "worse"}) {
		t.Errorf("worse: %q", worse)
	}
	if got := first(lower); !slices.Equal(got, []string{"better", "free", "gone"}) {
		t.Errorf("can be lowered: %q", lower)
	}
	text, err := rewrite(rows, figures)
	if err != nil {
		t.Fatal(err)
	}
	again, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	for pkg, want := range map[string]int{"same": 9, "worse": 9, "better": 8, "new": 6, "free": 0, "gone": 0, "small": 0} {
		if again[pkg] != want {
			t.Errorf("%s: limit %d after -write, want %d", pkg, again[pkg], want)
		}
	}
	for _, knot := range [][2]int{{21, 100}, {7, 10}} {
		if text, err := rewrite(rows, figuresOf(map[string][2]int{"knot": knot})); err == nil || strings.Contains(text, "knot ") {
			t.Errorf("a new package with %v was taken: %v\n%s", knot, err, text)
		}
	}
	if _, err := parse("one two\n"); err == nil {
		t.Error("a row without a number was taken")
	}
}

// TestTable: the committed table is as -write writes it.
func TestTable(t *testing.T) {
	rows, err := parse(limits)
	if err != nil {
		t.Fatal(err)
	}
	var figures []*figure
	for pkg, size := range rows {
		figures = append(figures, &figure{pkg: pkg, circle: make([]string, size)})
	}
	slices.SortFunc(figures, func(a, b *figure) int { return strings.Compare(a.pkg, b.pkg) })
	if text, err := rewrite(rows, figures); err != nil || text != limits {
		t.Errorf("%v; -write would write\n%s", err, text)
	}
}
