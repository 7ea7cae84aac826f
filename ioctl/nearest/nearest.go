// Package nearest finds the names that a mistyped one may have meant.
package nearest

import (
	"cmp"
	"iter"
	"slices"
	"strings"
)

// maxWord bounds what is compared of a word and of a name.
const maxWord = 200

// Question returns "; did you mean A, B or C?" with the names, "" where there are none.
func Question(names []string) string {
	switch n := len(names); n {
	case 0:
		return ""
	case 1:
		return "; did you mean " + names[0] + "?"
	default:
		return "; did you mean " + strings.Join(names[:n-1], ", ") + " or " + names[n-1] + "?"
	}
}

// Names returns the at most n names that are most like a word, the most alike
// first, and none that is not like it. A name that the word is a part of is like it. A word with "*" is compared with the parts
// of names that are most like its own. Case does not matter.
func Names(word string, names iter.Seq[string], n int) []string {
	type near struct {
		name   string
		cost   int
		length int
	}
	parts, whole := split(word)
	letters := 0
	for _, p := range parts {
		letters += len(p)
	}
	if letters == 0 {
		return nil
	}
	most := max(1, letters/3)
	var found []near
	best := most
	for name := range names {
		folded, cost := fold(name), 0
		for _, p := range parts {
			cost += distance(p, folded, whole)
		}
		if whole && cost > 1 && strings.Contains(folded, parts[0]) {
			cost = 1 // it is a part of the name
		}
		if cost <= most {
			best = min(best, cost)
			found = append(found, near{name, cost, len(name)})
		}
	}
	slices.SortFunc(found, func(a, b near) int {
		return cmp.Or(cmp.Compare(a.cost, b.cost), cmp.Compare(a.length, b.length), strings.Compare(a.name, b.name))
	})
	var list []string
	for _, f := range found {
		if f.cost <= best+1 && len(list) < n && !slices.Contains(list, f.name) {
			list = append(list, f.name)
		}
	}
	return list
}

// split returns the parts of a glob between its stars, and whether it has none.
func split(word string) (parts []string, whole bool) {
	for p := range strings.SplitSeq(fold(word), "*") {
		if p != "" {
			parts = append(parts, p)
		}
	}
	return parts, !strings.Contains(word, "*")
}

func fold(s string) string { return strings.ToLower(s[:min(len(s), maxWord)]) }

// distance is how many letters must be changed, left out, added or exchanged with
// their neighbour to make word of name, or, unless whole is set, of a part of name.
func distance(word, name string, whole bool) int {
	before, last, row := make([]int, len(name)+1), make([]int, len(name)+1), make([]int, len(name)+1)
	if whole {
		for j := range last {
			last[j] = j
		}
	}
	for i := range len(word) {
		row[0] = i + 1
		for j := range len(name) {
			cost := 1
			if word[i] == name[j] {
				cost = 0
			}
			row[j+1] = min(last[j]+cost, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && word[i] == name[j-1] && word[i-1] == name[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last, row = last, row, before
	}
	if whole {
		return last[len(name)]
	}
	return slices.Min(last)
}
