package run

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/view"
)

// statFlags are those of stat alone; all others are those of a run.
type statFlags struct {
	repeat   int
	interval time.Duration
	forecast bool
	view.StatFormat
	set *flag.FlagSet
}

func newStatFlags(e *cli.Env) *statFlags {
	f := &statFlags{set: cli.NewFlagSet(e, "stat", statUsage)}
	f.set.IntVar(&f.repeat, "repeat", 1, "run the command `N` times, and print means and their standard errors; also -r N")
	f.set.DurationVar(&f.interval, "interval", 0, "print what was counted every `TIME`, too, such as 1s; also -I TIME")
	f.set.Var(&f.JSON, "json", "print as JSON, of a recording to stdout, of a run to stderr, or with =`FILE` to a file")
	f.set.BoolVar(&f.forecast, "forecast", false, "count library calls, and say what each way of recording would cost; of a PID for 2 s, or --duration")
	f.set.BoolVar(&f.CSV, "csv", false, "print comma-separated values")
	return f
}

const statUsage = "[flags of run] -- command [args] | PID | run.nvt"

// StatVerb runs a program and prints counters at its end, in the form of perf stat; or
// those of a recording.
func StatVerb(e *cli.Env, args, command []string) int {
	f := newStatFlags(e)
	if slices.ContainsFunc(args, func(a string) bool { return a == "-h" || a == "-help" || a == "--help" }) {
		f.set.Usage()
		return cli.ExitOK
	}
	if command == nil && slices.ContainsFunc(args, isRecording) {
		return f.recording(e, args)
	}
	rest, err := f.take(NewFlags(e).Set, args)
	if err != nil {
		return e.Fail(cli.ExitFailed, "stat: %v", err)
	}
	switch {
	case f.forecast && (f.repeat > 1 || f.interval > 0 || f.CSV):
		return e.Fail(cli.ExitUsage, "stat: --forecast is without --repeat, --interval and --csv")
	case f.repeat > 1:
		return f.runs(e, rest, command)
	}
	own := []string{"--stat", "-q"}
	if f.forecast {
		own[0] = "--forecast"
	}
	if f.CSV {
		own[0] = "--stat=csv"
	}
	if f.JSON.Given {
		own = append(own, strings.TrimSuffix("--json="+f.JSON.Value, "="))
	}
	if f.interval > 0 {
		own = append(own, "--interval", f.interval.String())
	}
	return runAs(e, "stat", own, statUsage, rest, command)
}

func isRecording(word string) bool {
	return word == "-" || !strings.HasPrefix(word, "-") && !cli.IsPID(word) && view.IsRecording(word)
}

// recording prints the counters of a recording.
func (f *statFlags) recording(e *cli.Env, args []string) int {
	var rf cli.ReadFlags
	rf.Register(f.set)
	name, status, ok := e.OneRecording(f.set, args, nil)
	switch {
	case !ok:
		return status
	case f.repeat > 1 || f.interval > 0:
		return e.Fail(cli.ExitUsage, "stat: --repeat and --interval are for programs that run, not for a recording")
	case f.JSON.Given && f.CSV:
		return e.Fail(cli.ExitUsage, "stat: --json and --csv exclude each other")
	}
	return view.StatOf(e, &rf, &f.StatFormat, f.forecast, name)
}

// take takes stat's own flags out of a command line, whose other flags are those of a run.
func (f *statFlags) take(run *flag.FlagSet, args []string) (rest []string, err error) {
	for i := 0; i < len(args); i++ {
		name, value, joined := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(args[i], "-"), "-"), "=")
		next := ""
		if i+1 < len(args) {
			next = args[i+1]
		}
		_, numeric := strconv.Atoi(next)
		switch {
		case cli.IsPID(args[i]):
			rest = append(rest, args[i])
			continue
		case args[i] == name && !joined: // no flag
			return append(rest, args[i:]...), nil
		case name == "r" && (joined || next != "" && numeric == nil): // perf's; that of a run stands alone
			name = "repeat"
		case name == "I":
			name = "interval"
		}
		fl := f.set.Lookup(name)
		if fl == nil {
			rest = append(rest, args[i])
			if of := run.Lookup(name); of != nil && !joined && cli.TakesValue(of) && i+1 < len(args) {
				rest = append(rest, next)
				i++
			}
			continue
		}
		if !joined && !cli.TakesValue(fl) {
			value, joined = "true", true
		}
		if !joined {
			if next == "" {
				return nil, fmt.Errorf("--%s needs a value", name)
			}
			value = next
			i++
		}
		if n, bad := strconv.Atoi(value); name == "interval" && bad == nil { // milliseconds, as perf's
			value = (time.Duration(n) * time.Millisecond).String()
		}
		if err := fl.Value.Set(value); err != nil {
			return nil, fmt.Errorf("--%s %s: want %s", name, value, map[string]string{"repeat": "a number of runs", "interval": "a time with its unit, such as 500ms"}[name])
		}
	}
	switch {
	case f.repeat < 1 || f.repeat > 10_000:
		return nil, fmt.Errorf("--repeat %d: want 1 to 10000 runs", f.repeat)
	case f.interval != 0 && f.interval < 10*time.Millisecond:
		return nil, fmt.Errorf("--interval %v: want 10ms or more", f.interval)
	case f.JSON.Given && f.CSV:
		return nil, errors.New("--json and --csv exclude each other")
	case f.repeat > 1 && f.interval > 0:
		return nil, errors.New("--repeat and --interval exclude each other")
	}
	return rest, nil
}

