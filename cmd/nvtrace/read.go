package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"nvtrace/cmd/nvtrace/internal/export"
	"nvtrace/cmd/nvtrace/internal/fleet"
	"nvtrace/fatbin"
	"nvtrace/ioctl"
	"nvtrace/rm"
	"nvtrace/traces"
	"nvtrace/traces/escape"
)

// readFlags are the flags of verbs that read a recording.
type readFlags struct {
	driver *rm.Version // nil: the recorded one
}

func (f *readFlags) register(fs *flag.FlagSet) {
	fs.Func("driver", "decode with the tables of this driver `VERSION` instead of the recorded one's", func(s string) error {
		v, err := rm.ParseVersion(s)
		f.driver = &v
		return err
	})
}

// open opens a recording, "-" being stdin, and makes a decoder for it.
func (f *readFlags) open(e *env, name string) (*traces.Reader, *ioctl.Decoder, error) {
	if name == "-" {
		name = "/dev/stdin"
	}
	e.reads(name)
	limitMemory(name)
	r, err := traces.Open(name)
	if err != nil {
		return nil, nil, err
	}
	if f.driver == nil {
		return r, ioctl.NewDecoder(&r.Header), nil
	}
	h := r.Header
	h.Driver = f.driver.String() // it alone decides, and is told of
	return r, ioctl.NewDecoder(&h), nil
}

// readerMemory is what a view of a recording takes at most beside what lies in the file, and beside its code.
const readerMemory = 40 << 20

// limitMemory has garbage collected before it is as much as what is needed: recordings may be strangers'. Where
// what is needed is more, reading takes longer.
func limitMemory(name string) {
	if st, err := os.Stat(name); err == nil && st.Mode().IsRegular() {
		debug.SetMemoryLimit(readerMemory + st.Size())
	}
}

func reportVerb(e *env, args, command []string) int {
	var rf readFlags
	var asJSON optString
	fs := newFlagSet(e, "report", "[flags] run.nvt")
	rf.register(fs)
	asJSON.registerJSON(fs)
	env := fs.Bool("env", false, "list the environment variables that CUDA's libraries asked for, if that was recorded")
	page := fs.String("html", "", "write a page with tables, timeline, flame graph and memory over time to `FILE`, and print nothing")
	rows := fs.Int("rows", defaultRows, "`N` rows of each table at most (0: all)")
	name, status, ok := e.oneRecording(fs, args, command)
	if !ok {
		return status
	}
	if *page != "" && (asJSON.set || *env) {
		return e.fail(exitUsage, "--html, --json and --env exclude each other")
	}
	if *rows < 0 {
		return e.fail(exitUsage, "--rows %d: want a number of rows, or 0 for all", *rows)
	}
	r, d, err := rf.open(e, name)
	if err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	defer r.Close()
	sink := &logSink{decoder: d, notice: func(n string) { e.notice("%s", n) }}
	sink.summarise(&r.Header)
	if *env || asJSON.set {
		sink.traceEnv()
	}
	if *page != "" {
		sink.page = export.NewPage(&r.Header, d)
		sink.page.Demangle = fatbin.Demangle
	}
	damage := e.each(r, name, e.notice, sink.Event)
	sink.finish()
	report := sink.summary.Report()
	if *page != "" {
		if err := errors.Join(damage, sink.writePage(e, *page, report)); err != nil {
			return e.fail(exitFailed, "%v", err)
		}
		return exitOK
	}
	return e.answer(&asJSON, damage, sink.withAPI(report), func() error {
		if *env {
			return sink.writeEnv(e.stdout)
		}
		return sink.writeReport(e.stdout, report, reportLayout(*rows))
	})
}

func fleetVerb(e *env, args, command []string) int {
	if len(args) > 0 && args[0] == "report" {
		return fleetReport(e, args[1:], command)
	}
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		return e.fail(exitUsage, "fleet %q: want fleet report", args[0])
	}
	return fleetReport(e, args, command)
}

