package view

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"nvtrace/cmd/nvtrace/internal/cli"
	"nvtrace/cmd/nvtrace/internal/objects"
	"nvtrace/fatbin"
	"nvtrace/ioctl"
	"nvtrace/nvattach/api"
	"nvtrace/nvattach/capture"
	"nvtrace/rm"
	"nvtrace/traces"
)

// observer gathers what the first lines of a summary say and its tables do not: how
// much of the time was spent in the driver and in CUDA's libraries, and which code
// came to the GPU.
type observer struct {
	driver, library busy
	purposes        [api.Purposes]purpose
	images          map[string]struct{}
	kernels         int
	Found           found
	gpus            *api.GPUTimes
	times           *GPUTimes // what gpus came to, once there is nothing to come
	memory          *api.Allocations
	hang            *api.Hang
	channels        map[int32]*channelsAt   // of processes whose GPU channels were looked at, as of the latest look
	from            int64                   // library calls from before were dropped; 0: none were
	sampled         map[int]*traces.Sampled // what looks from outside came to, by process
}

// channelsAt is what a process's channels were at, but for those that were idle.
type channelsAt struct {
	PID      int32           `json:"pid"`
	Time     int64           `json:"time"`
	Said     []string        `json:"said"`
	Channels json.RawMessage `json:"channels,omitempty"` // as nvtrace ps --json has them
}

// GPUTimes is what GPUs did.
type GPUTimes struct {
	Contexts []api.GPUTime  `json:"contexts"`
	Works    []api.WorkTime `json:"works"`
}

// gpuTimes returns what GPUs did, nil where that was not recorded. Nothing may be added afterwards.
func (o *observer) gpuTimes() *GPUTimes {
	if o.times == nil && o.gpus != nil {
		o.times = new(GPUTimes)
		o.times.Contexts, o.times.Works = o.gpus.Report()
	}
	if o.times == nil || len(o.times.Works) == 0 {
		return nil
	}
	return o.times
}

// hanging is what was not over when nothing went on.
type hanging struct {
	Threads []api.WaitingThread `json:"threads,omitempty"`
	Streams []api.HungStream    `json:"streams,omitempty"`
	GPUs    []channelsAt        `json:"gpus,omitempty"`
}

// hanging returns that, nil where there was nothing.
func (o *observer) hanging() *hanging {
	if o.hang == nil {
		return nil
	}
	h := new(hanging)
	for _, pid := range slices.Sorted(maps.Keys(o.channels)) {
		h.GPUs = append(h.GPUs, *o.channels[pid])
	}
	if h.Threads, h.Streams = o.hang.Report(); len(h.Threads)+len(h.Streams)+len(h.GPUs) == 0 {
		return nil
	}
	return h
}

// addChannels takes in what a process's channels were at.
func (o *observer) addChannels(ev *traces.Event) {
	if ev.Text == "" {
		delete(o.channels, ev.PID) // all were idle
		return
	}
	if o.channels == nil {
		o.channels = make(map[int32]*channelsAt)
	}
	if o.channels[ev.PID] == nil && len(o.channels) >= maxChannelsAt {
		return
	}
	at := &channelsAt{PID: ev.PID, Time: ev.Time, Said: strings.Split(strings.TrimSpace(ev.Text), "\n")}
	if json.Valid([]byte(ev.Data)) { // else it was cut
		at.Channels = json.RawMessage(ev.Data)
	}
	o.channels[ev.PID] = at
}

// maxChannelsAt bounds what a hostile recording has us keep.
const maxChannelsAt = 64

// maxImageNames bounds what a hostile recording may have us remember.
const maxImageNames = 1 << 16

// add takes in an event; f is the library call that it is or happened in, and t what knows.
func (o *observer) add(ev *traces.Event, t *api.Tracker, f *api.Frame) {
	if o.gpus == nil {
		o.gpus = api.NewGPUTimes()
	}
	o.gpus.Add(ev, t, f)
	if o.memory == nil {
		o.memory = api.NewAllocations()
		o.memory.Demangle = fatbin.DemangleShort
	}
	o.memory.Add(ev, f)
	if o.hang == nil {
		o.hang = api.NewHang()
	}
	o.hang.Add(ev, t, f)
	timed := ev.Flags&(traces.FlagNoExit|traces.FlagUnfinished) == 0
	switch ev.Kind {
	case traces.KindOpen, traces.KindClose, traces.KindMmap, traces.KindMunmap, traces.KindMremap, traces.KindIoctl:
		if timed {
			o.driver.add(ev.Time, ev.Time+ev.Dur)
		}
	case traces.KindReturn:
		if timed && f != nil && f.Parent == nil {
			o.library.add(max(f.Start, o.from), f.End)
		}
		if timed && f != nil {
			if p := f.Purpose(); p != api.NoPurpose {
				o.purposes[p].add(f, o.from)
			}
		}
	case traces.KindImage:
		if ev.Image != nil && len(o.images) < maxImageNames {
			if o.images == nil {
				o.images = make(map[string]struct{})
			}
			o.images[ev.Image.SHA256] = struct{}{}
		}
	case traces.KindKernel:
		o.kernels++
	case traces.KindChannels:
		o.addChannels(ev)
	case traces.KindSampled:
		if r := ev.Sampled(); r != nil && (o.sampled[int(ev.PID)] != nil || len(o.sampled) < maxMetered) {
			if o.sampled == nil {
				o.sampled = make(map[int]*traces.Sampled)
			}
			o.sampled[int(ev.PID)] = r
		}
	case traces.KindGPU, traces.KindStack:
	default:
		o.Found.add(ev)
	}
}