// runs runs a command several times, each in an nvtrace of its own.
func (f *statFlags) runs(e *cli.Env, args, command []string) int {
	switch {
	case len(command) == 0:
		return e.Fail(cli.ExitFailed, "stat --repeat wants a command: nvtrace stat --repeat %d -- command [args]", f.repeat)
	case e.Self == "":
		return e.Fail(cli.ExitFailed, "stat --repeat: this program can't start itself")
	}
	dir, err := os.MkdirTemp("", "nvtrace-stat-")
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	signals := make(chan os.Signal, 1)
	for _, sig := range []os.Signal{unix.SIGINT, unix.SIGTERM} {
		if !signal.Ignored(sig) { // else the command is to ignore it, too
			signal.Notify(signals, sig)
		}
	}
	status, end := f.countRuns(e, dir, args, command, signals)
	signal.Stop(signals)
	if err := os.RemoveAll(dir); err != nil {
		e.Notice("%v", err)
	}
	if end.Signaled() {
		return endAs(end)
	}
	return status
}

// countRuns runs a command until a signal comes, and prints what was counted. It returns the status of the first run
// that did not end well, or the signal that ended them all.
func (f *statFlags) countRuns(e *cli.Env, dir string, args, command []string, signals <-chan os.Signal) (failed int, end unix.WaitStatus) {
	var list []*view.Stat
	for i := range f.repeat {
		file := filepath.Join(dir, strconv.Itoa(i)+".json")
		words := slices.Concat([]string{"run", "--stat", "-q", "--json=" + file}, args, []string{"--"}, command)
		run := exec.Command(e.Self, words...)
		run.Args[0] = os.Args[0]
		run.Stdin, run.Stdout, run.Stderr = e.Stdin, cli.Beneath(e.Stdout), cli.Beneath(e.Stderr)
		if err := run.Start(); err != nil {
			return e.Fail(cli.ExitFailed, "stat: run %d: %v", i+1, err), 0
		}
		end = wait(run, signals)
		if status := run.ProcessState; failed == cli.ExitOK {
			if failed = status.ExitCode(); failed < 0 { // by a signal: what is counted so far is shown
				failed = cli.ExitFailed
			}
		}
		b, err := os.ReadFile(file)
		if err != nil { // it did not begin, and has said why
			break
		}
		s, err := view.ReadStat(b)
		if err != nil {
			break
		}
		list = append(list, s)
		if end.Signaled() || run.ProcessState.ExitCode() < 0 {
			break
		}
	}
	_ = os.RemoveAll(dir) // now: where Ctrl-C has ended who reads stderr, printing ends this process
	if len(list) == 0 {
		return max(failed, cli.ExitDiffers), end
	}
	toPrograms := f.JSON.Given || f.CSV // they read nothing else
	all := view.OverRuns(list, f.repeat)
	if all.Runs < all.Asked && !toPrograms {
		e.Notice("stat: %d of %d runs were counted", all.Runs, all.Asked)
	}
	if err := f.show(e, all); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err), end
	}
	if all.Nothing() && !toPrograms && !HasDriver() && !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(strings.TrimLeft(a, "-"), "sim") }) {
		words := slices.Concat([]string{"nvtrace", "stat", "--sim", "--repeat", strconv.Itoa(f.repeat)}, args, []string{"--"}, command)
		e.Notice("no NVIDIA driver on this machine; on a simulated GPU: %s", cli.ShellText(words))
	}
	return failed, end
}

// wait waits for a run, and returns the signal by which somebody wants all runs to end: one that came meanwhile, or the
// one that the run died of; 0: none.
func wait(run *exec.Cmd, signals <-chan os.Signal) (end unix.WaitStatus) {
	ended := make(chan struct{})
	go func() {
		_ = run.Wait() // its state tells
		close(ended)
	}()
	for {
		select {
		case s := <-signals:
			sig, _ := s.(unix.Signal)
			end = unix.WaitStatus(sig)
			if sig == unix.SIGTERM { // SIGINT is the terminal's, and the run has got it, too
				_ = run.Process.Signal(sig)
			}
		case <-ended:
			select {
			case s := <-signals: // which came as it ended
				sig, _ := s.(unix.Signal)
				end = unix.WaitStatus(sig)
			default:
			}
			if st, ok := run.ProcessState.Sys().(syscall.WaitStatus); ok && end == 0 && asked(unix.WaitStatus(st)) {
				end = unix.WaitStatus(st.Signal())
			}
			return end
		}
	}
}

// show prints what runs come to where the counters of one run are printed.
func (f *statFlags) show(e *cli.Env, r *view.StatRuns) error {
	switch {
	case f.JSON.Given:
		return e.WriteJSON(e.Stderr, f.JSON.Value, r)
	case f.CSV:
		return r.CSV(e.Stderr)
	}
	var b bytes.Buffer
	err := r.Text(&b)
	_, werr := e.Stderr.Write(b.Bytes())
	return errors.Join(err, werr)
}
