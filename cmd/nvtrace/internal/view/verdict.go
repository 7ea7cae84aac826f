package view

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/objects"
	"nvtrace/fatbin"
	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/capture"
	"nvtrace/rm"
	"nvtrace/traces"
)

// verdict is the first thing that a summary says. Times are in nanoseconds.
type verdict struct {
	Wall    int64        `json:"wall"`            // from the program's start to its end, or as long as it was traced
	Driver  int64        `json:"driver_time"`     // in which at least one thread was in a call of the driver
	Library *int64       `json:"library_time"`    // in a call of CUDA's libraries, likewise; nil: these were not recorded
	Spent   []spent      `json:"spent,omitempty"` // what for, the longest first
	Memory  []memoryPeak `json:"gpu_memory"`      // by process, the largest first
	Failed  uint64       `json:"failed"`          // calls of the driver and of CUDA's libraries
	First   *failure     `json:"first,omitempty"` // that failed
	GPU     *GPUTimes    `json:"gpu,omitempty"`   // what GPUs did, where that was timed
	Hang    *hanging     `json:"hang,omitempty"`  // what was going on when nothing else did, and is not over
	// Lines is what lines of Python allocated on GPUs, where stacks were recorded.
	Lines *api.MemoryReport `json:"lines,omitempty"`
	// Owners is who allocated memory of GPUs: libraries, frameworks, the program, the driver for itself.
	Owners []api.OwnerMemory `json:"memory_owners,omitempty"`
	// Times is in which lines threads waited, and before which calls they were outside of CUDA's libraries, likewise.
	Times   *api.LineReport `json:"line_times,omitempty"`
	Images  int             `json:"images,omitempty"` // captured code images
	Kernels int             `json:"kernels,omitempty"`

	// CallsFrom is since when library calls were kept, Called how long that was; 0: from the beginning.
	CallsFrom int64 `json:"calls_from,omitempty"`
	Called    int64 `json:"called,omitempty"`

	// Missing is what was not recorded, with the flag that records it.
	Missing []string `json:"not_recorded,omitempty"`

	held       heldCalls
	place      string // "rank 3 of 16"; "": there is no rank
	program    string
	who        string // of one process: " (process 12, 3 threads)"
	end        string // how the program ended, "" if that was not seen
	attached   bool
	processes  int
	library    *api.Report // nil: no calls of CUDA's libraries were recorded
	ioctls     uint64
	ioctlTime  int64 // summed over threads
	untimed    uint64
	gaps       []string
	moreGaps   uint64           // that are not in gaps
	images     bool             // code images were recorded
	captured   *traces.Captured // what that came to; nil: it did not come to its end
	memoryLess bool             // what was allocated is not known
	found      found
}

// memoryPeak is the GPU memory of a process, as nvidia-smi counts it.
type memoryPeak struct {
	PID  int32  `json:"pid"`
	Name string `json:"name,omitempty"`
	Peak uint64 `json:"peak"`
	Time int64  `json:"peak_time"`
}

// outline is what a verdict says while there may be more events: which program it is, for how long it ran, and how
// much of that in the driver.
func (s *Totals) outline(r *ioctl.Report) *verdict {
	v := &verdict{Driver: s.gathered.driver.Time(), CallsFrom: s.gathered.from}
	v.time(r)
	return v
}

// verdict says what a run comes to, from all that was gathered of it. Nothing may be added afterwards.
func (s *Totals) verdict(r *ioctl.Report) *verdict {
	o, v := &s.gathered, s.outline(r)
	v.held, v.Failed, v.First = s.held(), s.book.total, s.book.first
	v.Images, v.Kernels, v.library = len(o.images), o.kernels, s.api()
	v.ioctls, v.ioctlTime, v.untimed, v.gaps, v.moreGaps = r.Ioctls, r.IoctlTime, r.Untimed, r.Gaps, r.MoreGaps
	v.Spent, v.GPU, v.Hang, v.Lines = o.spent(), o.gpuTimes(), o.hanging(), o.memoryReport()
	v.Owners, v.Times = o.owners(), o.lineTimes()
	v.Memory, v.processes, v.memoryLess = []memoryPeak{}, len(r.Processes), s.book.l.Unseen > 0
	if v.held.any() && !v.held.counted {
		v.Library = new(o.library.Time())
	} else {
		v.Missing = append(v.Missing, "calls of CUDA's libraries (--api)")
	}
	v.captured = captured(r)
	v.place = s.place.String()
	v.images = v.Images+v.Kernels > 0 || v.captured != nil
	v.found = o.found
	l := s.book.l
	for pid := range l.Pids {
		for _, t := range l.Tree.Totals(pid) {
			if t.Kind == rm.Memory && t.Aperture == rm.ApertureVidmem && t.PeakBytes > 0 {
				m := memoryPeak{PID: pid, Peak: t.PeakBytes, Time: t.PeakTime}
				if task := l.Tree.Task(pid); task != nil && task.Name != "." {
					m.Name = task.Name
				}
				v.Memory = append(v.Memory, m)
			}
		}
	}
	slices.SortFunc(v.Memory, func(a, b memoryPeak) int { return cmp.Or(cmp.Compare(b.Peak, a.Peak), cmp.Compare(a.PID, b.PID)) })
	return v
}

