package look

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"nvtrace/cmd/nvtrace/internal/units"
	"nvtrace/fatbin"
	"nvtrace/ioctl/channels"
	"nvtrace/rm/channel"
)

// Header are the titles of the table of nvtrace ps; one that is aligned right begins with '>'.
var Header = []string{">PID", "USER", "GPU", ">MEMORY", ">CHANNEL", "STATE", "KERNEL", "GRID", "BLOCK", "SINCE", ">WAITING", "IN", "COMMAND"}

// Rows returns the lines of that table: one for each kernel or copy that runs and each channel that
// waits, and one for each process without any.
func Rows(list []Process) (rows [][]string) {
	for i := range list {
		rows = append(rows, psRows(&list[i])...)
	}
	return rows
}

// memoryText says how much memory a process has of the GPUs of a line, or of all where no channel says which.
func memoryText(r *Process, gpus string) string {
	sum, known := uint64(0), false
	for _, m := range r.Memory {
		if gpus == "" || slices.Contains(strings.Split(gpus, ","), strconv.Itoa(m.Minor)) {
			sum, known = sum+m.Bytes, true
		}
	}
	if !known {
		return "not known"
	}
	return units.Memory(sum)
}

// Legend says which GPUs the numbers in the table are, and what the driver tells of them.
func Legend(list []Process) (lines []string) {
	var gpus []GPU
	used := map[int]string{}
	for i := range list {
		if s := list[i].Shared; s != nil && len(list[i].GPUs) == 1 {
			used[list[i].GPUs[0].Minor] = fmt.Sprintf("; %s of its %s of memory are used", units.Memory(s.MemoryUsed), units.Memory(s.Memory))
		}
		for _, g := range list[i].GPUs {
			if g.UUID != "" && !slices.Contains(gpus, g) {
				gpus = append(gpus, g)
			}
		}
	}
	slices.SortFunc(gpus, func(a, b GPU) int { return a.Minor - b.Minor })
	for _, g := range gpus {
		lines = append(lines, fmt.Sprintf("GPU %d is %s, %s%s", g.Minor, g.Name, g.UUID, used[g.Minor]))
	}
	return append(lines, ringsText(list)...)
}

// ringsText says of which processes no ring was read, and what is missing for it.
func ringsText(list []Process) (lines []string) {
	for _, r := range []struct{ why, text string }{
		{channels.RingsRefused, "can't be read"},
		{channels.RingsLeft, "were not read (--no-rings)"},
	} {
		var pids []string
		without := ""
		for i := range list {
			p := &list[i]
			if p.Rings != r.why {
				continue
			}
			pids = append(pids, strconv.Itoa(p.PID))
			if slices.ContainsFunc(p.Channels, func(c channels.ChannelReport) bool { return c.Device == "" }) {
				without = ", nor is which of several GPUs a channel is of"
			}
		}
		if pids != nil {
			lines = append(lines, fmt.Sprintf("The rings of %s %s: channels without a pushbuffer in system memory are not recorded%s.", strings.Join(pids, ", "), r.text, without))
		}
	}
	return lines
}

// A psRow is a line of the table.
type psRow struct{ gpu, channel, state, kernel, grid, block, since, waiting string }

func psRows(r *Process) (rows [][]string) {
	add := func(p psRow) {
		rows = append(rows, []string{
			strconv.Itoa(r.PID), r.User, p.gpu, memoryText(r, p.gpu), p.channel, p.state, p.kernel, p.grid, p.block, p.since, p.waiting, cutText(r.In, 24), cutText(r.Command, 50),
		})
	}
	if r.Error != "" {
		add(psRow{state: "unknown", kernel: r.Error})
		return rows
	}
	devices := map[string]bool{}
	for i := range r.Channels {
		c := &r.Channels[i]
		at := psRow{gpu: cmp.Or(strings.TrimPrefix(c.Device, "/dev/nvidia"), "not known"), channel: strconv.Itoa(c.Channel)}
		devices[at.gpu] = true
		for _, row := range channelRows(c) {
			row.gpu, row.channel = at.gpu, at.channel
			add(row)
		}
	}
	if rows == nil {
		state := fmt.Sprintf("idle, %d channels", len(r.Channels))
		switch {
		case len(r.Channels) == 0 && r.Rings != "":
			state = "no channel found"
		case len(r.Channels) == 0:
			state = "no channel in use"
		}
		add(psRow{gpu: strings.Join(slices.Sorted(maps.Keys(devices)), ","), state: state})
	}
	return rows
}

// channelRows returns the lines of a busy channel.
func channelRows(c *channels.ChannelReport) (rows []psRow) {
	waiting := ""
	if n := c.Behind; n > 0 {
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
	row := psRow{since: sinceGPU(j)}
	switch {
	case j.Kind == "copy":
		row.kernel, row.since = fmt.Sprintf("(copy of %s)", units.Memory(j.Bytes)), ""
		return row
	case j.Program == "" && j.QMD != "":
		row.kernel = fmt.Sprintf("(graph at %s; its kernels can't be read)", j.QMD)
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
	if j.Clustered {
		row.grid += " clusters"
	}
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
		names = append(names, cutText(jobRow(&list[i]).kernel, 40))
	}
	return psRow{
		kernel: cutText(fmt.Sprintf("graph of %d kernels: %s", list[0].Graph, strings.Join(names, ", ")), 160),
		since:  sinceGPU(&list[0]),
	}
}

// sinceGPU returns for how long a job had been with the GPU when it was looked at. The driver sets that clock to the
// host's when it is loaded, and from then on they drift apart: what they make is said to be about.
func sinceGPU(j *channels.JobReport) string {
	ago := time.Duration(j.Since)
	switch {
	case j.Began == 0:
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