// fleetReport compares the recordings of a job's ranks.
func fleetReport(e *env, args, command []string) int {
	var rf readFlags
	var asJSON optString
	var o fleet.Options
	fs := newFlagSet(e, "fleet", "report [flags] DIR|run.nvt...")
	rf.register(fs)
	asJSON.registerJSON(fs)
	fs.DurationVar(&o.Hang, "hang", 5*time.Second, "a collective that a rank has not come to, or that is not over, `TIME` after another rank came to it is a hang, if it is also five times the longest time between collectives")
	fs.Float64Var(&o.Share, "share", 0.1, "a rank is slow that the others wait for in this `PART` of the time at least")
	words, status, ok := parseAnywhere(fs, args)
	switch {
	case !ok:
		return status
	case len(words) == 0 || command != nil:
		return e.fail(exitUsage, "fleet report wants the recordings of a job's ranks, or their folder: nvtrace fleet report DIR")
	case o.Hang <= 0 || o.Share <= 0 || o.Share >= 1:
		return e.fail(exitUsage, "--hang wants a time, and --share a part of 1 above 0")
	}
	names, err := fleet.Recordings(words)
	if err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	all, failed := fleet.New(&o), 0
	for _, name := range names {
		if err := e.addRank(all, &rf, name); err != nil {
			failed++
			e.notice("%s: %v", name, err)
		}
	}
	if failed == len(names) {
		return exitFailed
	}
	r := all.Report()
	if status := e.answer(&asJSON, nil, r, func() error { return r.Write(e.stdout) }); status != exitOK {
		return status
	}
	if r.Found() {
		return exitDiffers
	}
	return exitOK
}

// addRank reads a recording. What could be read of a damaged one counts, and the damage is told.
func (e *env) addRank(all *fleet.Fleet, rf *readFlags, name string) error {
	r, d, err := rf.open(e, name)
	if err != nil {
		return err
	}
	defer r.Close()
	rank := fleet.NewRecorded(name, &r.Header)
	var c ioctl.Call
	err = each(r, func(string, ...any) {}, func(ev *traces.Event) {
		d.DecodeTo(&c, ev)
		rank.Add(ev, &c)
	})
	rank.Complete = err == nil && r.Complete()
	all.Add(rank)
	return err
}

// answer writes a verb's result, as JSON or as text does, and returns the
// status. damage is what was wrong with the recording.
func (e *env) answer(asJSON *optString, damage error, result any, text func() error) int {
	write := text
	if asJSON.set {
		write = func() error { return e.writeJSON(e.stdout, asJSON.value, result) }
	}
	if err := errors.Join(damage, write()); err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	return exitOK
}

func logVerb(e *env, args, command []string) int {
	var rf readFlags
	var lf lineFlags
	fs := newFlagSet(e, "log", "[flags] run.nvt")
	rf.register(fs)
	var sf scriptFlags
	lf.programs = &sf.texts
	lf.register(fs)
	sf.register(fs)
	var af apiFlag
	af.register(fs, "show the recorded calls of CUDA's libraries, with what happens inside them: all (the default), those of `LIBRARIES` (driver,runtime,cublas,…), or none")
	since := fs.Duration("since", 0, "begin at `TIME` since the start, such as 90s, and read nothing before: handles made before have no names")
	until := fs.Duration("until", 0, "end at `TIME` since the start (0: at the end)")
	name, status, ok := e.oneRecording(fs, args, command)
	if !ok {
		return status
	}
	filter, err := ioctl.ParseFilter(lf.exprs...)
	if err != nil {
		return e.fail(exitUsage, "%v", err)
	}
	r, d, err := rf.open(e, name)
	if err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	defer r.Close()
	sink := &logSink{
		decoder: d, filter: filter, header: heldOf(r.Header.API),
		errs: once{e: e}, notice: func(n string) { e.notice("%s", n) },
	}
	var lines *behind       // nil: a program's output is printed
	var under *bufio.Writer // what lines writes to
	switch err := sf.load(e); {
	case err != nil:
		return e.fail(exitUsage, "%v", err)
	case sf.object() != nil:
		return e.fail(exitUsage, "log: a recording has no kernels that run: only ioctl, api, apiret, alloc, free, launch, BEGIN and END can be probed in one")
	case sf.program != nil:
		sink.imaged = true // that is not known yet
		if lacks, all := sink.lacks(sf.program); all && sink.header.known {
			return e.fail(exitFailed, "%s: %s", name, lacks)
		}
		sink.imaged = false
		sink.onHost(sf.program, &r.Header, func(text string) { fmt.Fprint(e.stdout, text) })
		af.none = true
	default:
		if err := sink.printTo(e, e.stdout, &r.Header, &lf); err != nil {
			return e.fail(exitUsage, "%v", err)
		}
		under = sink.lines
		lines = newBehind(under)
		sink.lines = bufio.NewWriterSize(lines, 64<<10)
	}
	if !af.none {
		if !af.set {
			_ = af.Set("all") // as the live log of --api
		}
		sink.showAPI(af.libraries)
	}
	err = each(r, e.notice, between(r, *since, *until, sink.Event))
	sink.finish()
	sink.Idle()
	if lines != nil {
		err := lines.Close()
		if err == nil {
			err = under.Flush()
		}
		sink.errs.report(err)
	}
	if sink.script != nil {
		lacks, all := sink.lacks(sf.program)
		switch {
		case all: // what END and the maps say would be zeros
			err = errors.Join(err, fmt.Errorf("%s: %s", name, lacks))
		case lacks != "":
			sink.notice(lacks)
		}
		if !all {
			sink.script.finish(sink.notice)
		}
	} else {
		sink.unmatched(lf.exprs)
	}
	if err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	if sink.errs.said {
		return exitFailed
	}
	return exitOK
}

