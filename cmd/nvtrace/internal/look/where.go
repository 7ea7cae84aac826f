package look

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"nvtrace/fatbin"
	"nvtrace/ioctl/channels"
	"nvtrace/ptrace/outside"
	"nvtrace/ptrace/proc"
	"nvtrace/traces/escape"
)

// Options say how a process is looked at.
type Options struct {
	Names  bool // search for the names of kernels
	Stacks bool // stop threads that run, each for as long as its stack is read

	Access channels.Access // which memory is read

	// Places is where the process's channels are; nil: they are looked for.
	Places []channels.Place
}

// A Where says what a process is at.
type Where struct {
	channels.Report
	Threads []outside.Thread `json:"threads"`
}

// Places are the processes of a tree that use a GPU, or the one that was asked for if none does.
type Places []*Where

// WhereIs looks at the channels and threads of a process, and of its descendants that use a GPU.
func WhereIs(pid int, o Options) (Places, error) {
	var list Places
	others := descendants(pid)
	if o.Places != nil {
		others = nil // whose places these are not
	}
	for _, p := range append([]int{pid}, others...) {
		w, err := whereIs(p, o)
		switch {
		case err == nil && (len(w.Channels) > 0 || p == pid):
			list = append(list, w)
		case err != nil && p == pid:
			return nil, err
		}
	}
	if len(list) > 1 && len(list[0].Channels) == 0 {
		list = list[1:] // what has started them
	}
	return list, nil
}

func whereIs(pid int, o Options) (*Where, error) {
	open := func(pid int) (*channels.View, error) { return channels.ViewOf(pid, o.Access) }
	if o.Places != nil {
		open = func(pid int) (*channels.View, error) { return channels.ViewAt(pid, o.Places) }
	}
	v, err := open(pid)
	if err != nil {
		return nil, err
	}
	defer v.Close()
	w := Where{Report: v.Look(o.Names)}
	if w.Threads, err = outside.Threads(pid, o.Stacks && v.Channels() > 0); err != nil {
		return nil, err
	}
	return &w, nil
}

// descendants lists the processes that a process has started, and those that these have.
func descendants(pid int) (list []int) {
	children := map[int][]int{}
	for _, p := range proc.All() {
		if parent, ok := proc.StatusNumber(p, "PPid"); ok {
			children[parent] = append(children[parent], p)
		}
	}
	for queue := children[pid]; len(queue) > 0; queue = queue[1:] {
		list = append(list, queue[0])
		queue = append(queue, children[queue[0]]...)
		delete(children, queue[0])
	}
	slices.Sort(list)
	return list
}

// Write prints the reports: of each process the verdict first.
func (l Places) Write(out io.Writer) error {
	for i, w := range l {
		if i > 0 {
			if _, err := io.WriteString(out, "\n"); err != nil {
				return err
			}
		}
		if err := w.Write(out); err != nil {
			return err
		}
	}
	if text := l.apart(); text != "" {
		if _, err := fmt.Fprintf(out, "\n%s\n", text); err != nil {
			return err
		}
	}
	return nil
}

// apart says which processes are in no kernel of NCCL's while others are: these wait for them, if all
// have one communicator.
func (l Places) apart() string {
	var in, out []string
	for _, w := range l {
		list := &out
		if w.inNCCL() {
			list = &in
		}
		*list = append(*list, strconv.Itoa(w.PID))
	}
	if len(in) == 0 || len(out) == 0 {
		return ""
	}
	verb := "are"
	if len(in) == 1 {
		verb = "is"
	}
	return fmt.Sprintf("%s %s in a kernel of NCCL's, %s in none: if they have a communicator in common, the first wait for the others.",
		strings.Join(in, ", "), verb, strings.Join(out, ", "))
}

