package view

import (
	"fmt"
	"io"

	"nvtrace/cmd/nvtrace/internal/cli"
)

// DefaultRows is how many rows the tables of a summary have; what is cut is said beneath
// them.
const DefaultRows = 10

// At the end of a run, when the program's own last lines are to stay in sight, tables
// have fewer rows, so that with all of them the summary of most runs takes at most 60
// lines with what is said of probes.
const (
	fewProcesses = 4
	fewCalls     = 6
	fewFailures  = 3
	fewMaps      = 4
	fewUnknown   = 2
	fewAPI       = 8
	fewFiles     = 3
	fewWorks     = 6
	FewGaps      = 4
)

// Layout is how a summary's tables are drawn.
type Layout struct {
	rows  int         // at most; 0: all
	few   bool        // as at the end of a run, whatever rows says
	Brief bool        // without tables of what nobody asked for who runs programs in kernels
	all   string      // how to get all of them, said where rows are cut
	taken func(table) // gets the tables in place of the text; nil: they are text
}

// ReportLayout is that of a recording's summary.
func ReportLayout(rows int) *Layout { return &Layout{rows: rows, all: "--rows 0 shows all"} }

// LiveLayout is that at the end of a run. It says where all is to be found: in the recording, if there is one.
func LiveLayout(recording string) *Layout {
	all := "--json has all"
	if recording != "" {
		all = "nvtrace report --rows 0 " + cli.Printable(recording) + " shows all"
	}
	return &Layout{few: true, all: all}
}

// cut returns how many of n rows are drawn; few is how many at the end of a run.
func (l *Layout) cut(n, few int) int {
	switch {
	case l.few:
		return min(n, few)
	case l.rows > 0:
		return min(n, l.rows)
	}
	return n
}

// table is what renderTable draws.
type table struct {
	title  string
	header []string
	rows   [][]string
	few    int // rows at the end of a run
}

// write draws tables, the first rows of each.
func (l *Layout) write(w io.Writer, tables []table) error {
	for _, t := range tables {
		rows := t.rows[:l.cut(len(t.rows), t.few)]
		if l.taken != nil {
			if len(rows) < len(t.rows) {
				t.title += fmt.Sprintf(" (%d of %d)", len(rows), len(t.rows))
			}
			t.rows = rows
			l.taken(t)
			continue
		}
		if err := cli.RenderTable(w, t.title, t.header, rows); err != nil {
			return err
		}
		if cut := len(t.rows) - len(rows); cut > 0 {
			if _, err := fmt.Fprintf(w, "  … and %d more (%s)\n", cut, l.all); err != nil {
				return err
			}
		}
	}
	return nil
}
