package run

import (
	"slices"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/live"
	"nvtrace/cmd/nvtrace/internal/view"
)

// runAs is a verb that runs a program with flags of its own before those that are given.
func runAs(e *cli.Env, verb string, own []string, usage string, args, command []string) int {
	if slices.ContainsFunc(args, func(a string) bool { return a == "-h" || a == "-help" || a == "--help" }) {
		cli.NewFlagSet(e, verb, usage).Usage()
		return cli.ExitOK
	}
	args = pidFlags(e, args, command)
	if command == nil && !slices.ContainsFunc(args, func(a string) bool { return strings.TrimLeft(a, "-") == "p" || strings.HasPrefix(a, "-p=") }) {
		if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
			return e.Fail(cli.ExitFailed, "%q: put -- before the command: nvtrace %s -- %s", args[0], verb, cli.ShellText(args))
		}
		return e.Fail(cli.ExitFailed, "no command; type: nvtrace %s -- command [args]; of a program that runs: its PID, or --all-gpu-processes", verb)
	}
	return Verb(e, append(own, args...), command)
}

// TopVerb shows what processes do, while they do it.
func TopVerb(e *cli.Env, args, command []string) int {
	if command == nil && len(args) == 1 && !cli.IsPID(args[0]) && view.IsRecording(args[0]) {
		return e.Fail(cli.ExitFailed, "%q: top shows what runs; of a recording: nvtrace stat %s, nvtrace report %s", args[0], args[0], args[0])
	}
	if pids, ok := live.OnlyPIDs(args); ok && command == nil {
		return live.TopOutside(e, pids)
	}
	return runAs(e, "top", []string{"--top", "-q"}, "[flags of run] -- command [args] | PID", args, command)
}
