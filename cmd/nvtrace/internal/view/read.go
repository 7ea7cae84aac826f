package view

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/export"
	"nvtrace/cmd/nvtrace/internal/fleet"
	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/cmd/nvtrace/internal/probe"
	"nvtrace/fatbin"
	"nvtrace/ioctl"
	"nvtrace/traces"
)

// ReportVerb prints the summary of a recording.
func ReportVerb(e *cli.Env, args, command []string) int {
	var rf cli.ReadFlags
	var asJSON cli.OptString
	fs := cli.NewFlagSet(e, "report", "[flags] run.nvt")
	rf.Register(fs)
	asJSON.RegisterJSON(fs)
	env := fs.Bool("env", false, "list the environment variables that CUDA's libraries asked for, if that was recorded")
	page := fs.String("html", "", "write a page with tables, timeline, flame graph and memory over time to `FILE`, and print nothing")
	rows := fs.Int("rows", DefaultRows, "`N` rows of each table at most (0: all)")
	name, status, ok := e.OneRecording(fs, args, command)
	if !ok {
		return status
	}
	if *page != "" && (asJSON.Given || *env) {
		return e.Fail(cli.ExitUsage, "--html, --json and --env exclude each other")
	}
	if *rows < 0 {
		return e.Fail(cli.ExitUsage, "--rows %d: want a number of rows, or 0 for all", *rows)
	}
	r, d, err := rf.Open(e, name)
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	defer r.Close()
	sink := NewSink(d, e)
	sink.Summarise(&r.Header)
	if *env || asJSON.Given {
		sink.TraceEnv()
	}
	var picture *export.Page
	if *page != "" {
		picture = export.NewPage(&r.Header, d)
		picture.Demangle = fatbin.Demangle
		sink.Register(picture)
	}
	damage := e.Each(r, name, e.Notice, sink.Event)
	sink.Finish()
	report := sink.Totals.Summary.Report()
	if *page != "" {
		if err := errors.Join(damage, sink.Totals.writePage(e, *page, picture, report)); err != nil {
			return e.Fail(cli.ExitFailed, "%v", err)
		}
		return cli.ExitOK
	}
	return e.Answer(&asJSON, damage, sink.WithAPI(report), func() error {
		if *env {
			return sink.WriteEnv(e.Stdout)
		}
		return sink.WriteReport(e.Stdout, report, ReportLayout(*rows))
	})
}

// FleetVerb compares the ranks of a job by their recordings.
func FleetVerb(e *cli.Env, args, command []string) int {
	if len(args) > 0 && args[0] == "report" {
		return fleetReport(e, args[1:], command)
	}
	if len(args) > 0 && args[0] == "watch" {
		return fleetWatch(e, args[1:], command)
	}
	if len(args) > 0 && args[0] == "merge" {
		return fleetMerge(e, args[1:], command)
	}
	if len(args) > 0 && args[0] == "ras" {
		return fleetRAS(e, args[1:], command)
	}
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		return e.Fail(cli.ExitUsage, "fleet %q: want fleet report, watch, merge or ras", args[0])
	}
	return fleetReport(e, args, command)
}

// registerFleet defines the flags of comparing ranks.
func registerFleet(fs *flag.FlagSet, o *fleet.Options) {
	fs.DurationVar(&o.Hang, "hang", 5*time.Second, "a collective that a rank has not come to, or that is not over, `TIME` after another rank came to it is a hang, if it is also five times the longest time between collectives")
	fs.Float64Var(&o.Share, "share", 0.1, "a rank is slow that the others wait for in this `PART` of the time at least")
}

// badFleet says what is wrong with them.
const badFleet = "--hang wants a time, and --share a part of 1 above 0"

func fleetOK(o *fleet.Options) bool { return o.Hang > 0 && o.Share > 0 && o.Share < 1 }

// fleetReport compares the recordings of a job's ranks.
func fleetReport(e *cli.Env, args, command []string) int {
	var rf cli.ReadFlags
	var asJSON cli.OptString
	var o fleet.Options
	fs := cli.NewFlagSet(e, "fleet", "report [flags] DIR|run.nvt...")
	rf.Register(fs)
	asJSON.RegisterJSON(fs)
	registerFleet(fs, &o)
	words, status, ok := cli.ParseAnywhere(fs, args)
	switch {
	case !ok:
		return status
	case len(words) == 0 || command != nil:
		return e.Fail(cli.ExitUsage, "fleet report wants the recordings of a job's ranks, or their folder: nvtrace fleet report DIR")
	case !fleetOK(&o):
		return e.Fail(cli.ExitUsage, badFleet)
	}
	found, err := fleet.Find(words)
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	all, failed := fleet.New(&o), 0
	if failed, err = addTables(e, all, found.Tables); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	for _, name := range found.Recordings {
		if err := addRank(e, all, &rf, name); err != nil {
			failed++
			if _, named := errors.AsType[*traces.DamageError](err); !named {
				err = fmt.Errorf("%s: %w", name, err)
			}
			e.Notice("%v", err)
		}
	}
	if failed == len(found.Recordings)+len(found.Tables) {
		return cli.ExitFailed
	}
	r := all.Report()
	if status := e.Answer(&asJSON, nil, r, func() error { return r.Write(e.Stdout) }); status != cli.ExitOK {
		return status
	}
	if r.Found() {
		return cli.ExitDiffers
	}
	return cli.ExitOK
}

