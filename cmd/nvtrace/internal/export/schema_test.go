package export

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// columnNames are the columns of a table as the page of the format writes them: with ? where they may be null.
func columnNames[T any](columns []column[T]) (names []string) {
	for i := range columns {
		name := columns[i].name
		if columns[i].optional() {
			name += "?"
		}
		names = append(names, name)
	}
	return names
}

// written is a column as the page writes it.
func written(column string) string {
	name, optional := strings.CutSuffix(column, "?")
	if optional {
		return "`" + name + "`?"
	}
	return "`" + name + "`"
}

// TestSchemaOfTables: traces/SCHEMA.md names all columns of all tables, which of them may be null, and no others.
func TestSchemaOfTables(t *testing.T) {
	b, err := os.ReadFile("../../../../traces/SCHEMA.md")
	if err != nil {
		t.Fatal(err)
	}
	_, page, _ := strings.Cut(string(b), "\n## Tables\n")
	rows := make(map[string]string)
	page = strings.ReplaceAll(page, "\n  ", " ") // an item in a line
	for _, m := range regexp.MustCompile("(?m)^\\* `(\\w+)`: .*?\\. Columns: (.*)$").FindAllStringSubmatch(page, -1) {
		rows[m[1]] = m[2]
	}
	tables := map[string][]string{
		"api": columnNames(callRowColumns), "stacks": columnNames(stackRowColumns), "kernels": columnNames(kernelRowColumns), "gpu": columnNames(gpuRowColumns),
		"ioctls": columnNames(ioctlRowColumns), "events": columnNames(eventRowColumns), "images": columnNames(imageRowColumns), "memory": columnNames(memoryRowColumns),
		"failures": columnNames(failureRowColumns), "runs": columnNames(runRowColumns), "collectives": columnNames(collectiveRowColumns),
		"communicators": columnNames(commRowColumns), "facts": columnNames(factRowColumns), "histograms": columnNames(histogramRowColumns),
	}
	if len(rows) != len(tables) {
		t.Errorf("the page has %d tables, the code %d", len(rows), len(tables))
	}
	// What stands in front of the table, of all tables.
	always := []string{"t", "time", "pid"}
	for name, want := range tables {
		row, ok := rows[name]
		if !ok {
			t.Errorf("the page has no table %s", name)
			continue
		}
		// Values that a column may have stand in brackets, or behind a colon.
		text := row
		for _, values := range []string{`\([^()]*\)`, `\([^()]*\)`, "`: [^;]*"} {
			text = regexp.MustCompile(values).ReplaceAllString(text, "`"[:strings.Count(values, "`")])
		}
		for _, c := range want {
			if !strings.Contains(row, written(c)) && !slices.Contains(always, c) {
				t.Errorf("table %s: the page lacks column %s", name, c)
			}
		}
		text, _, _ = strings.Cut(text, "; no `during`") // words follow
		for _, m := range regexp.MustCompile("`(\\w+)`(\\?)?").FindAllStringSubmatch(text, -1) {
			if !slices.Contains(want, m[1]+m[2]) {
				t.Errorf("table %s: the page has a column %s%s", name, m[1], m[2])
			}
		}
	}
}
