package cli

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// TestTableFits: on a terminal no line is wider than that, and what is cut is said; elsewhere all is there.
func TestTableFits(t *testing.T) {
	long := strings.Repeat("kernel<int, float>", 10)
	rows := [][]string{{"12", "short", long}, {"1234567", "libcublasLt.so.13", "größe"}}
	header := []string{">calls", "library", "kernel"}
	for _, columns := range []int{0, 40, 80, 120, 10_000} {
		p := &Page{columns: columns}
		if err := RenderTable(p, "title", header, rows); err != nil {
			t.Fatal(err)
		}
		text := p.String()
		whole := strings.Contains(text, long)
		if want := columns == 0 || columns > 200; whole != want || strings.Contains(text, "(cut to fit") == want {
			t.Errorf("%d columns:\n%s", columns, text)
		}
		for _, want := range []string{"1234567", "short", "größe", "title\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("%d columns: no %q in\n%s", columns, want, text)
			}
		}
		for line := range strings.Lines(text) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); columns > 0 && n > columns && !strings.Contains(line, "cut to fit") {
				t.Errorf("%d columns: %d in %q", columns, n, line)
			}
		}
	}
	// Numbers are not cut.
	p := &Page{columns: 10}
	if err := RenderTable(p, "", []string{">a", ">b"}, [][]string{{"1234567890", "1234567890"}}); err != nil || strings.Contains(p.String(), "…") {
		t.Error(err, p)
	}
}
