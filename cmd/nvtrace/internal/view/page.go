package view

import (
	"bytes"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/export"
	"nvtrace/ioctl"
)

// pageRows is how many rows the tables of a page have.
const pageRows = 50

// writePage writes what was gathered as a page of HTML.
func (s *Totals) writePage(e *cli.Env, name string, picture *export.Page, r *ioctl.Report) error {
	var summary bytes.Buffer
	var tables []export.PageTable
	l := ReportLayout(pageRows)
	l.taken = func(t table) {
		tables = append(tables, export.PageTable{Title: t.title, Header: t.header, Rows: t.rows})
	}
	if err := s.write(&summary, r, l); err != nil {
		return err
	}
	var page bytes.Buffer
	if err := picture.Write(&page, summary.String(), tables); err != nil {
		return err
	}
	return e.WriteFile(name, page.Bytes(), cli.ModeFile)
}
