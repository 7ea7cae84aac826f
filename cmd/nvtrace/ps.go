package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"

	"nvtrace/fatbin"
	"nvtrace/ioctl/channels"
	"nvtrace/rm/channel"
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
	views := map[int]*channels.View{}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	defer signal.Stop(interrupted)
	for {
		list := pids
		var denied pidList
		if len(list) == 0 {
			list, denied = gpuProcesses()
		}
		var reports []channels.Report
		for _, pid := range list {
			reports = append(reports, e.lookAt(views, pid, names))
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

// lookAt looks at one process; views keeps what was found in it before.
func (e *env) lookAt(views map[int]*channels.View, pid int, names bool) channels.Report {
	v := views[pid]
	if v == nil || v.Channels() == 0 {
		p, err := channels.Open(pid)
		if err == nil {
			v, err = channels.NewView(pid, p)
		}
		if err != nil {
			return channels.Report{PID: pid, Channels: []channels.ChannelReport{}, Error: err.Error()}
		}
		views[pid] = v
	}
	return v.Look(names)
}

// writePS prints a table: a line for each kernel or copy that runs and each channel that waits,
// and one for each process without any.
func writePS(w io.Writer, reports []channels.Report, denied pidList) error {
	var rows [][]string
	for i := range reports {
		rows = append(rows, psRows(&reports[i])...)
	}
	if len(rows) == 0 {
		if _, err := fmt.Fprintln(w, "No process that can be read has a GPU open."); err != nil {
			return err
		}
	}
	header := []string{">PID", "USER", "GPU", ">CHANNEL", "STATE", "KERNEL", "GRID", "BLOCK", "SINCE", ">WAITING", "COMMAND"}
	if err := renderTable(w, "", header, rows); err != nil {
		return err
	}
	if len(denied) > 0 {
		_, err := fmt.Fprintf(w, "Not read: %s, which belong to other users (sudo nvtrace ps reads them).\n", &denied)
		return err
	}
	return nil
}

// A psRow is a line of the table.
type psRow struct{ gpu, channel, state, kernel, grid, block, since, waiting string }

func psRows(r *channels.Report) (rows [][]string) {
	add := func(p psRow) {
		rows = append(rows, []string{
			strconv.Itoa(r.PID), r.User, p.gpu, p.channel, p.state, p.kernel, p.grid, p.block, p.since, p.waiting, cutText(r.Command, 50),
		})
	}
	if r.Error != "" {
		add(psRow{state: "unknown", kernel: r.Error})
		return rows
	}
	devices := map[string]bool{}
	for i := range r.Channels {
		c := &r.Channels[i]
		at := psRow{gpu: strings.TrimPrefix(c.Device, "/dev/nvidia"), channel: strconv.Itoa(c.Channel)}
		devices[at.gpu] = true
		for _, row := range channelRows(c) {
			row.gpu, row.channel = at.gpu, at.channel
			add(row)
		}
	}
	if rows == nil {
		state := fmt.Sprintf("idle, %d channels", len(r.Channels))
		if len(r.Channels) == 0 {
			state = "no channel in use"
		}
		add(psRow{gpu: strings.Join(slices.Sorted(maps.Keys(devices)), ","), state: state})
	}
	return rows
}

// channelRows returns the lines of a busy channel.
func channelRows(c *channels.ChannelReport) (rows []psRow) {
	waiting := ""
	if n := len(c.Waiting); n > 0 {
		waiting = strconv.Itoa(n)
	}
	for i := 0; i < len(c.Running); i++ {
		if i > 0 && c.Running[i].Program == "" && c.Running[i].Kind == "kernel" {
			continue // another part of the same graph
		}
		row := jobRow(&c.Running[i])
		if n := c.Running[i].Graph; n > 0 {
			row = graphRow(c.Running[i:min(i+n, len(c.Running))])
			i += n - 1
		}
		row.state = "busy"
		rows = append(rows, row)
	}
	switch {
	case c.Error != "":
		return []psRow{{state: "unknown", kernel: c.Error}}
	case len(c.Running) == 0 && c.Busy:
		var row psRow
		if len(c.Waiting) > 0 {
			row = jobRow(&c.Waiting[0])
		}
		row.state, row.since = "waits", ""
		if c.Blocked != nil && c.Blocked.Channel != nil {
			row.state = fmt.Sprintf("waits for channel %d", *c.Blocked.Channel)
		}
		rows = append(rows, row)
	}
	if len(rows) > 0 {
		rows[0].waiting = waiting
	}
	return rows
}

func jobRow(j *channels.JobReport) psRow {
	row := psRow{since: sinceGPU(j.Began)}
	switch {
	case j.Kind == "copy":
		row.kernel, row.since = fmt.Sprintf("(copy of %s)", memoryText(j.Bytes)), ""
		return row
	case j.Program == "":
		row.kernel = "(graph; its kernels can't be read)"
		return row
	case j.Name == "":
		row.kernel = "program " + j.Program
	default:
		row.kernel = cutText(fatbin.Demangle(j.Name), 70)
	}
	row.grid, row.block = channel.Dimensions(*j.Grid), channel.Dimensions(*j.Block)
	return row
}

// maxGraphNames is how many kernels of a graph are named.
const maxGraphNames = 3

// graphRow is the line of a graph's launch: which of its kernels runs isn't known.
func graphRow(list []channels.JobReport) psRow {
	var names []string
	for i := range list {
		if i == maxGraphNames {
			names = append(names, "…")
			break
		}
		names = append(names, jobRow(&list[i]).kernel)
	}
	return psRow{
		kernel: cutText(fmt.Sprintf("graph of %d kernels: %s", list[0].Graph, strings.Join(names, ", ")), 100),
		since:  sinceGPU(list[0].Began),
	}
}

// sinceGPU returns how long ago a time of the GPU's clock was. The driver sets that clock to the
// host's when it is loaded, and from then on they drift apart: what they make is said to be about.
func sinceGPU(began uint64) string {
	ago := time.Since(time.Unix(0, int64(began)))
	switch {
	case began == 0:
		return "not known"
	case ago < 0:
		return "now"
	}
	return "about " + ago.Round(time.Millisecond).String()
}

// cutText cuts text to n characters.
func cutText(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
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
	p, err := channels.Open(pids[0])
	if err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	defer p.Close()
	v, err := channels.NewView(pids[0], p)
	if err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	list := v.Pieces(*n)
	if *names {
		if err := v.SearchNames(list); err != nil {
			return e.fail(exitFailed, "%v", err)
		}
	}
	if err := writePushbuffers(e.stdout, v, list); err != nil {
		return e.fail(exitFailed, "%v", err)
	}
	return exitOK
}

func writePushbuffers(w io.Writer, v *channels.View, list []channels.ChannelPieces) error {
	for _, cp := range list {
		u := cp.UserData
		if _, err := fmt.Fprintf(w, "channel %d of %s: USERD %#x, ring %#x of %d entries, PUT %#x GET %#x GP_PUT %d GP_GET %d\n",
			cp.Channel, cp.Of.Device, cp.Of.UserData, cp.Of.Ring, cp.Of.Entries, u.Put, u.Get, u.GPPut, u.GPGet); err != nil {
			return err
		}
		r := v.Reader(cp.Of)
		for _, p := range cp.Pieces {
			if _, err := fmt.Fprintf(w, "entry %d: %d words at %#x\n", p.Index, p.Entry.Words, p.Address); err != nil {
				return err
			}
			if err := r.Fprint(w, p.Words, p.Address, v.Names.Of); err != nil {
				return err
			}
		}
	}
	return nil
}
