package view

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
)

// StatOf prints the counters of a recording.
func StatOf(e *cli.Env, name string) int {
	r, d, err := new(cli.ReadFlags).Open(e, name)
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	defer r.Close()
	sink := NewSink(d, e)
	sink.Summarise(&r.Header)
	sink.Count()
	damage := e.Each(r, name, e.Notice, sink.Event)
	sink.Finish()
	if err := errors.Join(damage, sink.WriteStat(e.Stdout, r.Header.Argv)); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	return cli.ExitOK
}

// writeStat prints the counters of a run.
func (s *Totals) writeStat(w io.Writer, m *Meter, argv []string) error {
	report := s.Summary.Report()
	v := s.verdict(report)
	c := &m.All
	var b strings.Builder
	what := v.program
	if len(argv) > 0 && !v.attached {
		what = strings.Join(argv, " ")
	}
	fmt.Fprintf(&b, "\n GPU counter stats for '%s':\n\n", cli.Printable(what))
	seconds := float64(v.Wall) / 1e9
	row := func(n uint64, what, more string) {
		line := fmt.Sprintf("%18s      %-26s", cli.Grouped(n), what)
		if more != "" {
			line += " #  " + more
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	rate := func(n uint64) string {
		if seconds <= 0 || n == 0 {
			return ""
		}
		return fmt.Sprintf("%.1f /s", float64(n)/seconds)
	}
	share := func(ns int64) string {
		if ns == 0 {
			return ""
		}
		return v.share(ns)
	}
	bytes := func(k Copies, spent *busy) string {
		if k.N == 0 {
			return ""
		}
		if k.Bytes == 0 { // of rows, of which it is not known
			return share(spent.Time())
		}
		return cli.Grouped(k.Bytes) + " bytes, " + share(spent.Time())
	}
	t := &m.Spent
	library := func(n uint64, what, more string) {
		if s.held().each() {
			row(n, what, more)
		} else {
			fmt.Fprintf(&b, "%18s      %-26s #  --api records it\n", "<not recorded>", what)
		}
	}
	library(c.Launches, "kernel launches", rate(c.Launches))
	if c.Graphs > 0 {
		row(c.Graphs, "graph launches", rate(c.Graphs))
	}
	library(c.ToGPU.N, "copies to the GPU", bytes(c.ToGPU, &t.toGPU))
	library(c.FromGPU.N, "copies from the GPU", bytes(c.FromGPU, &t.fromGPU))
	library(c.onGPU.N, "other copies", bytes(c.onGPU, &t.onGPU))
	library(c.allocs, "allocations", "")
	library(c.frees, "frees", "")
	library(c.syncs, "waits for the GPU", share(t.Syncs.Time()))
	library(c.loads, "loads of code", share(t.loads.Time()))
	of := "driver"
	if m.runtime && !m.driver {
		of = "runtime"
	}
	library(c.Calls, "calls of the "+of+"'s API", share(s.gathered.library.Time()))
	row(c.Ioctls, "device calls", share(v.Driver))
	failed := "failed calls"
	if !s.held().each() {
		failed = "failed device calls"
	}
	row(c.Failed, failed, "")
	if c.unended > 0 {
		row(c.unended, "calls whose return was not recorded", "only launches are counted above")
	}
	if _, peak := s.memory(0); peak > 0 {
		row(peak, "bytes of GPU memory", cli.SizeText(peak)+" at most")
	}
	fmt.Fprintf(&b, "\n%18.6f seconds elapsed\n\n", seconds)
	b.WriteString(" Times of calls are those in which at least one thread was in such a call.\n\n")
	_, err := io.WriteString(w, b.String())
	return err
}
