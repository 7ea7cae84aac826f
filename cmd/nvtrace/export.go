package main

import (
	"fmt"
	"io"
	"os"

	"nvtrace/fatbin"
	"nvtrace/ioctl"
	"nvtrace/traces"
	"nvtrace/traces/export"
)

// view is a picture of a recording that is made event by event.
type view interface {
	Add(ev *traces.Event, c *ioctl.Call)
	Skip(ev *traces.Event, c *ioctl.Call)
}

// newView returns the view that a format names, and what writes the rest of it;
// nil for a format that is none. limit and survey are for a timeline: its size, and what
// was seen of the recording before.
func newView(format string, w io.Writer, h *traces.Header, d *ioctl.Decoder, limit int64, survey *export.Survey, notice func(string, ...any)) (view, func() error) {
	switch format {
	case "perfetto":
		t := export.NewTimeline(w, h, d)
		t.Demangle = fatbin.Demangle
		if limit > 0 {
			t.Limit(limit, survey)
		}
		return t, func() error {
			err := t.Close()
			switch least, left := t.Merged(); {
			case err != nil:
			case left > 0:
				notice("%d events found no room in the trace: --max-size makes it larger", left)
			case least > 0:
				notice("calls shorter than %s are drawn together, so that the trace can be opened: --max-size sets how large it becomes", duration(least))
			}
			return err
		}
	case "pprof":
		p := export.NewProfile(h, d)
		return p, func() error { return p.Write(w) }
	}
	return nil, func() error { return nil }
}

// checkFormat refuses formats that there are not, and binary ones on a terminal.
func checkFormat(format string, terminal bool) error {
	switch format {
	case "jsonl", "raw":
		return nil
	case "perfetto":
		if terminal {
			return fmt.Errorf("--format=perfetto is binary and would garble the terminal: add -o run.perfetto-trace, then open it in https://ui.perfetto.dev")
		}
		return nil
	case "pprof":
		if terminal {
			return fmt.Errorf("--format=pprof is binary and would garble the terminal: add -o run.pb.gz, then look at it with: go tool pprof -top -cum run.pb.gz")
		}
		return nil
	}
	return fmt.Errorf("--format=%s: want jsonl, raw, perfetto or pprof", format)
}

// surveyed is the size of a recording from which on it is read twice for a timeline: to see
// how much of it that can show, then to draw it.
const surveyed = 1 << 20

// survey reads a recording before a timeline is made of it. It is nil where the recording
// is small, or can't be read twice.
func (e *env) survey(name string) *export.Survey {
	if st, err := os.Stat(name); err != nil || !st.Mode().IsRegular() || st.Size() < surveyed {
		return nil
	}
	r, err := traces.Open(name)
	if err != nil {
		return nil // is told of when it is read to be drawn
	}
	defer r.Close()
	s := export.NewSurvey()
	_ = each(r, func(string, ...any) {}, s.Add)
	return s
}
