package main

import (
	"context"
	"errors"

	"nvtrace/ioctl/replay"
	"nvtrace/traces"
)

func replayVerb(e *env, args, command []string) int {
	o := new(replay.Options)
	var onMiss string
	var quiet bool
	fs := newFlagSet(e, "replay", "[flags] run.nvt -- command [args]")
	fs.StringVar(&onMiss, "on-miss", "status", "what a call gets that the recording has no answer for: status (NV_ERR_NOT_SUPPORTED), errno (ENOTTY) or abort")
	fs.BoolVar(&o.Strict, "strict", false, "a call whose recorded twins all had other input is a miss too")
	fs.BoolVar(&quiet, "q", false, "do not report what the recording could not answer")
	if status, ok := parse(fs, args); !ok {
		return status
	}
	if fs.NArg() != 1 || len(command) == 0 {
		return e.fail(exitUsage, "replay wants a recording and a command: nvtrace replay run.nvt -- command [args]")
	}
	var err error
	if o.OnMiss, err = replay.ParseMissPolicy(onMiss); err != nil {
		return e.fail(exitUsage, "--on-miss: %v", err)
	}
	r, err := traces.Open(fs.Arg(0))
	if err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	defer r.Close()
	res, err := replay.RunReader(context.Background(), r, command, o)
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
	case errors.As(err, &miss):
		return e.fail(exitFailed, "%v", err)
	case err != nil && !res.Ended:
		return e.fail(failStatus(err), "%v", err)
	case err != nil:
		e.notice("%v", err)
	}
	return endAs(res.Status)
}
