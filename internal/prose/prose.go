// Package prose measures the pages that users read: how long sentences and lines are.
package prose

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// What a page should keep to.
const (
	MaxWords   = 25  // of a sentence; code between backquotes is one word
	MaxColumns = 100 // of a line outside of code and tables
)

// A Finding is a sentence or a line that is too long.
type Finding struct {
	Line int // of the page, from 1 on
	Why  string
}

func (f Finding) String() string { return fmt.Sprintf("line %d: %s", f.Line, f.Why) }

var (
	code  = regexp.MustCompile("`[^`]*`")
	link  = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	item  = regexp.MustCompile(`^ {0,3}(?:[*-]|\d+\.) +`)
	ended = regexp.MustCompile(`[.!?:][")”]?$`)
	shown = regexp.MustCompile(`^(e\.g|i\.e|etc|vs|cf)\.$`)
)

// Check returns what is too long on a page of Markdown, in its order.
func Check(page string) (found []Finding) {
	var p paragraph
	inCode := false
	for i, line := range strings.Split(page, "\n") {
		line = strings.TrimSuffix(line, "\r")
		switch plain := strings.TrimSpace(line); {
		case strings.HasPrefix(plain, "```"):
			found = p.end(found)
			inCode = !inCode
			continue
		case inCode, strings.HasPrefix(line, "    "), strings.HasPrefix(line, "<!--"):
			continue
		case plain == "", strings.HasPrefix(plain, "#"):
			found = p.end(found)
			continue
		case strings.HasPrefix(plain, "|"):
			found = p.end(found)
			for cell := range strings.SplitSeq(code.ReplaceAllString(plain, "CODE"), "|") {
				p.add(i+1, cell)
				found = p.end(found)
			}
			continue
		case item.MatchString(line):
			found = p.end(found)
			p.add(i+1, item.ReplaceAllString(line, ""))
		default:
			p.add(i+1, line)
		}
		if n := utf8.RuneCountInString(line); n > MaxColumns && !strings.HasPrefix(line, "![") {
			found = append(found, Finding{i + 1, fmt.Sprintf("%d columns", n)})
		}
	}
	return p.end(found)
}

// A paragraph is text whose sentences may go over several lines.
type paragraph struct {
	words []string
	lines []int // of the words
}

func (p *paragraph) add(line int, text string) {
	for w := range strings.FieldsSeq(text) {
		p.words, p.lines = append(p.words, w), append(p.lines, line)
	}
}

// end adds the sentences of the paragraph that are too long.
func (p *paragraph) end(found []Finding) []Finding {
	// A mark stands for each word's line, as code may have spaces in it.
	text := link.ReplaceAllString(code.ReplaceAllString(strings.Join(p.words, " "), "CODE"), "$1")
	at, from := 0, 0
	words := strings.Fields(text)
	for i, w := range words {
		if i+1 < len(words) && (!ended.MatchString(w) || shown.MatchString(w)) {
			continue
		}
		if n := i + 1 - from; n > MaxWords {
			at = max(at, p.lineOf(words[from]))
			found = append(found, Finding{at, fmt.Sprintf("a sentence of %d words: %s …", n, strings.Join(words[from:from+6], " "))})
		}
		from = i + 1
	}
	p.words, p.lines = nil, nil
	return found
}

// lineOf returns the line of a word, that of the paragraph where it is code or a link.
func (p *paragraph) lineOf(word string) int {
	for i, w := range p.words {
		if w == word {
			return p.lines[i]
		}
	}
	return p.lines[0]
}
