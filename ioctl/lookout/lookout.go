// Package lookout records for a flight recorder what the threads and GPUs of a program are at: when
// somebody asks, when a channel does not get on, and before the program ends. It does not know what
// the recorder keeps.
package lookout

import (
	"encoding/json"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"nvtrace/ioctl/channels"
	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/ptrace/proc"
	"nvtrace/ptrace/unwind"
	"nvtrace/traces"
	"nvtrace/traces/record"
	"nvtrace/traces/stacks"
)

// A Lookout records for a flight recorder what threads and GPUs are at: when that asks, when a channel has
// not got on for long, before a signal that ends programs is delivered, and before a program ends with a
// status other than 0. It is a ptrace.Handler.
type Lookout struct {
	recorder *record.Recorder
	stacks   *stacks.Stacks
	o        Options

	listener net.Listener                // of those who ask; nil: nobody can
	task     atomic.Pointer[ptrace.Task] // any, by which the tracing thread is reached
	stop     chan struct{}

	// These are the tracing thread's.
	tasks  map[int]*ptrace.Task
	begun  bool
	over   bool
	latest time.Time // of a look before a signal or an end

	mu        sync.Mutex // one look at a time
	number    int
	positions map[channelKey]*standing

	pidsMu sync.Mutex
	pids   map[int]bool // processes that are traced
}

// channelKey is a channel of a process.
type channelKey struct {
	pid             int
	device, address string
}

// standing is where a channel is, and since when.
type standing struct {
	channels.Position
	since time.Time
	told  bool
}

// Options say how a Lookout looks at channels.
type Options struct {
	// Hang is for how long a channel that does not get on hangs; 0: none ever does.
	Hang time.Duration
	// Look looks at the channels of a process, and searches for names for a time at most; 0: it
	// does not search. It is not called twice at once.
	Look func(pid int, search time.Duration) channels.Report
	// Busy returns a report without what is idle, Sentences says what is left of it.
	Busy      func(*channels.Report) *channels.Report
	Sentences func(*channels.Report) []string
}

// New returns a Lookout that records with r.
func New(r *record.Recorder, o *Options) *Lookout {
	return &Lookout{
		recorder: r, stacks: stacks.New(r, false), o: *o, stop: make(chan struct{}), tasks: make(map[int]*ptrace.Task),
		positions: make(map[channelKey]*standing), pids: make(map[int]bool),
	}
}

// Rules select the end of a program: its memory is still there.
func (*Lookout) Rules() []ptrace.Rule {
	return []ptrace.Rule{{Names: []string{"exit_group"}, Class: record.ExtensionClass}}
}

// Enter implements ptrace.Handler.
func (h *Lookout) Enter(t *ptrace.Task, c *ptrace.Syscall) ptrace.Verdict {
	if c.Args[0]&0xff != 0 {
		h.ends(t.PID)
	}
	return ptrace.Skip
}

// Exit implements ptrace.Handler.
func (*Lookout) Exit(*ptrace.Task, *ptrace.Syscall) {}

// Task implements ptrace.Handler.
func (h *Lookout) Task(t *ptrace.Task, e *ptrace.TaskEvent) {
	h.stacks.Task(t, e)
	h.tasks[t.TID] = t
	h.task.Store(t)
	h.pidsMu.Lock()
	h.pids[t.PID] = true
	if e.Kind == ptrace.TaskExit || e.Kind == ptrace.TaskDetach {
		if delete(h.tasks, t.TID); t.TID == t.PID && !e.Replaced {
			delete(h.pids, t.PID)
		}
	}
	h.pidsMu.Unlock()
	if e.Kind == ptrace.TaskSignal && endsBy(t.PID, e.Signal) {
		h.ends(t.PID)
	}
	if pid := h.recorder.Header().PID; !h.begun && pid != 0 {
		h.begin(pid)
	}
}

// begin listens to those who ask, and watches channels.
func (h *Lookout) begin(pid int32) {
	h.begun = true
	if l, err := net.Listen("unix", socket(pid)); err == nil { // else another nvtrace answers for it
		h.listener = l
		go h.answer(l)
	}
	if h.o.Hang > 0 {
		go h.watch()
	}
}

