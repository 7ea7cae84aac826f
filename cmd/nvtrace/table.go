package main

import (
	"bytes"
	"io"
	"reflect"
	"strings"

	"github.com/olekukonko/tablewriter"
	"github.com/olekukonko/tablewriter/pkg/twcache"
	"github.com/olekukonko/tablewriter/tw"
)

// renderTable draws a titled table without borders. A column whose header
// starts with '>' is aligned right (and loses the sign).
func renderTable(w io.Writer, title string, header []string, rows [][]string) error {
	return new(drawer).draw(w, title, header, rows)
}

// A drawer draws one table after the other. What it draws them by is a megabyte, and
// made once.
type drawer struct {
	lines bytes.Buffer
	table *tablewriter.Table
}

func (d *drawer) prepare() {
	if d.table != nil {
		d.table.Reset()
		d.lines.Reset()
		return
	}
	d.table = tablewriter.NewTable(&d.lines,
		// Its cache is 200 KB, made anew for each table, of what there is nothing of in rows of strings.
		tablewriter.WithStringerCacheCustom(twcache.NewLRU[reflect.Type, reflect.Value](1)),
		tablewriter.WithHeaderAutoFormat(tw.Off),
		tablewriter.WithHeaderAutoWrap(tw.WrapNone),
		tablewriter.WithRowAutoWrap(tw.WrapNone),
		tablewriter.WithPadding(tw.Padding{Left: "", Right: "  ", Overwrite: true}),
		tablewriter.WithRendition(tw.Rendition{
			Borders: tw.BorderNone,
			Settings: tw.Settings{
				Lines:      tw.Lines{ShowHeaderLine: tw.Off, ShowTop: tw.Off, ShowBottom: tw.Off, ShowFooterLine: tw.Off},
				Separators: tw.SeparatorsNone,
			},
		}),
	)
}

// draw is renderTable.
func (d *drawer) draw(w io.Writer, title string, header []string, rows [][]string) error {
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
	d.prepare()
	d.table.Options(tablewriter.WithAlignment(align))
	d.table.Header(names)
	if err := d.table.Bulk(rows); err != nil {
		return err
	}
	if err := d.table.Render(); err != nil {
		return err
	}
	var out bytes.Buffer
	if title != "" {
		out.WriteString(title + "\n")
	}
	for line := range strings.Lines(d.lines.String()) {
		out.WriteString("  " + strings.TrimRight(line, " \n") + "\n")
	}
	_, err := w.Write(out.Bytes())
	return err
}
