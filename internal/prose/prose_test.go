package prose

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "lower the limits in testdata/limits.txt to what the pages have")

// TestCheck: what is found, and what is not.
func TestCheck(t *testing.T) {
	words := func(n int) string { return strings.TrimSpace(strings.Repeat("word ", n)) + "." }
	for _, tt := range []struct {
		name, page string
		want       []int // lines
	}{
		{"short", "# T\n\nOne sentence. Another.\n", nil},
		{"25 words", "# T\n\n" + strings.ReplaceAll(words(25), "word word word word word ", "word word word word word\n") + "\n", nil},
		{"26 words over lines", "# T\n\nOne.\n" + strings.ReplaceAll(words(26), "word word word word word ", "word word word word word\n") + "\n", []int{4}},
		{"two sentences", "# T\n\n" + strings.Repeat("a ", 20) + "a.\n" + strings.Repeat("b ", 20) + "b.\n", nil},
		{"code is a word", "# T\n\n`" + strings.Repeat("a ", 20) + "` " + strings.Repeat("b ", 20) + "b.\n", nil},
		{"blocks of code", "# T\n\n```\n" + strings.Repeat("a ", 90) + "\n```\n\n    " + strings.Repeat("a ", 90) + "\n", nil},
		{"a cell", "| a | " + strings.Repeat("b ", 30) + "|\n", []int{1}},
		{"cells", "| " + strings.Repeat("a ", 20) + "| " + strings.Repeat("b ", 20) + "|\n", nil},
		{"items", "* " + strings.Repeat("a ", 20) + "\n* " + strings.Repeat("b ", 20) + "\n", nil},
		{"columns", "# T\n\n" + strings.Repeat("a", 101) + "\n", []int{3}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []int
			for _, f := range Check(tt.page) {
				got = append(got, f.Line)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%v, want %v", Check(tt.page), tt.want)
			}
		})
	}
}

// TestPages: every page begins with a title and what it is for, and has no more that is too
// long than testdata/limits.txt says. Pages that are not there may have nothing.
func TestPages(t *testing.T) {
	const root, limits = "../..", "testdata/limits.txt"
	pages, err := filepath.Glob(root + "/docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	pages = append(pages, root+"/README.md", root+"/nvattach/script/README.md")
	allowed := readLimits(t, limits)
	var lowered strings.Builder
	for _, file := range pages {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(filepath.ToSlash(file), root+"/")
		if !strings.HasPrefix(string(b), "# ") {
			t.Errorf("%s does not begin with a title", name)
		}
		found := Check(string(b))
		limit := allowed[name]
		delete(allowed, name)
		if len(found) > limit {
			t.Errorf("%s has %d sentences or lines that are too long; %d are allowed. At most %d words and %d columns:\n%s",
				name, len(found), limit, MaxWords, MaxColumns, lines(found))
		}
		if n := min(len(found), limit); n > 0 {
			fmt.Fprintf(&lowered, "%s %d\n", name, n)
		}
	}
	for name := range allowed {
		t.Errorf("%s has %s, which is not there", limits, name)
	}
	if *update {
		if err := os.WriteFile(limits, []byte(lowered.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func readLimits(t *testing.T, file string) map[string]int {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	limits := make(map[string]int)
	for line := range strings.Lines(string(b)) {
		var name string
		var n int
		if _, err := fmt.Sscan(line, &name, &n); err != nil {
			t.Fatalf("%s: %q: %v", file, line, err)
		}
		limits[name] = n
	}
	return limits
}

func lines(found []Finding) string {
	const most = 12
	var b strings.Builder
	for i, f := range found {
		if i == most {
			fmt.Fprintf(&b, "… and %d more\n", len(found)-most)
			break
		}
		fmt.Fprintln(&b, f)
	}
	return b.String()
}