// addTables reads recordings in the form of tables, and returns how many could not be read.
func addTables(e *cli.Env, all *fleet.Fleet, list []*fleet.Tables) (failed int, err error) {
	if len(list) == 0 {
		return 0, nil
	}
	r, err := fleet.NewTableReader()
	if err != nil {
		return 0, err
	}
	for _, t := range list {
		if err := all.AddTables(r, t); err != nil {
			failed++
			e.Notice("%v", err)
		}
	}
	return failed, nil
}

// addRank reads a recording. What could be read of a damaged one counts, and the damage is told.
func addRank(e *cli.Env, all *fleet.Fleet, rf *cli.ReadFlags, name string) error {
	r, d, err := rf.Open(e, name)
	if err != nil {
		return err
	}
	defer r.Close()
	rank := fleet.NewRecorded(name, &r.Header)
	feed := observe.NewFeed(d, rank)
	feed.Follow()
	err = cli.Each(r, func(string, ...any) {}, feed.Event)
	rank.Complete = err == nil && r.Complete()
	all.Add(rank.Part(true))
	return err
}

// LogVerb prints the calls of a recording.
func LogVerb(e *cli.Env, args, command []string) int {
	var rf cli.ReadFlags
	var lf LineFlags
	fs := cli.NewFlagSet(e, "log", "[flags] run.nvt")
	rf.Register(fs)
	var sf probe.ScriptFlags
	lf.Programs = &sf.Texts
	lf.Register(fs)
	sf.Register(fs)
	var af APIFlag
	af.Register(fs, "show the recorded calls of CUDA's libraries, with what happens inside them: all (the default), those of `LIBRARIES` (driver,runtime,cublas,…), or none")
	since := fs.Duration("since", 0, "begin at `TIME` since the start, such as 90s, and read nothing before: handles made before have no names")
	until := fs.Duration("until", 0, "end at `TIME` since the start (0: at the end)")
	name, status, ok := e.OneRecording(fs, args, command)
	if !ok {
		return status
	}
	filter, err := ioctl.ParseFilter(lf.Exprs...)
	if err != nil {
		return e.Fail(cli.ExitUsage, "%v", err)
	}
	r, d, err := rf.Open(e, name)
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	defer r.Close()
	sink := NewSink(d, e)
	sink.Filter, sink.holds.header = filter, heldOf(r.Header.API)
	var lines *cli.Behind   // nil: a program's output is printed
	var under *bufio.Writer // what lines writes to
	switch err := sf.Load(e); {
	case err != nil:
		return e.Fail(cli.ExitUsage, "%v", err)
	case sf.Object() != nil:
		return e.Fail(cli.ExitUsage, "log: a recording has no kernels that run: only ioctl, api, apiret, alloc, free, launch, BEGIN and END can be probed in one")
	case sf.Program != nil:
		sink.holds.imaged = true // that is not known yet
		if lacks, all := sink.holds.lacks(sf.Program); all && sink.holds.header.known {
			return e.Fail(cli.ExitFailed, "%s: %s", name, lacks)
		}
		sink.holds.imaged = false
		sink.OnHost(sf.Program, &r.Header, func(text string) { fmt.Fprint(e.Stdout, text) })
		af.None = true
	default:
		if err := sink.PrintTo(e, e.Stdout, &r.Header, &lf); err != nil {
			return e.Fail(cli.ExitUsage, "%v", err)
		}
		under = sink.Lines.W
		lines = cli.NewBehind(under)
		sink.Lines.W = bufio.NewWriterSize(lines, 64<<10)
	}
	if !af.None {
		if !af.Given {
			_ = af.Set("all") // as the live log of --api
		}
		sink.ShowAPI(af.Libraries)
	}
	err = cli.Each(r, e.Notice, cli.Between(r, *since, *until, sink.Event))
	sink.Finish()
	sink.Idle()
	if lines != nil {
		err := lines.Close()
		if err == nil {
			err = under.Flush()
		}
		sink.Errs.Report(err)
	}
	if sink.Script != nil {
		lacks, all := sink.holds.lacks(sf.Program)
		switch {
		case all: // what END and the maps say would be zeros
			err = errors.Join(err, fmt.Errorf("%s: %s", name, lacks))
		case lacks != "":
			sink.Notice(lacks)
		}
		if !all {
			notice := sink.Notice
			if counted := sink.holds.onlyCounted(sf.Program); counted != "" {
				notice(counted)
				notice = func(string) {} // that nothing happened
			}
			sink.Script.Finish(notice)
		}
	} else {
		sink.Unmatched(lf.Exprs)
	}
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	if sink.Errs.Said {
		return cli.ExitFailed
	}
	return cli.ExitOK
}

// WritePlace prints where a recording was made, as far as it says so.
func WritePlace(w io.Writer, h *traces.Header) {
	var where, ranks []string
	for _, f := range []struct{ what, value string }{{"host", h.Host}, {"boot", h.Boot}, {"container", h.Container}} {
		if f.value != "" {
			where = append(where, f.what+" "+cli.Printable(f.value))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(h.Rank)) {
		ranks = append(ranks, cli.Printable(name+"="+h.Rank[name]))
	}
	if where != nil {
		fmt.Fprintf(w, "  on %s\n", strings.Join(where, ", "))
	}
	if h.GPUs != nil {
		fmt.Fprintf(w, "  GPUs: %s\n", cli.Printable(strings.Join(h.GPUs, ", ")))
	}
	if ranks != nil {
		fmt.Fprintf(w, "  ranks: %s\n", strings.Join(ranks, ", "))
	}
}
