package look

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"nvtrace/fatbin"
	"nvtrace/ioctl/channels"
	"nvtrace/ptrace/outside"
	"nvtrace/rm/channel"
	"nvtrace/traces/escape"
)

// WhereIs looks at a process's channels and threads. With names, kernels' names are searched for.
func WhereIs(pid int, names bool) (*Where, error) {
	v, err := channels.ViewOf(pid)
	if err != nil {
		return nil, err
	}
	defer v.Close()
	w := Where{Report: v.Look(names)}
	if w.Threads, err = outside.Threads(pid); err != nil {
		return nil, err
	}
	return &w, nil
}

// A Where says what a process is at.
type Where struct {
	channels.Report
	Threads []outside.Thread `json:"threads"`
}

// Write prints the report: the verdict first.
func (w *Where) Write(out io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Process %d of %s: %s\n\n", w.PID, w.User, escape.String(w.Command))
	for _, line := range w.verdict() {
		b.WriteString(line + "\n")
	}
	for i := range w.Channels {
		if c := &w.Channels[i]; c.Busy || c.Error != "" {
			writeChannel(&b, c)
		}
	}
	b.WriteString("\nThreads\n")
	for i := range w.Threads {
		writeThread(&b, &w.Threads[i])
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// verdict says in words what the process's channels are at.
func (w *Where) verdict() []string {
	list := Sentences(&w.Report)
	switch {
	case len(w.Channels) == 0:
		list = append(list, "No channel of a GPU is in use.")
	case list == nil:
		list = append(list, fmt.Sprintf("All %d channels are idle: the GPU has nothing to do for this process.", len(w.Channels)))
	}
	return list
}

// Sentences says what each channel is at that isn't idle.
func Sentences(r *channels.Report) (list []string) {
	for i := range r.Channels {
		c := &r.Channels[i]
		gpu := strings.TrimPrefix(c.Device, "/dev/nvidia")
		behind := waits(c.Behind, " behind it")
		switch {
		case len(c.Running) > 0:
			row := channelRows(c)[0]
			since := ""
			if c.Running[0].Began != 0 {
				since = " for " + row.since
			}
			list = append(list, fmt.Sprintf("Channel %d of GPU %s has been in %s%s%s.", c.Channel, gpu, row.kernel, since, behind))
		case c.Blocked != nil && c.Blocked.Channel != nil:
			list = append(list, fmt.Sprintf("Channel %d of GPU %s waits for the kernel of channel %d%s.", c.Channel, gpu, *c.Blocked.Channel, waits(c.Behind, "")))
		case c.Busy:
			list = append(list, fmt.Sprintf("Channel %d of GPU %s waits for something that no channel of this process is at%s.", c.Channel, gpu, waits(c.Behind, "")))
		}
	}
	return list
}

// waits says how many jobs wait, and where; nothing if there are none.
func waits(n int, where string) string {
	switch n {
	case 0:
		return ""
	case 1:
		return "; 1 job waits" + where
	}
	return fmt.Sprintf("; %d jobs wait%s", n, where)
}

// maxShownJobs is how many jobs of a channel are printed.
const maxShownJobs = 16

func writeChannel(b *strings.Builder, c *channels.ChannelReport) {
	fmt.Fprintf(b, "\nChannel %d of %s\n", c.Channel, c.Device)
	if c.Error != "" {
		fmt.Fprintf(b, "  %s\n", c.Error)
	}
	for i := range c.Running {
		writeJob(b, "runs", &c.Running[i])
	}
	for i := range c.Waiting {
		if i == maxShownJobs {
			fmt.Fprintf(b, "  … %d more\n", len(c.Waiting)-i)
			break
		}
		writeJob(b, "waits", &c.Waiting[i])
	}
	if c.More {
		b.WriteString("  There may be older work under way than was read.\n")
	}
}

func writeJob(b *strings.Builder, word string, j *channels.JobReport) {
	row := jobRow(j)
	fmt.Fprintf(b, "  %-5s  %s", word, row.kernel)
	if j.Name != "" {
		fmt.Fprintf(b, "\n         %s\n         ", fatbin.Demangle(j.Name))
	}
	if j.Grid != nil {
		fmt.Fprintf(b, " grid %s, block %s, %d registers, %d B of shared memory", channel.Dimensions(*j.Grid), channel.Dimensions(*j.Block), j.Registers, j.Shared)
	}
	if j.Graph > 0 {
		fmt.Fprintf(b, ", one of %d kernels of a graph", j.Graph)
	}
	if j.Arguments != "" {
		fmt.Fprintf(b, "\n          arguments %s", cutText(j.Arguments, 400))
	}
	b.WriteString("\n")
}

// maxShownFrames is how many calls of a thread are printed.
const maxShownFrames = 12

func writeThread(b *strings.Builder, t *outside.Thread) {
	state := "in a system call"
	if t.Running {
		state = "running"
	}
	fmt.Fprintf(b, "  %d %s: %s\n", t.TID, t.Name, state)
	if cuda := cudaCall(t); cuda != "" {
		fmt.Fprintf(b, "      in %s\n", cuda)
	}
	for i, f := range t.Python {
		if i == maxShownFrames {
			fmt.Fprintf(b, "      … %d more\n", len(t.Python)-i)
			break
		}
		fmt.Fprintf(b, "      %s:%d %s\n", filepath.Base(f.File), f.Line, f.Func)
	}
}

// cudaCall returns the outermost function of CUDA's libraries that a thread is in, or "".
func cudaCall(t *outside.Thread) string {
	found := ""
	for i := range t.Native {
		f := &t.Native[i]
		if base := filepath.Base(f.File); strings.HasPrefix(base, "libcuda.so") || strings.HasPrefix(base, "libcudart.so") || strings.HasPrefix(base, "libnccl.so") {
			found = f.String()
		}
	}
	return found
}
