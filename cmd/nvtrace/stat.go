package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// statVerb runs a program and prints counters at its end, in the form of perf stat; or
// those of a recording.
func statVerb(e *env, args, command []string) int {
	if command == nil && len(args) == 1 && !isPID(args[0]) && isRecording(args[0]) {
		return e.statOf(args[0])
	}
	return runAs(e, "stat", []string{"--stat", "-q"}, "[flags of run] -- command [args] | PID | run.nvt", args, command)
}

// runAs is a verb that runs a program with flags of its own before those that are given.
func runAs(e *env, verb string, own []string, usage string, args, command []string) int {
	if slices.ContainsFunc(args, func(a string) bool { return a == "-h" || a == "-help" || a == "--help" }) {
		newFlagSet(e, verb, usage).Usage()
		return exitOK
	}
	args = pidFlags(e, args, command)
	if command == nil && !slices.ContainsFunc(args, func(a string) bool { return strings.TrimLeft(a, "-") == "p" || strings.HasPrefix(a, "-p=") }) {
		if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
			return e.fail(exitFailed, "%q: put -- before the command: nvtrace %s -- %s", args[0], verb, shellText(args))
		}
		return e.fail(exitFailed, "no command; type: nvtrace %s -- command [args]; of a program that runs: its PID, or --all-gpu-processes", verb)
	}
	return runVerb(e, append(own, args...), command)
}

// statOf prints the counters of a recording.
func (e *env) statOf(name string) int {
	r, d, err := new(readFlags).open(e, name)
	if err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	defer r.Close()
	sink := &logSink{decoder: d, notice: func(n string) { e.notice("%s", n) }, meter: newMeter()}
	sink.summarise(&r.Header)
	damage := e.each(r, name, e.notice, sink.Event)
	sink.finish()
	if err := errors.Join(damage, sink.writeStat(e.stdout, r.Header.Argv)); err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	return exitOK
}

// grouped writes a number with commas.
func grouped(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// writeStat prints the counters of a run.
func (s *logSink) writeStat(w io.Writer, argv []string) error {
	report := s.summary.Report()
	v := s.verdict(report)
	c := &s.meter.all
	var b strings.Builder
	what := v.program
	if len(argv) > 0 && !v.attached {
		what = strings.Join(argv, " ")
	}
	fmt.Fprintf(&b, "\n GPU counter stats for '%s':\n\n", printable(what))
	seconds := float64(v.Wall) / 1e9
	row := func(n uint64, what, more string) {
		line := fmt.Sprintf("%18s      %-26s", grouped(n), what)
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
	bytes := func(k copies, spent *busy) string {
		if k.n == 0 {
			return ""
		}
		if k.bytes == 0 { // of rows, of which it is not known
			return share(spent.time())
		}
		return grouped(k.bytes) + " bytes, " + share(spent.time())
	}
	t := &s.meter.spent
	library := func(n uint64, what, more string) {
		if s.held().each() {
			row(n, what, more)
		} else {
			fmt.Fprintf(&b, "%18s      %-26s #  --api records it\n", "<not recorded>", what)
		}
	}
	library(c.launches, "kernel launches", rate(c.launches))
	if c.graphs > 0 {
		row(c.graphs, "graph launches", rate(c.graphs))
	}
	library(c.toGPU.n, "copies to the GPU", bytes(c.toGPU, &t.toGPU))
	library(c.fromGPU.n, "copies from the GPU", bytes(c.fromGPU, &t.fromGPU))
	library(c.onGPU.n, "other copies", bytes(c.onGPU, &t.onGPU))
	library(c.allocs, "allocations", "")
	library(c.frees, "frees", "")
	library(c.syncs, "waits for the GPU", share(t.syncs.time()))
	library(c.loads, "loads of code", share(t.loads.time()))
	of := "driver"
	if s.meter.runtime && !s.meter.driver {
		of = "runtime"
	}
	library(c.calls, "calls of the "+of+"'s API", share(s.observer.library.time()))
	row(c.ioctls, "device calls", share(v.Driver))
	failed := "failed calls"
	if !s.held().each() {
		failed = "failed device calls"
	}
	row(c.failed, failed, "")
	if c.unended > 0 {
		row(c.unended, "calls whose return was not recorded", "only launches are counted above")
	}
	if _, peak := s.memory(0); peak > 0 {
		row(peak, "bytes of GPU memory", sizeText(peak)+" at most")
	}
	fmt.Fprintf(&b, "\n%18.6f seconds elapsed\n\n", seconds)
	b.WriteString(" Times of calls are those in which at least one thread was in such a call.\n\n")
	_, err := io.WriteString(w, b.String())
	return err
}
