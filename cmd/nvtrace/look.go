package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"nvtrace/cmd/nvtrace/internal/look"
	"nvtrace/ioctl/channels"
)

// psVerb says what the GPU's channels of processes are at, from outside.
func psVerb(e *env, args, command []string) int {
	fs := newFlagSet(e, "ps", "[flags] [PID...]")
	var pids pidList
	var asJSON optString
	fs.Var(&pids, "p", "look at the processes `PID`[,PID...] (default: all that have a GPU open)")
	names := fs.Bool("names", false, "search the processes' memory for the names of kernels, about a second for each GiB")
	wait := fs.Duration("w", 0, "look again each `TIME`")
	asJSON.registerJSON(fs)
	words, status, ok := parseAnywhere(fs, args)
	if !ok {
		return status
	}
	if status, ok := e.pidWords("ps", &pids, words, command); !ok {
		return status
	}
	return e.lookAtAll(pids, *names, *wait, &asJSON)
}

// pidWords adds the words of a command line to its processes.
func (e *env) pidWords(verb string, pids *pidList, words, command []string) (status int, ok bool) {
	if command != nil {
		return e.fail(exitUsage, "%s looks at processes that run: nvtrace %s PID", verb, verb), false
	}
	for _, w := range words {
		if err := pids.Set(w); err != nil {
			return e.fail(exitUsage, "%s wants process ids, and %q is none", verb, w), false
		}
	}
	return exitOK, true
}

// lookAtAll looks at processes once, or again and again.
func (e *env) lookAtAll(pids pidList, names bool, every time.Duration, asJSON *optString) int {
	var processes look.Processes
	defer processes.Close()
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	defer signal.Stop(interrupted)
	for {
		list := pids
		var denied pidList
		if len(list) == 0 {
			list, denied = gpuProcesses()
		}
		processes.Keep(list)
		reports := []channels.Report{}
		for _, pid := range list {
			reports = append(reports, processes.Look(pid, names))
		}
		if status := e.answer(asJSON, nil, reports, func() error { return writePS(e.stdout, reports, denied) }); status != exitOK || every == 0 {
			return status
		}
		select {
		case <-interrupted:
			return exitOK
		case <-time.After(every):
		}
	}
}

// writePS prints the table of nvtrace ps.
func writePS(w io.Writer, reports []channels.Report, denied pidList) error {
	rows := look.Rows(reports)
	if len(rows) == 0 {
		if _, err := fmt.Fprintln(w, "No process that can be read has a GPU open."); err != nil {
			return err
		}
	}
	if err := renderTable(w, "", look.Header, rows); err != nil {
		return err
	}
	if len(denied) > 0 {
		_, err := fmt.Fprintf(w, "Not read: %s, which belong to other users (sudo nvtrace ps reads them).\n", &denied)
		return err
	}
	return nil
}

// whereVerb says what one process's channels and threads are at, from outside.
func whereVerb(e *env, args, command []string) int {
	fs := newFlagSet(e, "where", "[flags] PID")
	var pids pidList
	var asJSON optString
	fs.Var(&pids, "p", "the process `PID`")
	names := fs.Bool("names", true, "search the process's memory for the names of kernels, up to a second for each GiB")
	asJSON.registerJSON(fs)
	words, status, ok := parseAnywhere(fs, args)
	if !ok {
		return status
	}
	if status, ok := e.pidWords("where", &pids, words, command); !ok {
		return status
	}
	if len(pids) != 1 {
		return e.fail(exitUsage, "where wants one process: nvtrace where PID")
	}
	report, err := look.WhereIs(pids[0], *names)
	if err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	return e.answer(&asJSON, nil, report, func() error { return report.Write(e.stdout) })
}

// pushbufferVerb prints what a process's channels were handed last.
func pushbufferVerb(e *env, args, command []string) int {
	fs := newFlagSet(e, "pushbuffer", "[flags] PID")
	var pids pidList
	fs.Var(&pids, "p", "the process `PID`")
	n := fs.Int("n", 4, "print the last `N` pieces of each channel's pushbuffer")
	names := fs.Bool("names", true, "search the process's memory for the names of kernels")
	words, status, ok := parseAnywhere(fs, args)
	if !ok {
		return status
	}
	if status, ok := e.pidWords("pushbuffer", &pids, words, command); !ok {
		return status
	}
	if len(pids) != 1 || *n <= 0 {
		return e.fail(exitUsage, "pushbuffer wants one process: nvtrace pushbuffer [-n N] PID")
	}
	v, err := channels.ViewOf(pids[0])
	if err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	defer v.Close()
	list := v.Pieces(*n)
	if *names {
		if err := v.SearchNames(list); err != nil {
			return e.fail(exitFailed, "%v", err)
		}
	}
	if err := look.WritePushbuffers(e.stdout, v, list); err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	return exitOK
}