// purpose is the time of calls that were made for something.
type purpose struct {
	busy
	calls uint64
	by    map[string]*int64 // time of each function
	name  string            // of the latest call
	last  *int64            // by[name]
}

// add takes in a call that has returned. What was before from does not count.
func (p *purpose) add(f *api.Frame, from int64) {
	p.busy.add(max(f.Start, from), f.End)
	p.calls++
	if p.last == nil || p.name != f.Name {
		if p.by == nil {
			p.by = make(map[string]*int64)
		}
		p.name, p.last = f.Name, p.by[f.Name]
		if p.last == nil {
			p.last = new(int64)
			p.by[f.Name] = p.last // the names are those of functions that are known
		}
	}
	*p.last += max(f.End-max(f.Start, from), 0)
}

// most returns the function that took most of the time.
func (p *purpose) most() (name string) {
	for _, n := range slices.Sorted(maps.Keys(p.by)) {
		if name == "" || *p.by[n] > *p.by[name] {
			name = n
		}
	}
	return name
}

// spent is a line of where the time went.
type spent struct {
	Purpose string `json:"purpose"`
	Time    int64  `json:"time"` // in which at least one thread was at it
	Calls   uint64 `json:"calls"`
	Most    string `json:"most"` // the function that took most of it
}

// spent returns what calls of the driver and the runtime were made for, what took longest first.
func (o *observer) spent() (list []spent) {
	for i := range o.purposes {
		if p := &o.purposes[i]; p.calls > 0 {
			list = append(list, spent{api.Purpose(i).String(), p.Time(), p.calls, p.most()})
		}
	}
	slices.SortStableFunc(list, func(a, b spent) int { return cmp.Compare(b.Time, a.Time) })
	return list
}

// busy adds up the time that is covered by spans, which may overlap and come in any order: how long
// at least one thread, or GPU, was at something.
type busy struct {
	total int64
	spans []timeSpan // in order, and apart from each other
}

// timeSpan is a time that is covered; of one that was made of several, a part of it is.
type timeSpan struct{ from, to, covered int64 }

// maxSpans is how many spans are kept for what may still overlap them.
const maxSpans = 1 << 9

// add returns how much of the span was not covered before; of nil, whose spans are not kept, nothing.
func (b *busy) add(from, to int64) (added int64) {
	if b == nil || to <= from {
		return 0
	}
	first, _ := slices.BinarySearchFunc(b.spans, from, func(s timeSpan, from int64) int { return cmp.Compare(s.to, from) })
	last, whole := first, timeSpan{from, to, 0}
	for added = to - from; last < len(b.spans) && b.spans[last].from <= to; last++ {
		s := b.spans[last]
		added -= s.within(from, to)
		whole = timeSpan{min(whole.from, s.from), max(whole.to, s.to), whole.covered + s.covered}
	}
	whole.covered += added
	b.total += added
	b.spans = slices.Replace(b.spans, first, last, whole)
	if len(b.spans) > maxSpans { // the older half becomes coarser
		const half = maxSpans / 2
		for i := range half / 2 {
			x, y := b.spans[2*i], b.spans[2*i+1]
			b.spans[i] = timeSpan{x.from, y.to, x.covered + y.covered}
		}
		b.spans = slices.Delete(b.spans, half/2, half)
	}
	return added
}

// within returns how much is covered from one moment to another: as if what is covered of a part
// were spread over it evenly.
func (s *timeSpan) within(from, to int64) int64 {
	n, all := min(s.to, to)-max(s.from, from), s.to-s.from
	if n == all || s.covered == all {
		return min(n, s.covered)
	}
	return int64(float64(n) * (float64(s.covered) / float64(all)))
}

// Time returns how long it was in all.
func (b *busy) Time() int64 { return b.total }

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
	Lines   *api.MemoryReport `json:"lines,omitempty"`
	Images  int               `json:"images,omitempty"` // captured code images
	Kernels int               `json:"kernels,omitempty"`

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

// verdict says what a run comes to, from all that was gathered of it.
func (s *Sink) verdict(r *ioctl.Report) *verdict {
	o := &s.Observer
	v := &verdict{
		Driver: o.driver.Time(), held: s.held(), Failed: s.book.total, First: s.book.first,
		Images: len(o.images), Kernels: o.kernels, library: s.ApiReport(), ioctls: r.Ioctls, ioctlTime: r.IoctlTime, untimed: r.Untimed, gaps: r.Gaps, moreGaps: r.MoreGaps,
		CallsFrom: o.from, Spent: o.spent(), GPU: o.gpuTimes(), Hang: o.hanging(), Lines: o.memoryReport(), Memory: []memoryPeak{}, processes: len(r.Processes), memoryLess: s.book.l.Unseen > 0,
	}
	if v.held.any() && !v.held.counted {
		v.Library = new(o.library.Time())
	} else {
		v.Missing = append(v.Missing, "calls of CUDA's libraries (--api)")
	}
	v.captured = captured(r)
	v.place = s.place.String()
	v.images = v.Images+v.Kernels > 0 || v.captured != nil
	v.found = o.Found
	v.time(r)
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

// memoryReport returns what lines allocated, nil where that is not known.
func (o *observer) memoryReport() *api.MemoryReport {
	if o.memory == nil {
		return nil
	}
	return o.memory.Report()
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