// time finds out which program it was, how long it ran and how it ended.
func (v *verdict) time(r *ioctl.Report) {
	v.program = "the program"
	from, to := r.First, r.Last
	ended := len(r.Processes) > 0
	end := int64(0)
	for i := range r.Processes {
		p := &r.Processes[i]
		v.attached = v.attached || p.Attached
		ended = ended && p.Exited
		end = max(end, p.End)
	}
	if ended {
		to = end
	}
	v.Wall = max(to-from, 0)
	if v.CallsFrom > 0 {
		v.Called = max(to-max(from, v.CallsFrom), 0)
	}
	if len(r.Processes) > 0 {
		p := &r.Processes[0]
		v.program, v.end = filepath.Base(p.Exe), endText(p)
		if p.Exe == "" {
			v.program = "process " + fmt.Sprint(p.PID)
		}
	}
	if len(r.Argv) > 0 && !v.attached {
		v.program = filepath.Base(r.Argv[0])
	}
	if len(r.Processes) == 1 {
		p := &r.Processes[0]
		v.who = fmt.Sprintf(" (process %d, %s)", p.PID, cli.Counted(uint64(p.Threads), "thread"))
	}
}

// share says a time with its part of the whole: "198 ms (5.5 %)".
func (v *verdict) share(ns int64) string {
	s := cli.OrZero(cli.Duration(ns))
	if v.Wall > 0 {
		s += fmt.Sprintf(" (%.1f %%)", 100*float64(ns)/float64(v.Wall))
	}
	return s
}

// shareOfCalls is share for times in library calls, of which only the last may have been kept.
func (v *verdict) shareOfCalls(ns int64) string {
	if v.CallsFrom == 0 {
		return v.share(ns)
	}
	s := cli.OrZero(cli.Duration(ns))
	if v.Called > 0 {
		s += fmt.Sprintf(" (%.1f %% of the last %s, from which calls were kept)", 100*float64(ns)/float64(v.Called), cli.Duration(v.Called))
	}
	return s
}

// maxPeaks is how many processes' memory is said one by one.
const maxPeaks = 4

