package prose

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

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

// TestPages: every page begins with a title, and has no sentence or line that is too long.
func TestPages(t *testing.T) {
	const root = "../.."
	pages, err := filepath.Glob(root + "/docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	for _, file := range append(pages, root+"/README.md", root+"/nvattach/script/README.md") {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(filepath.ToSlash(file), root+"/")
		if !strings.HasPrefix(string(b), "# ") {
			t.Errorf("%s does not begin with a title", name)
		}
		if found := Check(string(b)); len(found) > 0 {
			t.Errorf("%s has %d sentences or lines that are too long. At most %d words and %d columns:\n%s",
				name, len(found), MaxWords, MaxColumns, lines(found))
		}
	}
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
