package main

import (
	"fmt"
	"html"
	"regexp"
	"strings"
)

// render makes HTML of Markdown: headings, paragraphs, lists, tables, code, links, pictures
// and bold text, which is what the pages have. link changes the target of a link.
func render(text string, link func(target string) string) string {
	r := &renderer{lines: strings.Split(strings.ReplaceAll(text, "\r", ""), "\n"), link: link}
	for r.at < len(r.lines) {
		r.block()
	}
	return r.out.String()
}

type renderer struct {
	lines []string
	at    int
	link  func(string) string
	out   strings.Builder
}

var (
	headingRE = regexp.MustCompile(`^(#{1,6}) +(.*)$`)
	itemRE    = regexp.MustCompile(`^ {0,3}(?:[*-]|(\d+)\.) +(.*)$`)
	commentRE = regexp.MustCompile(`^<!--.*-->$`)
)

// block renders what begins at the current line.
func (r *renderer) block() {
	line := r.lines[r.at]
	switch {
	case strings.TrimSpace(line) == "", commentRE.MatchString(line):
		r.at++
	case strings.HasPrefix(line, "```"):
		r.fenced()
	case strings.HasPrefix(line, "    "):
		r.indented()
	case headingRE.MatchString(line):
		m := headingRE.FindStringSubmatch(line)
		fmt.Fprintf(&r.out, "<h%d id=%q>%s</h%d>\n", len(m[1]), anchor(m[2]), r.inline(m[2]), len(m[1]))
		r.at++
	case strings.HasPrefix(line, "|"):
		r.table()
	case itemRE.MatchString(line):
		r.list()
	default:
		r.paragraph()
	}
}

// anchor is what a heading is linked by, as forges have it.
func anchor(heading string) string {
	var b strings.Builder
	for _, c := range strings.ToLower(heading) {
		switch {
		case c == ' ' || c == '-':
			b.WriteByte('-')
		case c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c > 0x7f:
			b.WriteRune(c)
		}
	}
	return b.String()
}

func (r *renderer) code(lines []string) {
	fmt.Fprintf(&r.out, "<pre><code>%s\n</code></pre>\n", html.EscapeString(strings.Join(lines, "\n")))
}

func (r *renderer) fenced() {
	from := r.at + 1
	for r.at++; r.at < len(r.lines) && !strings.HasPrefix(r.lines[r.at], "```"); {
		r.at++
	}
	r.code(r.lines[from:r.at])
	r.at++
}

func (r *renderer) indented() {
	var lines []string
	for ; r.at < len(r.lines); r.at++ {
		line, ok := strings.CutPrefix(r.lines[r.at], "    ")
		if !ok && strings.TrimSpace(line) != "" {
			break
		}
		lines = append(lines, line)
	}
	for len(lines) > 0 && strings.TrimSpace(lines[len(lines)-1]) == "" {
		lines = lines[:len(lines)-1]
	}
	r.code(lines)
}

// cells takes apart a row of a table; a bar behind a backslash, or in code, is text.
func cells(line string) (list []string) {
	var b strings.Builder
	inCode := false
	line = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(line), "|"), "|")
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\\' && i+1 < len(line) && line[i+1] == '|':
			b.WriteByte('|')
			i++
			continue
		case c == '|' && !inCode:
			list = append(list, strings.TrimSpace(b.String()))
			b.Reset()
			continue
		case c == '`':
			inCode = !inCode
		}
		b.WriteByte(line[i])
	}
	return append(list, strings.TrimSpace(b.String()))
}

func (r *renderer) table() {
	r.out.WriteString("<div class=\"wide\"><table>\n")
	for n := 0; r.at < len(r.lines) && strings.HasPrefix(r.lines[r.at], "|"); n++ {
		line := r.lines[r.at]
		r.at++
		tag := "td"
		switch n {
		case 0:
			tag = "th"
		case 1:
			continue // of dashes
		}
		r.out.WriteString("<tr>")
		for _, c := range cells(line) {
			fmt.Fprintf(&r.out, "<%s>%s</%s>", tag, r.inline(c), tag)
		}
		r.out.WriteString("</tr>\n")
	}
	r.out.WriteString("</table></div>\n")
}

// list renders items; lines that are moved in belong to the item before.
func (r *renderer) list() {
	tag := "ul"
	if itemRE.FindStringSubmatch(r.lines[r.at])[1] != "" {
		tag = "ol"
	}
	fmt.Fprintf(&r.out, "<%s>\n", tag)
	for r.at < len(r.lines) {
		m := itemRE.FindStringSubmatch(r.lines[r.at])
		if m == nil {
			break
		}
		lines := []string{m[2]}
		for r.at++; r.at < len(r.lines) && strings.HasPrefix(r.lines[r.at], "  ") && !itemRE.MatchString(r.lines[r.at]); r.at++ {
			lines = append(lines, strings.TrimSpace(r.lines[r.at]))
		}
		fmt.Fprintf(&r.out, "<li>%s</li>\n", r.inline(strings.Join(lines, "\n")))
	}
	fmt.Fprintf(&r.out, "</%s>\n", tag)
}

func (r *renderer) paragraph() {
	var lines []string
	for ; r.at < len(r.lines); r.at++ {
		l := r.lines[r.at]
		if strings.TrimSpace(l) == "" || strings.HasPrefix(l, "```") || strings.HasPrefix(l, "|") || headingRE.MatchString(l) || itemRE.MatchString(l) {
			break
		}
		lines = append(lines, l)
	}
	if len(lines) == 0 { // it can't be, but must not hang
		r.at++
		return
	}
	fmt.Fprintf(&r.out, "<p>%s</p>\n", r.inline(strings.Join(lines, "\n")))
}

var (
	codeRE = regexp.MustCompile("`([^`]*)`")
	linkRE = regexp.MustCompile(`(!?)\[([^\]]*)\]\(([^)]*)\)`)
	boldRE = regexp.MustCompile(`\*\*([^*]+)\*\*`)
)

// inline renders code, links, pictures and bold text.
func (r *renderer) inline(text string) string {
	var b strings.Builder
	at := 0
	for _, m := range codeRE.FindAllStringSubmatchIndex(text, -1) {
		b.WriteString(r.words(text[at:m[0]]))
		code := html.EscapeString(text[m[2]:m[3]])
		if topic, ok := strings.CutPrefix(code, "nvtrace help "); ok && topics[topic] != "" {
			fmt.Fprintf(&b, "<a href=\"%s\"><code>%s</code></a>", htmlName(topics[topic]), code)
		} else {
			fmt.Fprintf(&b, "<code>%s</code>", code)
		}
		at = m[1]
	}
	b.WriteString(r.words(text[at:]))
	// Links may hold code: their brackets are looked for last.
	out := linkRE.ReplaceAllStringFunc(b.String(), func(s string) string {
		m := linkRE.FindStringSubmatch(s)
		target := html.EscapeString(r.link(html.UnescapeString(m[3])))
		if m[1] == "!" {
			return fmt.Sprintf("<img src=\"%s\" alt=\"%s\">", target, m[2])
		}
		if target == "" {
			return m[2]
		}
		return fmt.Sprintf("<a href=\"%s\">%s</a>", target, m[2])
	})
	return out
}

// words renders text without code; a backslash makes the next sign a plain one.
func (r *renderer) words(text string) string {
	text = html.EscapeString(regexp.MustCompile(`\\([_*\[\]|])`).ReplaceAllString(text, "$1"))
	return boldRE.ReplaceAllString(text, "<strong>$1</strong>")
}
