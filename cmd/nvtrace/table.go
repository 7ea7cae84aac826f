package main

import (
	"bytes"
	"io"
	"strings"

	"github.com/olekukonko/tablewriter"
	"github.com/olekukonko/tablewriter/tw"
)

// renderTable draws a titled table without borders. A column whose header
// starts with '>' is aligned right (and loses the sign).
func renderTable(w io.Writer, title string, header []string, rows [][]string) error {
	if len(rows) == 0 {
		return nil
	}
	names := make([]string, len(header))
	align := make(tw.Alignment, len(header))
	for i, h := range header {
		names[i], align[i] = strings.TrimPrefix(h, ">"), tw.AlignLeft
		if names[i] != h {
			align[i] = tw.AlignRight
		}
	}
	var buf bytes.Buffer
	table := tablewriter.NewTable(&buf,
		tablewriter.WithHeaderAutoFormat(tw.Off),
		tablewriter.WithHeaderAutoWrap(tw.WrapNone),
		tablewriter.WithRowAutoWrap(tw.WrapNone),
		tablewriter.WithAlignment(align),
		tablewriter.WithPadding(tw.Padding{Left: "", Right: "  ", Overwrite: true}),
		tablewriter.WithRendition(tw.Rendition{
			Borders: tw.BorderNone,
			Settings: tw.Settings{
				Lines:      tw.Lines{ShowHeaderLine: tw.Off, ShowTop: tw.Off, ShowBottom: tw.Off, ShowFooterLine: tw.Off},
				Separators: tw.SeparatorsNone,
			},
		}),
	)
	table.Header(names)
	if err := table.Bulk(rows); err != nil {
		return err
	}
	if err := table.Render(); err != nil {
		return err
	}
	var out bytes.Buffer
	if title != "" {
		out.WriteString(title + "\n")
	}
	for line := range strings.Lines(buf.String()) {
		out.WriteString("  " + strings.TrimRight(line, " \n") + "\n")
	}
	_, err := w.Write(out.Bytes())
	return err
}
