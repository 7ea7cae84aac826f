package main

import (
	"fmt"
	"html"
	"strings"
	"unicode/utf8"
)

// svg makes a picture of what a terminal shows; lines that begin with "[" and end with "]"
// stand out, as in the goldens of nvtrace top.
func svg(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	width := 0
	for _, l := range lines {
		width = max(width, utf8.RuneCountInString(strings.Trim(l, "[]")))
	}
	const char, line, edge = 7.83, 17, 10 // of a font of 13 pixels
	var b strings.Builder
	w, h := int(char*float64(width))+2*edge, line*len(lines)+2*edge
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\">\n<rect width=\"100%%\" height=\"100%%\" rx=\"6\" fill=\"#181818\"/>\n"+
		"<g font-family=\"ui-monospace,DejaVu Sans Mono,monospace\" font-size=\"13\" fill=\"#ddd\" xml:space=\"preserve\">\n", w, h, w, h)
	for i, l := range lines {
		y := edge + line*i
		fill := ""
		if strings.HasPrefix(l, "[") && strings.HasSuffix(l, "]") {
			l = l[1 : len(l)-1]
			fmt.Fprintf(&b, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#ddd\"/>\n", edge, y, w-2*edge, line)
			fill = " fill=\"#181818\""
		}
		if strings.TrimSpace(l) != "" {
			fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\"%s textLength=\"%d\" lengthAdjust=\"spacingAndGlyphs\">%s</text>\n",
				edge, y+13, fill, int(char*float64(utf8.RuneCountInString(l))), html.EscapeString(strings.ReplaceAll(l, " ", "\u00a0")))
		}
	}
	b.WriteString("</g>\n</svg>\n")
	return b.String()
}
