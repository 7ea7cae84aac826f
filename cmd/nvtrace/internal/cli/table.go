package cli

import (
	"bytes"
	"io"
	"strings"

	"github.com/olekukonko/tablewriter"
	"github.com/olekukonko/tablewriter/tw"
)

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
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = strings.TrimSpace(Printable(cell))
		}
		if err := t.Append(cells); err != nil {
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
		out.WriteString("  " + strings.TrimRight(line, " \n") + "\n")
	}
	_, err := w.Write(out.Bytes())
	return err
}
