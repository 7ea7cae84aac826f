package run

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/annotate"
	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/view"
)

// annotateFlags are those of annotate alone; all others are those of a run.
type annotateFlags struct {
	insns, mem bool
	json       cli.OptString
	set        *flag.FlagSet
}

const annotateUsage = "[flags of run] -- command [args] | maps.json"

// AnnotateVerb counts what a program's kernels execute, and shows that beside their lines or instructions.
func AnnotateVerb(e *cli.Env, args, command []string) int {
	f := &annotateFlags{set: cli.NewFlagSet(e, "annotate", annotateUsage)}
	f.set.BoolVar(&f.insns, "insns", false, "beside instructions, not lines of the source: of machine code where probes go there")
	f.set.BoolVar(&f.mem, "mem", false, "count accesses to memory, not all instructions")
	f.set.Var(&f.json, "json", "print as JSON, of a file to stdout, of a run to stderr, or with =`FILE` to a file")
	if slices.ContainsFunc(args, func(a string) bool { return a == "-h" || a == "-help" || a == "--help" }) {
		f.set.Usage()
		return cli.ExitOK
	}
	runs := NewFlags(e).Set
	if command == nil && len(args) > 0 && !slices.ContainsFunc(args, func(a string) bool { return strings.TrimLeft(a, "-") == "p" || cli.IsPID(a) }) {
		return f.file(e, args)
	}
	rest, err := f.take(runs, args)
	switch {
	case err != nil:
		return e.Fail(cli.ExitFailed, "annotate: %v", err)
	case command == nil && !slices.ContainsFunc(rest, func(a string) bool { return strings.HasPrefix(a, "-p") || cli.IsPID(a) }):
		return e.Fail(cli.ExitFailed, "no command; type: nvtrace annotate -- command [args]")
	case e.Self == "":
		return e.Fail(cli.ExitFailed, "annotate: this program can't start itself")
	}
	return f.run(e, rest, command)
}

// take takes annotate's own flags out of a command line, whose other flags are those of a run.
func (f *annotateFlags) take(runs *flag.FlagSet, args []string) (rest []string, err error) {
	for i := 0; i < len(args); i++ {
		name, value, joined := strings.Cut(strings.TrimLeft(args[i], "-"), "=")
		if !strings.HasPrefix(args[i], "-") {
			rest = append(rest, args[i])
			continue
		}
		if own := f.set.Lookup(name); own != nil {
			if !joined {
				value = "true"
			}
			if err := own.Value.Set(value); err != nil {
				return nil, err
			}
			continue
		}
		if slices.Contains([]string{"e", "script", "tool", "maps"}, name) {
			return nil, errOwnProgram
		}
		rest = append(rest, args[i])
		if of := runs.Lookup(name); of != nil && !joined && cli.TakesValue(of) && i+1 < len(args) {
			i++
			rest = append(rest, args[i])
		}
	}
	return rest, nil
}

var errOwnProgram = errors.New("it counts by a program of its own; to count by another: nvtrace -q -e 'mem:* { @[place] = count(); }' --maps=maps.json -- command, and then nvtrace annotate maps.json")

// program is what counts. Who reads line has the program put into PTX, which knows lines.
func (f *annotateFlags) program() string {
	probe, key := "insn:*", "place, line"
	if f.mem {
		probe = "mem:*"
	}
	if f.insns {
		key = "place"
	}
	return "config = { max_map_keys = 262144 } " + probe + " { @[" + key + "] = count(); }"
}

// run traces a program in an nvtrace of its own, which ends as the program does, and shows what was counted.
func (f *annotateFlags) run(e *cli.Env, args, command []string) int {
	dir, err := os.MkdirTemp("", "nvtrace-annotate-")
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	maps := filepath.Join(dir, "maps.json")
	signals := make(chan os.Signal, 1)
	for _, sig := range []os.Signal{unix.SIGINT, unix.SIGTERM} {
		if !signal.Ignored(sig) { // else the command is to ignore it, too
			signal.Notify(signals, sig)
		}
	}
	words := slices.Concat([]string{"run", "-q", "-e", f.program(), "--maps=" + maps}, args)
	if command != nil {
		words = append(append(words, "--"), command...)
	}
	run := exec.Command(e.Self, words...)
	run.Args[0] = os.Args[0]
	run.Stdin, run.Stdout, run.Stderr = e.Stdin, cli.Beneath(e.Stdout), cli.Beneath(e.Stderr)
	status, counted := cli.ExitFailed, []byte(nil)
	var end syscall.WaitStatus
	if err = run.Start(); err == nil {
		wait(run, signals)
		status = run.ProcessState.ExitCode()
		end, _ = run.ProcessState.Sys().(syscall.WaitStatus)
		counted, err = os.ReadFile(maps)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // the program did not begin, and why has been said
		}
	}
	signal.Stop(signals)
	err = errors.Join(err, os.RemoveAll(dir))
	if err == nil && len(counted) > 0 {
		err = f.show(e, e.Stderr, counted)
	}
	if err != nil {
		e.Notice("annotate: %v", err)
		if status == cli.ExitOK {
			status = cli.ExitFailed
		}
	}
	if end.Signaled() {
		return endAs(unix.WaitStatus(end))
	}
	return status
}

// file shows what a run has written with --maps=FILE.json.
func (f *annotateFlags) file(e *cli.Env, args []string) int {
	names, status, ok := cli.ParseAnywhere(f.set, args)
	if !ok {
		return status
	}
	if len(names) != 1 {
		return e.Fail(cli.ExitUsage, "annotate wants one file of --maps=FILE.json, or -- and a command")
	}
	if f.mem {
		return e.Fail(cli.ExitUsage, "annotate --mem is for programs that run: a file has what was counted")
	}
	if view.IsRecording(names[0]) {
		return e.Fail(cli.ExitFailed, "annotate: %s is a recording, which has no counts of lines; to count: nvtrace annotate -- command [args]", names[0])
	}
	if err := e.Inputs(names); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	document, err := os.ReadFile(names[0])
	if err == nil {
		if err = f.show(e, e.Stdout, document); err != nil {
			err = fmt.Errorf("%s: %w", names[0], err)
		}
	}
	if err != nil {
		return e.Fail(cli.ExitFailed, "annotate: %v", err)
	}
	return cli.ExitOK
}

// show prints what a document of maps says of places.
func (f *annotateFlags) show(e *cli.Env, w io.Writer, document []byte) error {
	l, err := annotate.Read(document)
	if err != nil {
		return err
	}
	if f.json.Given {
		return e.WriteJSON(w, f.json.Value, l)
	}
	return l.Text(w, f.insns)
}
