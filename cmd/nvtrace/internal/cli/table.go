package cli

import (
	"bytes"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/olekukonko/tablewriter"
	"github.com/olekukonko/tablewriter/tw"
	"golang.org/x/sys/unix"
)

// tableIndent stands before each line of a table, and as much between its columns.
const tableIndent = "  "

// Columns returns how many columns of text a terminal has; 0 for what is none.
func Columns(w io.Writer) int {
	if p, ok := w.(*Page); ok {
		return p.columns
	}
	f, ok := Beneath(w).(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// A Page gathers text for an output, and knows how wide that is.
type Page struct {
	bytes.Buffer
	columns int
}

// NewPage makes one for w, to which it writes nothing itself.
func NewPage(w io.Writer) *Page { return &Page{columns: Columns(w)} }

// leastColumn is what is left of a column that is cut.
const leastColumn = 12

// fit makes cells printable, and cuts the widest columns of text where a table is wider than its place; 0 has room
// for all.
func fit(names []string, align []tw.Align, rows [][]string, width int) (cells [][]string, cut bool) {
	widths := make([]int, len(names))
	for i, n := range names {
		widths[i] = utf8.RuneCountInString(n)
	}
	for _, row := range rows {
		line := make([]string, len(row))
		for i, cell := range row {
			line[i] = strings.TrimSpace(Printable(cell))
			widths[i] = max(widths[i], utf8.RuneCountInString(line[i]))
		}
		cells = append(cells, line)
	}
	if width <= 0 {
		return cells, false
	}
	over := len(tableIndent)*(len(names)-1) - width
	for _, w := range widths {
		over += w
	}
	for over > 0 {
		widest := -1
		for i, w := range widths {
			if align[i] == tw.AlignLeft && w > leastColumn && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 { // numbers are not cut
			break
		}
		next := leastColumn // the next widest: both are cut then
		for i, w := range widths {
			if i != widest && align[i] == tw.AlignLeft && w <= widths[widest] {
				next = max(next, w)
			}
		}
		less := min(over, max(1, widths[widest]-next))
		widths[widest] -= less
		over -= less
	}
	for _, line := range cells {
		for i, cell := range line {
			if utf8.RuneCountInString(cell) > widths[i] {
				line[i], cut = string([]rune(cell)[:widths[i]-1])+"…", true
			}
		}
	}
	return cells, cut
}

// RenderTable draws a titled table without borders. A column whose header
// starts with '>' is aligned right (and loses the sign). Cells may have come from the
// traced program: they are made printable.
func RenderTable(w io.Writer, title string, header []string, rows [][]string) error {
	if len(rows) == 0 {
		return nil
	}
	names := make([]string, len(header))
	align := make([]tw.Align, len(header))
	for i, h := range header {
		names[i], align[i] = strings.TrimPrefix(h, ">"), tw.AlignLeft
		if names[i] != h {
			align[i] = tw.AlignRight
		}
	}
	cells, cut := fit(names, align, rows, Columns(w)-len(tableIndent))
	var lines, out bytes.Buffer
	t := tablewriter.NewTable(&lines,
		tablewriter.WithRendition(tw.Rendition{
			Borders: tw.BorderNone, Symbols: tw.NewSymbols(tw.StyleNone),
			Settings: tw.Settings{Lines: tw.LinesNone, Separators: tw.SeparatorsNone},
		}),
		tablewriter.WithPadding(tw.Padding{Right: "  ", Overwrite: true}),
		tablewriter.WithHeaderAutoFormat(tw.Off), tablewriter.WithHeaderAutoWrap(tw.WrapNone), tablewriter.WithRowAutoWrap(tw.WrapNone),
		tablewriter.WithAlignment(align),
	)
	t.Header(names)
	for _, row := range cells {
		if err := t.Append(row); err != nil {
			return err
		}
	}
	if err := t.Render(); err != nil {
		return err
	}
	if title != "" {
		out.WriteString(title + "\n")
	}
	for line := range strings.Lines(lines.String()) {
		out.WriteString(tableIndent + strings.TrimRight(line, " \n") + "\n")
	}
	if cut {
		out.WriteString(tableIndent + "(cut to fit, where a … stands; a wider terminal or | cat shows all)\n")
	}
	_, err := w.Write(out.Bytes())
	return err
}
