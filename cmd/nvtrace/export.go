package main

import (
	"fmt"
	"io"

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
// nil for a format that is none.
func newView(format string, w io.Writer, h *traces.Header, d *ioctl.Decoder) (view, func() error) {
	switch format {
	case "perfetto":
		t := export.NewTimeline(w, h, d)
		t.Demangle = fatbin.Demangle
		return t, t.Close
	case "pprof":
		p := export.NewProfile(h, d)
		return p, func() error { return p.Write(w) }
	}
	return nil, func() error { return nil }
}

// checkFormat refuses formats that there are not, and binary ones on a terminal.
func checkFormat(format string, terminal bool) error {
	switch format {
	case "jsonl", "raw", "perfetto":
		return nil
	case "pprof":
		if terminal {
			return fmt.Errorf("--format=pprof is binary and would garble the terminal: add -o run.pb.gz, then look at it with: go tool pprof -top -cum run.pb.gz")
		}
		return nil
	}
	return fmt.Errorf("--format=%s: want jsonl, raw, perfetto or pprof", format)
}
