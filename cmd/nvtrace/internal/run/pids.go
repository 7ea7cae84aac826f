package run

import (
	"errors"
	"io"
	"slices"

	"nvtrace/cmd/nvtrace/internal/cli"
)

// pidFlags puts -p before the words of a run's command line that are process ids, wherever they stand.
func pidFlags(e *cli.Env, args, command []string) []string {
	if command != nil || !slices.ContainsFunc(args, cli.IsPID) {
		return args
	}
	f := NewFlags(e)
	f.Set.SetOutput(io.Discard)
	f.Set.Usage = func() {}
	var list []string
	for rest := args; ; rest = f.Set.Args()[1:] {
		if f.Set.Parse(rest) != nil {
			return args // whoever parses them again says what is wrong
		}
		list = append(list, rest[:len(rest)-f.Set.NArg()]...)
		switch {
		case f.Set.NArg() == 0:
			return list
		case !cli.IsPID(f.Set.Arg(0)):
			return args
		}
		list = append(list, "-p", f.Set.Arg(0))
	}
}

// choosePIDs finds the processes that --all-gpu-processes is about.
func (f *runFlags) choosePIDs(e *cli.Env) error {
	var denied cli.PIDList
	f.pids, denied = cli.GpuProcesses()
	if len(denied) > 0 {
		e.Notice("not attached to: %s, which belong to others (sudo nvtrace attaches to them)", &denied)
	}
	if len(f.pids) == 0 {
		return errors.New("--all-gpu-processes: no running process that can be attached to has a GPU open")
	}
	return nil
}
