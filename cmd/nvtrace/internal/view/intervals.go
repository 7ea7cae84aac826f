package view

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/export"
	"nvtrace/cmd/nvtrace/internal/fleet"
	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/fatbin"
	"nvtrace/traces"
)

// Intervals writes tables while a program runs: a part of them each interval, in files that are whole or not there. It is
// an observer.
type Intervals struct {
	tables *export.Tables
	to     *tablesOf
	start  int64
	id     string // of the recording, in the names of its files
	part   int
	errs   Once
	failed bool
}

// WriteTables has the sink write tables into a folder: those in a list, or all if it is nil. run and rank name them; "": what
// the launcher says.
func (s *Sink) WriteTables(e *cli.Env, h *traces.Header, dir, run, rank string, only []string) (*Intervals, error) {
	t := &Intervals{to: &tablesOf{e: e, dir: dir, run: run, rank: rank}, start: h.Start, part: 1, errs: Once{E: e, What: "tables: ", Live: true}}
	t.to.place(dir, h)
	t.id = fmt.Sprintf("%s-%d", time.Unix(0, h.Start).UTC().Format("20060102T150405Z"), h.PID)
	t.to.part = fleet.PartName(t.id, t.part)
	var err error
	if t.tables, err = export.NewParts(func(table string) (io.Writer, error) { return t.to.open(table) }, h, s.Decoder()); err != nil {
		return nil, err
	}
	t.tables.Demangle = fatbin.Demangle
	if only != nil {
		t.tables.Only(only)
	}
	s.Follow()
	s.Show(t)
	return t, nil
}

// ParseTables reads a list of tables, nil for all.
func ParseTables(text string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	list := strings.Split(text, ",")
	for _, name := range list {
		if !slices.Contains(export.TableNames(), name) {
			return nil, fmt.Errorf("--tables: there is no table %q: want some of %s (runs, communicators and facts are always there)", name, strings.Join(export.TableNames(), ", "))
		}
	}
	return list, nil
}

// Observe implements observe.Observer.
func (t *Intervals) Observe(e *observe.Event) {
	if !t.failed {
		t.tables.Observe(e)
	}
}

// Next ends a part at a time of day. Where files can't be written, the program goes on without them.
func (t *Intervals) Next(now time.Time, end bool) {
	if t.failed {
		return
	}
	err := t.to.Finish(t.tables.Next(now.UnixNano()-t.start, end))
	t.to.files = nil
	t.part++
	t.to.part = fleet.PartName(t.id, t.part)
	if err != nil {
		t.failed = true
		t.errs.Report(fmt.Errorf("%w; no more tables are written", err))
	}
}
