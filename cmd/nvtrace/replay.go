package main

import (
	"context"
	"errors"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"nvtrace/ioctl/replay"
	"nvtrace/traces"
)

func replayVerb(e *env, args, command []string) int {
	o := new(replay.Options)
	var onMiss string
	var quiet bool
	fs := newFlagSet(e, "replay", "[flags] run.nvt -- command [args]")
	fs.StringVar(&onMiss, "on-miss", "status", "`WHAT` a call gets that the recording has no answer for: status (NV_ERR_NOT_SUPPORTED), errno (ENOTTY) or abort")
	fs.BoolVar(&o.Strict, "strict", false, "a call whose recorded twins all had other input is a miss too")
	fs.BoolVar(&quiet, "q", false, "do not report what the recording could not answer")
	names, status, ok := parseAnywhere(fs, args)
	if !ok {
		return programStatus(status)
	}
	if len(names) != 1 || len(command) == 0 {
		return e.fail(exitFailed, "replay wants a recording and a command: nvtrace replay run.nvt -- command [args]")
	}
	var err error
	if o.OnMiss, err = replay.ParseMissPolicy(onMiss); err != nil {
		return e.fail(exitFailed, "--on-miss: %v", err)
	}
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE) // as in run: a closed stderr does not end the program
	r, err := traces.Open(names[0])
	if err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	defer r.Close()
	stopQuits()
	res, err := replay.Run(context.Background(), r, command, o)
	if !quiet {
		for i := range res.Misses {
			e.notice("%v", &res.Misses[i])
		}
		if len(res.Misses) > 0 {
			e.notice("%d calls answered from the recording, %d of them by an answer to other input, %d missed", res.Answered, res.Inexact, res.Missed)
		}
	}
	var miss *replay.MissError
	switch {
	case errors.As(err, &miss) && !quiet:
		return e.fail(exitFailed, "the program was ended at the call that missed (--on-miss=abort)")
	case errors.As(err, &miss):
		return e.fail(exitFailed, "%v", err)
	case err != nil && !res.Ended:
		return e.fail(failStatus(err), "%v", err)
	case err != nil:
		e.notice("%v", err)
	}
	return endAs(res.Status)
}
