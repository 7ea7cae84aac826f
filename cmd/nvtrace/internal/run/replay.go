package run

import (
	"context"
	"errors"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/ioctl/replay"
	"nvtrace/traces"
)

// ReplayVerb runs a program with its device calls answered from a recording.
func ReplayVerb(e *cli.Env, args, command []string) int {
	o := new(replay.Options)
	var onMiss string
	var quiet bool
	fs := cli.NewFlagSet(e, "replay", "[flags] run.nvt -- command [args]")
	fs.StringVar(&onMiss, "on-miss", "status", "`WHAT` a call gets that the recording has no answer for: status (NV_ERR_NOT_SUPPORTED), errno (ENOTTY) or abort")
	fs.BoolVar(&o.Strict, "strict", false, "a call whose recorded twins all had other input is a miss too")
	fs.BoolVar(&quiet, "q", false, "do not report what the recording could not answer")
	names, status, ok := cli.ParseAnywhere(fs, args)
	if !ok {
		return programStatus(status)
	}
	if len(names) != 1 || len(command) == 0 {
		return e.Fail(cli.ExitFailed, "replay wants a recording and a command: nvtrace replay run.nvt -- command [args]")
	}
	var err error
	if o.OnMiss, err = replay.ParseMissPolicy(onMiss); err != nil {
		return e.Fail(cli.ExitFailed, "--on-miss: %v", err)
	}
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE) // as in run: a closed stderr does not end the program
	if err := e.Inputs(names); err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	r, err := traces.Open(names[0])
	if err != nil {
		return e.Fail(cli.ExitFailed, "%v", err)
	}
	defer r.Close()
	stopQuits()
	res, err := replay.Run(context.Background(), r, command, o)
	if !quiet {
		for i := range res.Misses {
			e.Notice("%v", &res.Misses[i])
		}
		if len(res.Misses) > 0 {
			e.Notice("%d calls answered from the recording, %d of them by an answer to other input, %d missed", res.Answered, res.Inexact, res.Missed)
		}
	}
	var miss *replay.MissError
	switch {
	case errors.As(err, &miss) && !quiet:
		return e.Fail(cli.ExitFailed, "the program was ended at the call that missed (--on-miss=abort)")
	case errors.As(err, &miss):
		return e.Fail(cli.ExitFailed, "%v", err)
	case err != nil && !res.Ended:
		return e.Fail(failStatus(err), "%v", err)
	case err != nil:
		e.Notice("%v", err)
	}
	return endAs(res.Status)
}