// answer looks when a process of this user, or of root, asks, and says which look it was.
func (h *Lookout) answer(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		if u, ok := c.(*net.UnixConn); ok && SameUser(u) {
			_, _ = io.WriteString(c, strconv.Itoa(h.look(0))) // who asks may have gone
		}
		_ = c.Close()
	}
}

// endsBy reports whether a signal is about to end a process: one by which users and schedulers end programs,
// even if the process has a handler for it, or one that it has none for.
func endsBy(pid int, sig unix.Signal) bool {
	switch sig {
	case unix.SIGTERM, unix.SIGINT, unix.SIGQUIT, unix.SIGHUP, unix.SIGABRT:
		return true
	case unix.SIGCHLD, unix.SIGURG, unix.SIGWINCH, unix.SIGCONT, unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU:
		return false
	}
	for _, set := range []string{"SigCgt", "SigIgn"} {
		text, _ := proc.Status(pid, set)
		mask, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
		if err != nil || sig > 0 && mask>>(sig-1)&1 != 0 {
			return false
		}
	}
	return true
}

// Bounds of looks: how long names are searched for, when somebody waits and when the program does; how long
// threads are waited for; and how often programs wait for looks.
const (
	searchLong  = 5 * time.Second
	searchShort = time.Second
	awaitStops  = 5 * time.Second // a busy machine's threads take their time; what waits for the look hangs, or is who asks
	endsPause   = time.Second
)

// ends looks before a process ends, or may: on the tracing thread, while it stands still.
func (h *Lookout) ends(pid int) {
	if h.over || !h.latest.IsZero() && time.Since(h.latest) < endsPause {
		return
	}
	if !h.mu.TryLock() {
		return // a look is being made, which waits for this thread
	}
	defer h.mu.Unlock()
	reports := h.reports(searchShort, pid)
	waits := slices.ContainsFunc(h.recorder.Agent().Waiting(), func(w agent.Waiting) bool { return w.Process.PID == pid })
	if len(reports) == 0 && !waits {
		return // it has nothing to do with a GPU, as the commands of a script
	}
	h.threads(nil)
	h.emit(reports, 0)
	h.latest = time.Now()
}

// look records what all processes are at, and returns the look's number; 0: it can't.
func (h *Lookout) look(flags traces.Flags) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.task.Load()
	if t == nil {
		return 0
	}
	reports := h.reports(searchLong, h.processIDs()...)
	h.post(t, func(done func()) { h.threads(done) })
	number := 0
	if !h.post(t, func(done func()) { number = h.emit(reports, flags); done() }) {
		return 0 // number may yet be written
	}
	return number
}

// post has fn called on the tracing thread, and reports whether that has called done in time.
func (h *Lookout) post(t *ptrace.Task, fn func(done func())) bool {
	came := make(chan struct{})
	t.Post(func() {
		if !h.over {
			fn(func() { close(came) })
		}
	})
	select {
	case <-came:
		return true
	case <-h.stop:
	case <-time.After(awaitStops):
	}
	return false
}

// processIDs returns the traced processes.
func (h *Lookout) processIDs() (list []int) {
	h.pidsMu.Lock()
	defer h.pidsMu.Unlock()
	for pid := range h.pids {
		list = append(list, pid)
	}
	slices.Sort(list)
	return list
}

// reports looks at the channels of processes. search is how long names may be searched for; 0: they
// aren't.
func (h *Lookout) reports(search time.Duration, pids ...int) (list []channels.Report) {
	for _, pid := range pids {
		if r := h.o.Look(pid, search); len(r.Channels) > 0 {
			list = append(list, r)
		}
	}
	return list
}

// threads records where threads wait in library calls, and which works GPUs are not known to be done
// with. It runs on the tracing thread. With done, threads are also stopped, so that functions of machine
// code are known, and done is called when all that can be have been.
func (h *Lookout) threads(done func()) {
	r, a := h.recorder, h.recorder.Agent()
	h.stacks.Forget()
	left := 1
	one := func() {
		if left--; left == 0 && done != nil {
			done()
		}
	}
	for _, w := range a.Waiting() {
		list, _ := h.stacks.Frames(w.Process.PID, w.Process, w.ThreadPointer)
		// Nothing that it reads can change if the thread waits for something that does not come.
		h.waiting(&w, list)
		if t := h.tasks[w.TID]; t != nil && done != nil { // and once more, if it can be stopped
			left++
			t.Interrupt(func(t *ptrace.Task) { h.stopped(t, &w); one() })
		}
	}
	now := r.Now()
	for _, u := range a.Unfinished() {
		start := r.Time(u.Start)
		r.Emit(&traces.Event{
			Kind: traces.KindGPU, Flags: traces.FlagUnfinished, PID: int32(u.Process.PID), TID: int32(u.TID), Time: now, FD: -1,
			Name: u.Hook.Name, Path: u.Hook.Library,
			Args: [6]uint64{uint64(r.Time(u.Call)), uint64(start), uint64(max(now-start, 0)), u.Stream, u.Context, u.Subject},
		})
	}
	one()
}

