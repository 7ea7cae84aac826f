package main

import (
	_ "embed"
	"encoding/json"
	"strings"
)

// search looks for words in the index, in the browser.
//
//go:embed search.js
var search []byte

// A section is a part of a page that search finds.
type section struct {
	Page  string `json:"p"`
	Title string `json:"t"` // of the page
	Head  string `json:"h"`
	At    string `json:"a"` // its anchor
	Text  string `json:"x"`
}

// index lists the sections of all pages, as JavaScript.
func (all pages) index() ([]byte, error) {
	var list []section
	for _, name := range all.names() {
		lines := strings.Split(all[name], "\n")
		s := section{Page: htmlName(name), Title: strings.TrimPrefix(lines[0], "# ")}
		code := false
		var text strings.Builder
		end := func() {
			s.Text = strings.Join(strings.Fields(text.String()), " ")
			list = append(list, s)
			text.Reset()
		}
		for _, line := range lines {
			if strings.HasPrefix(line, "```") {
				code = !code
				continue
			}
			if m := headingRE.FindStringSubmatch(line); m != nil && !code {
				if text.Len() > 0 || s.Head != "" {
					end()
				}
				s.Head, s.At = strings.ReplaceAll(m[2], "`", ""), anchor(m[2])
				continue
			}
			text.WriteString(strings.NewReplacer("`", "", "**", "", "|", " ").Replace(line) + " ")
		}
		end()
	}
	b, err := json.Marshal(list)
	return append(append([]byte("const sections="), b...), ";\n"...), err
}
