package view

import (
	"bytes"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/export"
	"nvtrace/ioctl"
)

// pageRows is how many rows the tables of a page have.
const pageRows = 50

// writePage writes what the sink has gathered as a page of HTML.
func (s *Sink) writePage(e *cli.Env, name string, r *ioctl.Report) error {
	var summary bytes.Buffer
	var tables []export.PageTable
	l := ReportLayout(pageRows)
	l.taken = func(t table) {
		tables = append(tables, export.PageTable{Title: t.title, Header: t.header, Rows: t.rows})
	}
	if err := s.WriteReport(&summary, r, l); err != nil {
		return err
	}
	var page bytes.Buffer
	if err := s.page.Write(&page, summary.String(), tables); err != nil {
		return err
	}
	return e.WriteFile(name, page.Bytes(), cli.ModeFile)
}