// inNCCL reports whether a channel runs a kernel of NCCL's.
func (w *Where) inNCCL() bool {
	return slices.ContainsFunc(w.Channels, func(c channels.ChannelReport) bool {
		return slices.ContainsFunc(c.Running, func(j channels.JobReport) bool { return (j.NCCL != nil || strings.Contains(j.Name, "ncclDevKernel_")) })
	})
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
	others := 0
	for i := range w.Threads {
		if t := &w.Threads[i]; i >= maxPlainThreads && !t.Running && len(t.Python) == 0 && cudaCall(t) == "" {
			others++ // of a pool, as a rule
			continue
		}
		writeThread(&b, &w.Threads[i])
	}
	if others > 0 {
		fmt.Fprintf(&b, "  and %d more in system calls, without Python (--json has all)\n", others)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// verdict says in words what the process's channels are at, and where its threads wait for them.
func (w *Where) verdict() []string {
	list := Sentences(&w.Report)
	switch {
	case len(w.Channels) == 0 && w.Rings != "":
		list = append(list, "No channel was found.")
	case len(w.Channels) == 0:
		list = append(list, "No channel of a GPU is in use.")
	case list == nil:
		list = append(list, fmt.Sprintf("All %d channels are idle: the GPU has nothing to do for this process.", len(w.Channels)))
	}
	list = append(list, ringsText([]Process{{Report: w.Report}})...)
	told := false
	for i := range w.Threads {
		t := &w.Threads[i]
		if cuda := cudaCall(t); cuda != "" {
			list = append(list, fmt.Sprintf("Thread %d (%s) is in %s%s.", t.TID, t.Name, cuda, lineOf(t)))
			told = told || len(t.Python) > 0
		}
	}
	for i := range w.Threads {
		// libcuda's functions may not be found, but the line that a program waits at is.
		if t := &w.Threads[i]; !told && t.TID == w.PID && len(t.Python) > 0 {
			list = append(list, fmt.Sprintf("The main thread%s.", strings.Replace(lineOf(t), ", at", " is at", 1)))
		}
	}
	return list
}

// lineOf says at which line of Python a thread is: ", at train.py:71 step".
func lineOf(t *outside.Thread) string {
	if len(t.Python) == 0 {
		return ""
	}
	// The innermost line of the program's own: libraries wrap what waits.
	f := t.Python[0]
	for _, g := range t.Python {
		if !strings.Contains(g.File, "site-packages") && !strings.Contains(g.File, "dist-packages") && !strings.Contains(g.File, "/lib/python") && !strings.HasPrefix(g.File, "<") {
			f = g
			break
		}
	}
	return fmt.Sprintf(", at %s:%d %s", filepath.Base(f.File), f.Line, f.Func)
}

// Sentences says what each channel is at that isn't idle.
func Sentences(r *channels.Report) (list []string) {
	for i := range r.Channels {
		c := &r.Channels[i]
		gpu := gpuOf(c)
		behind := waits(c.Behind, " behind it")
		switch {
		case len(c.Running) > 0:
			row := channelRows(c)[0]
			since, nccl := "", ""
			if n := c.Running[0].NCCL; n != nil {
				nccl = " (" + ncclText(n) + ")"
			}
			if c.Running[0].Began != 0 {
				since = " for " + row.since
			}
			list = append(list, fmt.Sprintf("Channel %d of %s has been in %s%s%s%s.", c.Channel, gpu, row.kernel, nccl, since, behind))
		case c.Blocked != nil && c.Blocked.Channel != nil && c.Blocked.By == channels.ByRelease:
			list = append(list, fmt.Sprintf("Channel %d of %s waits for channel %d%s%s.", c.Channel, gpu, *c.Blocked.Channel, doing(r, *c.Blocked.Channel), waiting(c)))
		case c.Blocked != nil && c.Blocked.Channel != nil:
			list = append(list, fmt.Sprintf("Channel %d of %s waits for the kernel of channel %d%s.", c.Channel, gpu, *c.Blocked.Channel, waiting(c)))
		case c.Blocked != nil:
			list = append(list, fmt.Sprintf("Channel %d of %s waits for %s%s.", c.Channel, gpu, blockedText(c.Blocked), waiting(c)))
		case c.Busy:
			list = append(list, fmt.Sprintf("Channel %d of %s has work that it has not begun%s.", c.Channel, gpu, waits(c.Behind, "")))
		}
	}
	return list
}

// doing says what a channel is at that another one waits for.
func doing(r *channels.Report, number int) string {
	at := slices.IndexFunc(r.Channels, func(c channels.ChannelReport) bool { return c.Channel == number })
	if at < 0 {
		return ""
	}
	switch c := &r.Channels[at]; {
	case len(c.Running) > 0:
		return ", which is in " + channelRows(c)[0].kernel
	case c.Blocked != nil && c.Blocked.Channel != nil && *c.Blocked.Channel != number:
		return fmt.Sprintf(", which waits for channel %d", *c.Blocked.Channel)
	case c.Blocked != nil:
		return ", which waits itself"
	}
	return ""
}

// gpuOf names a channel's GPU in a sentence.
func gpuOf(c *channels.ChannelReport) string {
	if number := strings.TrimPrefix(c.Device, "/dev/nvidia"); number != "" {
		return "GPU " + number
	}
	return "a GPU"
}

// blockedText says what a channel waits for that no kernel of the process is about to write.
func blockedText(b *channels.BlockReport) string {
	is := "which can't be read"
	if b.Value != nil {
		is = fmt.Sprintf("where %d stands", *b.Value)
	}
	return fmt.Sprintf("the value %d at %s, %s, and which nothing that this process has handed to a GPU is about to write", b.Wanted, b.Semaphore, is)
}

// waiting says what waits in a channel that runs nothing: the first of it.
func waiting(c *channels.ChannelReport) string {
	if len(c.Waiting) == 0 {
		return ""
	}
	text := "; " + jobRow(&c.Waiting[0]).kernel
	if n := c.Behind - 1; n > 0 {
		return text + fmt.Sprintf(" and %d more wait", n)
	}
	return text + " waits"
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
	fmt.Fprintf(b, "\nChannel %d of %s\n", c.Channel, cmp.Or(c.Device, "a GPU"))
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
	if j.Name != "" {
		row.kernel = fatbin.Demangle(j.Name) // all of it
	}
	fmt.Fprintf(b, "  %-5s  %s", word, row.kernel)
	if j.Name != "" && j.Grid != nil {
		b.WriteString("\n         ")
	}
	if j.Grid != nil {
		fmt.Fprintf(b, " grid %s, block %s, %d registers, %d B of shared memory", row.grid, row.block, j.Registers, j.Shared)
	}
	if j.Graph > 0 {
		fmt.Fprintf(b, ", one of %d kernels of a graph", j.Graph)
	}
	switch {
	case j.NCCL != nil:
		fmt.Fprintf(b, "\n          %s", ncclText(j.NCCL))
	case j.Arguments != "":
		fmt.Fprintf(b, "\n          arguments %s", argumentsText(j))
	}
	b.WriteString("\n")
}

// maxPlainThreads is how many threads are printed of which there is nothing to say.
const maxPlainThreads = 4

// maxShownFrames is how many calls of a thread are printed.
const maxShownFrames = 12

func writeThread(b *strings.Builder, t *outside.Thread) {
	state := "in a system call"
	if t.Running {
		state = "running"
	}
	if cudaCall(t) == "" && t.Native != nil {
		state += ", " + t.Native[0].String()
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