// writeJSON prints v to a file, or to def where name is empty.
func (e *env) writeJSON(def io.Writer, name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	b = append(b, '\n')
	if name != "" {
		return e.writeFile(name, escape.Lines(b), modeFile)
	}
	_, err = def.Write(b)
	return err
}

func versionVerb(e *env, args, _ []string) int {
	fs := newFlagSet(e, "version", "[run.nvt...]")
	man := fs.Bool("man", false, "print the manual page, for man -l -")
	shell := fs.String("completion", "", "print the completion for a `SHELL`: bash or zsh")
	names, status, ok := parseAnywhere(fs, args)
	if !ok {
		return status
	}
	if *man || *shell != "" {
		write := writeMan
		if *shell != "" {
			write = func(w io.Writer) error { return writeCompletion(w, *shell) }
		}
		if err := write(e.stdout); err != nil {
			return e.fail(exitUsage, "%v", err)
		}
		return exitOK
	}
	known := rm.Versions()
	if _, err := fmt.Fprintf(e.stdout, "nvtrace %s\ndriver versions known: %d, %s to %s\n", version, len(known), known[0], known[len(known)-1]); err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	for _, name := range names {
		r, err := traces.Open(name)
		if err != nil {
			return e.fail(exitFailed, "%v", err)
		}
		driver := "unknown"
		if r.Header.Driver != "" {
			driver = driverText(r.Header.Driver)
		}
		fmt.Fprintf(e.stdout, "%s: recorded by nvtrace %s, driver %s\n", name, printable(r.Header.Tool), driver)
		writePlace(e.stdout, &r.Header)
		if err := r.Close(); err != nil {
			return e.fail(exitFailed, "%v", err)
		}
	}
	return exitOK
}

// writePlace prints where a recording was made, as far as it says so.
func writePlace(w io.Writer, h *traces.Header) {
	var where, ranks []string
	for _, f := range []struct{ what, value string }{{"host", h.Host}, {"boot", h.Boot}, {"container", h.Container}} {
		if f.value != "" {
			where = append(where, f.what+" "+printable(f.value))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(h.Rank)) {
		ranks = append(ranks, printable(name+"="+h.Rank[name]))
	}
	if where != nil {
		fmt.Fprintf(w, "  on %s\n", strings.Join(where, ", "))
	}
	if h.GPUs != nil {
		fmt.Fprintf(w, "  GPUs: %s\n", printable(strings.Join(h.GPUs, ", ")))
	}
	if ranks != nil {
		fmt.Fprintf(w, "  ranks: %s\n", strings.Join(ranks, ", "))
	}
}

// driverText is a driver's version, with that of CUDA that its user libraries
// support: "580.159.04 (CUDA 13.0)".
func driverText(driver string) string {
	if v, err := rm.ParseVersion(driver); err == nil {
		if major, minor, ok := rm.CUDAVersion(v); ok {
			return fmt.Sprintf("%s (CUDA %d.%d)", driver, major, minor)
		}
	}
	return printable(driver)
}
