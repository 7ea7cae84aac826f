package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// header is what limits.txt begins with.
const header = `# How many files of a package may use one another in a circle: no more than do today.
# Packages that are not listed may have 5. Rows are only ever lowered: go run ./internal/knots -write
`

// parse reads the rows of limits.txt: a package and the size of its circle.
func parse(text string) (map[string]int, error) {
	rows := make(map[string]int)
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		var pkg string
		var size int
		if n, err := fmt.Sscanf(line, "%s %d", &pkg, &size); n != 2 || err != nil {
			return nil, fmt.Errorf("%s: not a package and a number: %q", table, line)
		}
		rows[pkg] = size
	}
	return rows, nil
}

func limit(rows map[string]int, pkg string) int { return max(rows[pkg], free) }

// compare says which packages have become worse than their limits, and which limits can be
// lowered.
func compare(rows map[string]int, figures []*figure) (worse, lower []string) {
	seen := make(map[string]bool)
	for _, f := range figures {
		seen[f.pkg] = true
		size, may := len(f.circle), limit(rows, f.pkg)
		if size > may {
			worse = append(worse, fmt.Sprintf("%s: %d of %d files use one another in a circle; %d may (go run ./internal/knots -files ./%s shows how)",
				f.pkg, size, f.files, may, f.pkg))
		}
		if rows[f.pkg] > max(size, free) || rows[f.pkg] > 0 && size <= free {
			lower = append(lower, fmt.Sprintf("%s: %d files use one another in a circle; the limit is %d", f.pkg, size, rows[f.pkg]))
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(rows)) {
		if !seen[pkg] {
			lower = append(lower, pkg+": there is no such package any more")
		}
	}
	return worse, lower
}

// rewrite returns the table with limits lowered, and with packages that are new to it. It
// never raises a limit, and takes no new package that is a knot.
func rewrite(rows map[string]int, figures []*figure) (string, error) {
	var b strings.Builder
	b.WriteString(header)
	var err error
	for _, f := range figures {
		size := len(f.circle)
		if old := rows[f.pkg]; old > 0 {
			size = min(size, old)
		} else if f.knotted() {
			err = fmt.Errorf("%s: %d of %d files use one another in a circle: too many for a new package", f.pkg, size, f.files)
			continue
		}
		if size > free {
			fmt.Fprintf(&b, "%-40s %d\n", f.pkg, size)
		}
	}
	return b.String(), err
}