// write prints the verdict: a line for each question.
func (v *verdict) write(w io.Writer) error {
	var b strings.Builder
	line := func(what, format string, args ...any) {
		fmt.Fprintf(&b, "  %-19s  %s\n", what, cli.Printable(fmt.Sprintf(format, args...)))
	}
	verb := "ran"
	if v.attached {
		verb = "was traced for"
	}
	if v.place != "" {
		fmt.Fprintf(&b, "%s: ", cli.Printable(v.place))
	}
	fmt.Fprintf(&b, "%s%s %s %s", cli.Printable(v.program), v.who, verb, cli.OrZero(cli.Duration(v.Wall)))
	if v.end != "" {
		fmt.Fprintf(&b, ", %s", v.end)
	}
	if v.processes > 1 {
		fmt.Fprintf(&b, "; %d processes", v.processes)
	}
	b.WriteByte('\n')
	switch {
	case v.ioctls == 0 && v.Driver == 0:
		line("in the driver", "never, no NVIDIA device was used")
	case v.untimed == v.ioctls && v.ioctls > 0:
		line("in the driver", "%s, without their times", cli.Counted(v.ioctls, "ioctl"))
	default:
		line("in the driver", "%s, %s%s", v.share(v.Driver), cli.Counted(v.ioctls, "ioctl"), summed(v.ioctlTime, v.Driver))
	}
	switch r := v.library; {
	case !v.held.any():
		line("in CUDA's libraries", notRecorded)
	case r == nil:
		line("in CUDA's libraries", "never%s", v.held.only())
	case v.Library == nil:
		line("in CUDA's libraries", "%s, counted in the program%s", cli.Counted(r.Calls, "call"), v.held.only())
	default:
		line("in CUDA's libraries", "%s, %s%s%s", v.shareOfCalls(*v.Library), cli.Counted(r.Calls, "call"), v.held.only(), summed(r.Time, *v.Library))
		v.writeSpent(line)
	}
	v.writeHang(line)
	v.writeGPU(line)
	v.writeMemory(line)
	v.writeOutOfMemory(line)
	switch f := v.First; {
	case f == nil && !v.held.any():
		line("failed calls", "none of the driver; of CUDA's libraries "+notRecorded)
	case f == nil && v.held.counted:
		line("failed calls", "none of the driver; those of CUDA's libraries were only counted (--api)")
	case f == nil:
		line("failed calls", "none")
	default:
		line("failed calls", "%d, the first at %.6f s in process %d: %s = %s", v.Failed, float64(f.First)/1e9, f.PID, f.text(), f.Result)
	}
	switch images := fmt.Sprintf("%s, %s launched", cli.Counted(uint64(v.Images), "image"), cli.Counted(uint64(v.Kernels), "kernel")); {
	case len(v.gaps) == 1 && v.moreGaps == 0:
		line("GPU code", "INCOMPLETE: %s; 1 gap: %s", images, v.gaps[0])
	case len(v.gaps) > 0:
		line("GPU code", "INCOMPLETE: %s; %d gaps, the first: %s", images, uint64(len(v.gaps))+v.moreGaps, v.gaps[0])
	case v.moreGaps > 0:
		line("GPU code", "INCOMPLETE: %s; gaps: %d", images, v.moreGaps)
	case v.images && v.captured == nil:
		line("GPU code", "INCOMPLETE: %s; capturing did not come to its end", images)
	case v.images && !v.captured.Complete():
		line("GPU code", "INCOMPLETE: %s; %s", images, v.captured)
	case v.images:
		line("GPU code", "%s, nothing escaped", images)
	}
	for i, f := range v.found.faults {
		if i == maxPeaks {
			line("", "and %d more kernels failed", v.found.failed-i)
			break
		}
		line("kernel failed", "%s", f.Text)
	}
	if text := v.found.summary(); text != "" {
		line("probes", "%s", text)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// summed says what the tables' times come to, where that is not the time in which at least one
// thread was in such a call: they are summed over threads.
func summed(sum, union int64) string {
	if text := cli.Duration(sum); sum > union && text != cli.Duration(union) {
		return "; summed over threads " + text
	}
	return ""
}

// writeSpent says what for the time in the libraries went, as far as that is much of the run.
func (v *verdict) writeSpent(line func(what, format string, args ...any)) {
	for _, s := range v.Spent {
		if s.Time > 0 && s.Time >= v.Wall/100 || s.Time > 0 && v.CallsFrom > 0 && s.Time >= v.Called/100 {
			line("  "+s.Purpose, "%s, %s, most in %s", v.shareOfCalls(s.Time), cli.Counted(s.Calls, "call"), s.Most)
		}
	}
}

// writeOutOfMemory says what had the memory when there was no more.
func (v *verdict) writeOutOfMemory(line func(what, format string, args ...any)) {
	if v.Lines == nil || v.Lines.Failed == nil {
		return
	}
	f := v.Lines.Failed
	line("out of memory", "at %.6f s in process %d: %s asked for %s, while %s were allocated", float64(f.Time)/1e9, f.PID, cmp.Or(f.Line, "a call"), objects.MemoryText(f.Bytes), objects.MemoryText(f.Live))
	if len(v.Lines.Lines) > 0 {
		l := &v.Lines.Lines[0]
		line("  most of it by", "%s: %s in %s", cmp.Or(l.Line, "calls without a stack"), objects.MemoryText(l.Live), cli.Counted(l.Count, "allocation"))
	}
}

// maxHung is how many threads and streams are shown that wait, and maxHungFrames how many lines of
// each thread.
const (
	maxHung       = 8
	maxHungFrames = 3
)

// writeHang says what was going on when nothing else did.
func (v *verdict) writeHang(line func(what, format string, args ...any)) {
	if v.Hang == nil {
		return
	}
	for i := range v.Hang.Streams[:min(len(v.Hang.Streams), maxHung)] {
		s := &v.Hang.Streams[i]
		behind := ""
		if s.Behind > 0 {
			behind = fmt.Sprintf("; %d more behind it on the stream, of which some may have been over", s.Behind)
		}
		line("GPU not over", "%s on stream %#x for %s, from thread %d of process %d%s", cmp.Or(s.Name, "an unknown kernel"), s.Stream, cli.Duration(s.For), s.TID, s.PID, behind)
	}
	for i := range v.Hang.GPUs[:min(len(v.Hang.GPUs), maxHung)] {
		g := &v.Hang.GPUs[i]
		for k, said := range g.Said {
			if k == maxHung {
				line("", "and %d more channels of process %d", len(g.Said)-k, g.PID)
				break
			}
			line("GPU not over", "at %.6f s in process %d: %s", float64(g.Time)/1e9, g.PID, said)
		}
	}
	for i := range v.Hang.Threads[:min(len(v.Hang.Threads), maxHung)] {
		t := &v.Hang.Threads[i]
		at := hungAt(t.Stack)
		where := ""
		if len(at) > 0 {
			where = ", at " + strings.Join(at, " < ")
		}
		line("thread waits", "%d of process %d in %s for %s%s", t.TID, t.PID, t.In, cli.Duration(t.For), where)
	}
	if more := max(len(v.Hang.Streams)-maxHung, 0) + max(len(v.Hang.Threads)-maxHung, 0); more > 0 {
		line("", "and %d more (--json has all)", more)
	}
}

// hungAt says where a thread waits: at which lines of Python, if there are any, else in which functions.
func hungAt(stack []traces.StackFrame) (at []string) {
	if python := traces.Interpreted(stack); len(python) > 0 {
		stack = python
	}
	for _, f := range stack[:min(len(stack), maxHungFrames)] {
		if f.Language == traces.LanguageNative {
			at = append(at, f.Text(fatbin.DemangleShort))
		} else {
			at = append(at, fmt.Sprintf("%s:%d %s", f.File, f.Line, f.Func))
		}
	}
	return at
}

// maxIdle is how many reasons of an idle GPU are said.
const maxIdle = 4

// writeGPU says how busy GPUs were, and what they waited for.
func (v *verdict) writeGPU(line func(what, format string, args ...any)) {
	if v.GPU == nil {
		return
	}
	for i := range v.GPU.Contexts[:min(len(v.GPU.Contexts), maxPeaks)] {
		c := &v.GPU.Contexts[i]
		who, span := "", c.Last-c.First
		if len(v.GPU.Contexts) > 1 {
			who = fmt.Sprintf(" of process %d", c.PID)
		}
		where := ""
		if c.Streams > 0 { // of kernels that were timed by probes it is not known
			where = " on " + cli.Counted(uint64(c.Streams), "stream")
		}
		switch {
		case c.Device != nil:
			what := "channel"
			if c.Called {
				what = "stream"
			}
			where = fmt.Sprintf(" on %s of GPU %d", cli.Counted(uint64(c.Streams), what), *c.Device)
		case slices.ContainsFunc(v.GPU.Contexts, func(o api.GPUTime) bool { return o.PID == c.PID && o.Context != c.Context }):
			where += fmt.Sprintf(" of context %#x", c.Context)
		}
		line("GPU busy"+who, "%s of the %s from its first work to its last; %s%s", cli.PercentText(c.Busy, span), cli.OrZero(cli.Duration(span)),
			cli.CountedAs(c.Works, "kernel or copy", "kernels and copies"), where)
		var reasons []string
		for k, idle := range c.Idle {
			if k == maxIdle || idle.Time*100 < span {
				break
			}
			in := "outside of CUDA's libraries"
			if idle.In != "" {
				in = "in " + idle.In
			}
			reasons = append(reasons, cli.Duration(idle.Time)+" "+in)
		}
		if len(reasons) > 0 {
			line("  idle", "%s, while the thread with its next work was %s", cli.OrZero(cli.Duration(span-c.Busy)), strings.Join(reasons, ", "))
		}
	}
	if more := len(v.GPU.Contexts) - maxPeaks; more > 0 {
		line("", "and %s", cli.CountedAs(uint64(more), "other context", "other contexts"))
	}
}

func (v *verdict) writeMemory(line func(what, format string, args ...any)) {
	if v.memoryLess {
		line("GPU memory", "not known: calls were recorded without their results (--counts)")
		return
	}
	name := func(m *memoryPeak) string {
		if m.Name == "" {
			return fmt.Sprint(m.PID)
		}
		return fmt.Sprintf("%d (%s)", m.PID, m.Name)
	}
	for i := range v.Memory[:min(len(v.Memory), maxPeaks)] {
		m := &v.Memory[i]
		what := ""
		if i == 0 {
			what = "GPU memory"
		}
		line(what, "%s at most in process %s, at %.3f s", objects.MemoryText(m.Peak), name(m), float64(m.Time)/1e9)
	}
	if more := len(v.Memory) - maxPeaks; more > 0 {
		line("", "less in %s", cli.CountedAs(uint64(more), "other process", "other processes"))
	}
}

// captured returns what capturing code images came to, nil if it did not come to its end,
// or was off. Older recordings say it in a note.
func captured(r *ioctl.Report) *traces.Captured {
	c := r.Captured
	for _, n := range r.Notes {
		c = cmp.Or(c, capture.OldNote(n))
	}
	return c
}

// endText says how a process ended.
func endText(p *ioctl.Process) string {
	if !p.Exited {
		return ""
	}
	st := unix.WaitStatus(p.Status)
	if st.Signaled() {
		return unix.SignalName(st.Signal())
	}
	return "exit " + strconv.Itoa(st.ExitStatus())
}
