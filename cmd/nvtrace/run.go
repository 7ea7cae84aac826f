package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"

	"golang.org/x/sys/unix"

	"nvtrace/ioctl"
	"nvtrace/ioctl/record"
	"nvtrace/ptrace"
	"nvtrace/traces"
)

// devices lets tests record calls on files that are no device nodes.
type devices struct {
	nodeName  func(rdev uint64, path string) (string, bool)
	mayBeNode func(path []byte) bool
	stat      func(pid int, fd int32) (rdev uint64, path string, ok bool)
}

// runFlags are the flags of tracing a program.
type runFlags struct {
	lines          lineFlags
	log, json      optString
	out, seccomp   string
	summary, quiet bool
	counts, munmap bool
	noExitKill     bool
	orphans        string
	pid            int
	set            *flag.FlagSet
}

func newRunFlags(e *env) *runFlags {
	f := &runFlags{set: newFlagSet(e, "run", "[flags] -- command [args]")}
	f.set.Var(&f.log, "ioctl-log", "print each device call, to stderr or with =`FILE` to a file")
	f.set.BoolVar(&f.summary, "summary", false, "print the summary also with --ioctl-log")
	f.set.BoolVar(&f.quiet, "q", false, "print no summary")
	f.set.Var(&f.json, "json", "print the summary as JSON, to stderr or with =`FILE` to a file")
	f.set.StringVar(&f.out, "o", "", "record to `FILE` (.nvt compressed, .jsonl plain)")
	f.set.IntVar(&f.pid, "p", 0, "attach to the running process `PID` instead of starting a command")
	f.set.StringVar(&f.seccomp, "seccomp", "auto", "`MODE` auto: a seccomp filter picks the calls to stop at; off: stop at every call")
	f.set.BoolVar(&f.counts, "counts", false, "count ioctls only: no results, times or written bytes, at half the cost")
	f.set.BoolVar(&f.munmap, "munmap", false, "record munmap and mremap of device mappings too")
	f.set.BoolVar(&f.noExitKill, "no-exitkill", false, "if nvtrace is killed, let the program live (its device calls then fail with ENOSYS)")
	f.set.StringVar(&f.orphans, "orphans", "wait", "processes that outlive the program, `HOW`: wait, kill, or detach (with --seccomp=off)")
	f.lines.register(f.set)
	return f
}

// runVerb traces a program. Every status of its own is one that env(1) keeps
// from the program's: 125 for a bad command line too.
func runVerb(e *env, args, command []string) int {
	f := newRunFlags(e)
	if status, ok := parse(f.set, args); !ok {
		return programStatus(status)
	}
	attach := false
	f.set.Visit(func(fl *flag.Flag) { attach = attach || fl.Name == "p" })
	switch {
	case f.set.NArg() > 0:
		return e.fail(exitFailed, "%s", f.misplaced(args, command))
	case attach && f.pid <= 0:
		return e.fail(exitFailed, "-p %d: not a process id", f.pid)
	case attach && len(command) > 0:
		return e.fail(exitFailed, "-p %d and a command exclude each other", f.pid)
	case !attach && len(command) == 0:
		return e.fail(exitFailed, "no command; type: nvtrace -- command [args]")
	}
	return f.run(e, command)
}

// programStatus turns the status of a bad command line into one that can't be
// taken for the traced program's.
func programStatus(status int) int {
	if status == exitUsage {
		return exitFailed
	}
	return status
}

// misplaced says how to type a command line that has a word before the "--".
func (f *runFlags) misplaced(args, command []string) string {
	word, before := f.set.Arg(0), args[:len(args)-f.set.NArg()]
	if n := len(before); n > 0 {
		name := strings.TrimLeft(before[n-1], "-")
		if fl := f.set.Lookup(name); fl != nil && (name == "ioctl-log" || name == "json") {
			return fmt.Sprintf("%q: a file for --%s is joined to it: --%s=%s", word, name, name, word)
		}
	}
	return fmt.Sprintf("%q: put -- before the command: nvtrace %s-- %s", word, flagText(args, f.set.NArg()),
		strings.Join(append(f.set.Args(), command...), " "))
}

// flagText returns the flags as they were typed, with a space behind, for an
// error that shows how to type it.
func flagText(args []string, rest int) string {
	flags := args[:len(args)-rest]
	if len(flags) == 0 {
		return ""
	}
	return strings.Join(flags, " ") + " "
}

// session is one tracing run and its outputs.
type session struct {
	e      *env
	f      *runFlags
	opts   record.Options
	log    *logSink
	file   *traces.Writer // nil: not recorded
	closes []io.Closer
}

