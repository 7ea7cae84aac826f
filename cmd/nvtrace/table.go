package main

import (
	"bytes"
	"io"
	"strings"

	"github.com/olekukonko/tablewriter"
)

// renderTable draws a titled table without borders. A column whose header
// starts with '>' is aligned right (and loses the sign). Cells may have come from the
// traced program: they are made printable.
func renderTable(w io.Writer, title string, header []string, rows [][]string) error {
	if len(rows) == 0 {
		return nil
	}
	names := make([]string, len(header))
	align := make([]int, len(header))
	for i, h := range header {
		names[i], align[i] = strings.TrimPrefix(h, ">"), tablewriter.ALIGN_LEFT
		if names[i] != h {
			align[i] = tablewriter.ALIGN_RIGHT
		}
	}
	var lines, out bytes.Buffer
	t := tablewriter.NewWriter(&lines)
	t.SetAutoWrapText(false)
	t.SetBorder(false)
	t.SetColumnSeparator("")
	t.SetTablePadding("  ")
	t.SetNoWhiteSpace(true)
	t.SetColumnAlignment(align)
	t.Append(names) // as a row: the names of all columns would be aligned alike
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = strings.TrimSpace(printable(cell))
		}
		t.Append(cells)
	}
	t.Render()
	if title != "" {
		out.WriteString(title + "\n")
	}
	for line := range strings.Lines(lines.String()) {
		out.WriteString("  " + strings.TrimRight(line, " \n") + "\n")
	}
	_, err := w.Write(out.Bytes())
	return err
}