// emit records what channels were at, and returns the look's number. There is an event for each process with
// channels, and one if there is none: it says that the look is whole.
func (h *Lookout) emit(reports []channels.Report, flags traces.Flags) int {
	r := h.recorder
	if h.number++; len(reports) == 0 {
		reports = []channels.Report{{PID: int(r.Header().PID)}}
	}
	for i := range reports {
		busy := h.o.Busy(&reports[i])
		data, err := json.Marshal(busy)
		if err != nil {
			panic("BUG: channels as JSON: " + err.Error())
		}
		r.Emit(&traces.Event{
			Kind: traces.KindChannels, Flags: flags, PID: int32(busy.PID), TID: int32(busy.PID), Time: r.Now(), FD: -1,
			Args: [6]uint64{uint64(h.number), uint64(len(reports) - 1 - i)},
			Text: strings.Join(h.o.Sentences(busy), "\n"), Data: string(data),
		})
	}
	return h.number
}

// watch looks for channels that do not get on.
func (h *Lookout) watch() {
	tick := time.NewTicker(max(h.o.Hang/8, 10*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-h.stop:
			return
		case <-tick.C:
		}
		if h.standStill(time.Now()) {
			h.look(traces.FlagUnfinished)
		}
	}
}

// standStill looks where channels are, and reports whether one has been there for long.
func (h *Lookout) standStill(now time.Time) (found bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := map[channelKey]*standing{}
	for _, r := range h.reports(0, h.processIDs()...) {
		for i := range r.Channels {
			c := &r.Channels[i]
			position, busy := c.Position()
			if !busy {
				continue
			}
			key := channelKey{r.PID, c.Device, c.Address}
			at := h.positions[key]
			if at == nil || at.Position != position {
				at = &standing{Position: position, since: now}
			}
			if seen[key] = at; !at.told && now.Sub(at.since) >= h.o.Hang {
				at.told, found = true, true
			}
		}
	}
	h.positions = seen
	return found
}

// stopped records where a thread that is in a call was called from, functions of machine code too.
func (h *Lookout) stopped(t *ptrace.Task, w *agent.Waiting) {
	regs, err := t.Regs()
	if err != nil || h.over {
		return // it has ended
	}
	list, entries := h.stacks.Frames(t.PID, t, regs.FSBase())
	native := h.stacks.Walk(t, unwind.RegsOf(regs), (*unwind.Process).Walk)
	if i := slices.IndexFunc(native, func(f traces.StackFrame) bool { return f.Func == w.Hook.Name }); i >= 0 {
		native = native[i+1:]
	} else { // the library does not say how it can be followed: from where it will return to on
		known := new(unwind.Regs)
		known.Set(unwind.RSP, w.SP)
		native = h.stacks.Walk(t, known, (*unwind.Process).Callers)
	}
	if list = stacks.Merge(native, list, entries, h.stacks.Interpreter(t.PID)); len(list) > 0 {
		h.waiting(w, list)
	}
}

// waiting records where a thread is that is in a call.
func (h *Lookout) waiting(w *agent.Waiting, list []traces.StackFrame) {
	ev := traces.Event{
		Kind: traces.KindStack, Flags: traces.FlagUnfinished, PID: int32(w.Process.PID), TID: int32(w.TID),
		Time: h.recorder.Now(), FD: -1, Name: w.Hook.Name,
	}
	ev.SetStack(list)
	h.recorder.Emit(&ev)
}

// Finish ends it.
func (h *Lookout) Finish() {
	h.over = true
	close(h.stop)
	if h.listener != nil {
		_ = h.listener.Close()
	}
}