func (f *runFlags) run(e *env, command []string) int {
	// Where nobody reads stderr any more, the program goes on: a write then
	// fails, and does not end nvtrace, and with it the program.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	s := &session{e: e, f: f}
	if err := s.configure(command); err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	if err := s.openOutputs(); err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	res, err := s.trace()
	s.closeOutputs()
	if err != nil && !res.Ended {
		return e.fail(failStatus(err), "%v", err)
	}
	if err != nil {
		e.notice("%v", err)
	}
	if err := s.summarise(); err != nil {
		e.notice("summary: %v", err)
	}
	if !res.Ended { // detached
		return exitOK
	}
	return endAs(res.Status)
}

func (s *session) trace() (record.Result, error) {
	if s.f.pid == 0 {
		return record.Run(context.Background(), &s.opts)
	}
	// The first SIGINT, SIGTERM or SIGHUP detaches; a second one ends nvtrace, as
	// it must where a thread sleeps in a driver and can't be detached.
	s.opts.Sinks = append(s.opts.Sinks, &attachNotice{e: s.e, pid: s.f.pid})
	return record.Attach(context.Background(), s.f.pid, &s.opts)
}

// configure checks the flags that need no file.
func (s *session) configure(command []string) error {
	f := s.f
	po := &s.opts.Ptrace
	po.Argv, po.NoExitKill = command, f.noExitKill
	switch f.seccomp {
	case "auto":
	case "off":
		po.Seccomp = ptrace.SeccompOff
	default:
		return fmt.Errorf("--seccomp=%s: want auto or off", f.seccomp)
	}
	switch f.orphans {
	case "wait":
	case "kill":
		po.Orphans = ptrace.OrphansKill
	case "detach":
		if po.Seccomp != ptrace.SeccompOff {
			return errors.New("--orphans=detach needs --seccomp=off: under a filter they could not live without nvtrace")
		}
		po.Orphans = ptrace.OrphansDetach
	default:
		return fmt.Errorf("--orphans=%s: want wait, kill or detach", f.orphans)
	}
	filter, err := ioctl.ParseFilter(f.lines.exprs...)
	if err != nil {
		return err
	}
	s.opts.Header = record.NewHeader(command, f.pid, version)
	s.log = &logSink{
		decoder: ioctl.NewDecoder(s.opts.Header), filter: filter,
		live: true, notice: func(n string) { s.e.notice("%s", n) },
		errs: once{e: s.e, what: "log: ", live: true},
	}
	if !f.log.set || f.summary || f.json.set {
		s.log.summarise(s.opts.Header)
	}
	s.opts.CountsOnly, s.opts.Munmap = f.counts, f.munmap
	if d := s.e.devices; d != nil {
		s.opts.NodeName, s.opts.MayBeNode, s.opts.Stat = d.nodeName, d.mayBeNode, d.stat
	}
	if scopes := s.e.getenv("NVTRACE_DEBUG"); scopes != "" {
		s.opts.Logger = slog.New(slog.NewTextHandler(s.e.stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
		po.Logger = s.opts.Logger
	}
	return nil
}

// openOutputs opens what the events go to, before the program starts.
func (s *session) openOutputs() (err error) {
	if s.f.log.set {
		lines := s.e.stderr
		if s.f.log.value != "" {
			w, err := os.Create(s.f.log.value)
			if err != nil {
				return err
			}
			lines, s.closes = w, append(s.closes, w)
		}
		if err := s.log.printTo(s.e, lines, s.opts.Header, &s.f.lines); err != nil {
			return err
		}
	}
	s.opts.Sinks = []record.Sink{s.log}
	if s.f.out != "" {
		errs := once{e: s.e, live: true, said: true} // the first error is Create's own
		s.file, err = traces.Create(s.f.out, s.opts.Header, &traces.WriterOptions{OnError: errs.report})
		if err != nil {
			return err
		}
		errs.said = false
		s.opts.Sinks = append(s.opts.Sinks, &fileSink{s.file})
	}
	s.opts.OnFault = func(msg string) { s.e.notice("%s", msg) }
	return nil
}

// closeOutputs puts out what is pending. An output that failed has been
// reported, and does not change how the program ended.
func (s *session) closeOutputs() {
	if s.file != nil {
		_ = s.file.Close() // the error sticks, and OnError has told it
	}
	for _, c := range s.closes {
		s.log.errs.report(c.Close())
	}
}

// summarise prints the summary, if one is wanted.
func (s *session) summarise() error {
	switch {
	case s.log.summary == nil:
		return nil
	case s.f.json.set:
		return writeJSON(s.e.stderr, s.f.json.value, s.log.summary.Report())
	case s.f.quiet:
		return nil
	}
	return writeReport(s.e.stderr, s.log.summary.Report(), s.log.book)
}
