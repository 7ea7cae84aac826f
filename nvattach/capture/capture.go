package capture

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/ptrace/dso"
	"nvtrace/ptrace/proc"
	"nvtrace/traces"
)

// Options say what to capture and how. The zero value hashes images, keeps none,
// and audits nothing.
type Options struct {
	// Emit takes events, on the tracing thread, in the order of their ends. An
	// event is valid during the call only. Nil drops them.
	Emit func(ev *traces.Event)
	// Now returns the time of events: ns since the recording's start. Nil: 0.
	Now func() int64

	// Store keeps the images; nil keeps none, they are only hashed.
	Store *Store
	// Files keeps images that lie in files of the program in the store, too, so
	// that the recording can do without the files.
	Files bool
	// MaxImage bounds an image in bytes; 0 means 4 GiB. A larger one is a gap.
	MaxImage int64
	// Watch lets the driver read the program's own buffers, and compares them
	// when the loader returns, where otherwise the driver gets a copy. A change
	// is then found, but not prevented.
	Watch bool

	// Audit follows kernels from the module to their first launch.
	Audit Audit
	// Agent hooks the launching functions for [AuditHooks].
	Agent *agent.Agent
	// Flush gives out what Agent has recorded so far. Without it, look-ups of kernels stop the program.
	Flush func()
	// LaunchesShared: the launching functions that the driver exports are hooked by
	// somebody else, who passes their records to [Capture.LaunchRecord].
	LaunchesShared bool
	// LookupsShared: with those, the calls of cuKernelGetFunction.
	LookupsShared bool
	// LaunchesCheap leaves launching functions alone where each of their calls would have
	// to stop the program; Launched is told "" then.
	LaunchesCheap bool
	// Launched, if not nil, is told on the tracing thread of the first launch of a kernel
	// by its mangled name; "" if nobody knows it.
	Launched func(kernel string)
	// Counted, if not nil, is told on the tracing thread of n launches of a kernel by its
	// mangled name, "" if nobody knows it; n 0 says that some were not counted. Launches of
	// graphs are not. Ending must be called.
	Counted func(kernel string, n uint64)
	// Shim is the path of the interposer's library, which is not who called a
	// loader; "" for none.
	Shim string

	// Cache is the file that remembers where the driver's hidden loaders are, by
	// build id; "" for none. See [DefaultCache].
	Cache string
	// Replace may give another image in an image's place. It runs on a goroutine
	// of its own and may take its time: only the thread that loads the image
	// waits. If the driver refuses the replacement, it is given the original.
	Replace func(c *Captured) (image []byte, ok bool)
	// Refused, if not nil, is told on the tracing thread that the driver refused a
	// replacement, by its SHA-256, with a CUresult. The original is loaded then.
	Refused func(pid, tid int, sum string, result int32)
	// Mapped, if not nil, is told on the tracing thread that a process has mapped
	// code of a driver, before any of it was executed: which file, and where from
	// which offset on.
	Mapped func(pid int, path string, addr, size, off uint64)
	// Settle, if not nil, is called before the layers are reconciled, and returns
	// when all that the interposer saw was passed to [Capture.Noted].
	Settle func()

	Logger *slog.Logger // nil discards
}

// Audit says how launches are looked at.
type Audit uint8

// The ways to audit.
const (
	AuditOff         Audit = iota
	AuditHooks             // lookups at breakpoints, launches by code that Options.Agent puts into the program
	AuditBreakpoints       // launches at breakpoints too: right, but slow
)

// Captured is an image that a program is about to give to the driver.
type Captured struct {
	PID, TID int
	Function string // the loader
	Library  string // that called it
	Image    traces.Image
	Data     []byte  // Replace must not change it
	Linked   bool    // it is what the driver's linker has made, not too long ago
	Lookups  Lookups // of kernels of the module that the image becomes; Replace may set it
}

// Lookups is told of what a program looks up in a module.
type Lookups interface {
	// Found may give other handles, as many, in the place of those of kernels that were found; nil
	// leaves them as they are. It runs as [Options].Replace does.
	Found(f *Found) []uint64
	// Unloaded is called on the tracing thread when the module was unloaded. The thread has just
	// returned from the unloading function.
	Unloaded(t *ptrace.Task)
}

// Found are kernels that a program has looked up in a module or library.
type Found struct {
	PID, TID int
	Owner    uint64   // the CUlibrary, or CUmodule
	Library  bool     // it is a library, and they are CUkernels; otherwise CUfunctions
	Name     string   // that was asked for, mangled; "" for a list of the module's kernels
	Handles  []uint64 // that the driver has given; of a list, there may be others behind these
	// Names has room for a name each. Where Name is "", Found may say what they are called.
	Names []string
	// Settled, if Found sets it, says that it would answer the same the next time.
	Settled bool
}

// Capture is the state of capturing a run. It is a [ptrace.Handler] for the
// calls that [Capture.Rules] select; its methods run on the tracing thread,
// except for those that say otherwise.
type Capture struct {
	o      Options
	log    *slog.Logger
	debug  bool // debug messages are wanted
	class  uint16
	code   dso.Watcher
	funcs  map[string]function
	names  []string // of all functions
	tables map[uuid]table
	slots  *slotCache

	objects map[proc.FileKey]*object
	procs   map[*ptrace.Process]*process
	pids    map[int]*process // by process id, for what comes late
	threads map[*ptrace.Task]*thread
	tasks   map[int]*ptrace.Task // all, by thread id

	ev     traces.Event
	gaps   map[string]bool
	notes  map[string]bool
	gpu    map[string]int64       // files with GPU code that were mapped
	pinned map[fileID]*pinnedFile // files that images were left in
	author author

	work sync.WaitGroup // copies under way

	hits    map[Note]int       // loads that were seen
	started map[kernelKey]bool // kernels whose launch was seen

	mu   sync.Mutex
	seen []Note // by the interposer

	made recent // SHA-256 of what the driver's linker has made
}

// New makes a Capture whose system calls have classes from class on.
func New(o *Options, class uint16) *Capture {
	c := &Capture{
		class: class, funcs: make(map[string]function), tables: tables(),
		objects: make(map[proc.FileKey]*object), procs: make(map[*ptrace.Process]*process), pids: make(map[int]*process),
		threads: make(map[*ptrace.Task]*thread), tasks: make(map[int]*ptrace.Task),
		gaps: make(map[string]bool), notes: make(map[string]bool), gpu: make(map[string]int64), pinned: make(map[fileID]*pinnedFile),
		hits: make(map[Note]int), started: make(map[kernelKey]bool),
	}
	if o != nil {
		c.o = *o
	}
	if c.o.MaxImage == 0 {
		c.o.MaxImage = defaultMaxImage
	}
	if c.log = c.o.Logger; c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.code = dso.Watcher{Class: class + classMap, Mapped: c.mapped}
	c.debug = c.log.Enabled(context.Background(), slog.LevelDebug)
	for _, f := range functions() {
		c.funcs[f.name] = f
		c.names = append(c.names, f.name)
	}
	c.slots = newSlotCache(c.o.Cache)
	c.author = author{emit: c.emit, images: make(map[string]bool)}
	return c
}

// Stats returns what was done so far.
func (c *Capture) Stats() Stats {
	return c.author.total(len(c.gaps))
}

// Classes of the calls.
const (
	classMap uint16 = iota // code is mapped
	classEnd
)

// Rules select the calls that can make code executable, and those that end a
// program.
func (c *Capture) Rules() []ptrace.Rule {
	return append(c.code.Rules(), ptrace.Rule{Names: []string{"exit_group", "execve", "execveat"}, Class: c.class + classEnd})
}

// Enter implements [ptrace.Handler].
func (c *Capture) Enter(t *ptrace.Task, s *ptrace.Syscall) ptrace.Verdict {
	if s.Class-c.class == classEnd {
		c.verify(t)
		return ptrace.Skip
	}
	return c.code.Enter(t, s)
}

// Exit implements [ptrace.Handler].
func (c *Capture) Exit(t *ptrace.Task, s *ptrace.Syscall) { c.code.Exit(t, s) }

// Task implements [ptrace.Handler].
func (c *Capture) Task(t *ptrace.Task, e *ptrace.TaskEvent) {
	switch e.Kind {
	case ptrace.TaskNew:
		c.begin(t, e)
	case ptrace.TaskExec:
		c.execed(t)
	case ptrace.TaskExit, ptrace.TaskDetach:
		c.ended(t)
		if t.TID == t.PID && !e.Replaced {
			c.forget(t)
		}
	}
	c.code.Task(t, e)
}

// begin gives a new process the state of what it was forked from.
func (c *Capture) begin(t *ptrace.Task, e *ptrace.TaskEvent) {
	c.tasks[t.TID] = t
	if e.Thread || c.procs[t.Proc] != nil {
		return
	}
	var from *process
	if e.Parent != nil {
		from = c.procs[e.Parent.Proc]
	}
	switch {
	case from == nil:
		c.procs[t.Proc] = newProcess()
	case e.Vfork:
		c.procs[t.Proc] = from // one memory until it executes a program
	default:
		c.procs[t.Proc] = from.fork()
		c.renew(t)
	}
	c.pids[t.PID] = c.procs[t.Proc]
}

// execed drops what was known of the program before.
func (c *Capture) execed(t *ptrace.Task) {
	c.tasks[t.TID] = t
	old := c.procs[t.Proc]
	delete(c.procs, t.Proc)
	c.leave(old)
	c.procs[t.Proc] = newProcess()
	c.pids[t.PID] = c.procs[t.Proc]
	for other := range c.threads {
		if other.Proc == t.Proc {
			delete(c.threads, other)
		}
	}
}

// ended reports the calls that the thread will not return from.
func (c *Capture) ended(t *ptrace.Task) {
	if c.tasks[t.TID] == t {
		delete(c.tasks, t.TID)
	}
	if p := c.procs[t.Proc]; p != nil && p.querier == t {
		c.nextQuerier(p)
	}
	th := c.threads[t]
	if th == nil {
		return
	}
	for _, k := range slices.Backward(th.calls) {
		c.report(t, k, traces.FlagUnfinished, 0, 0)
	}
	delete(c.threads, t)
}

// forget forgets a process, the last of whose threads has ended. One that used a
// driver may have launches that are reported late.
func (c *Capture) forget(t *ptrace.Task) {
	p := c.procs[t.Proc]
	c.uncounted(p)
	if p != nil && len(p.spaces) == 0 && c.pids[t.PID] == p {
		delete(c.pids, t.PID)
	}
	delete(c.procs, t.Proc)
	c.leave(p)
}

// leave ends what is open in a process state that the last process has left; nil
// is none.
func (c *Capture) leave(p *process) {
	if p == nil || len(p.open) == 0 {
		return
	}
	for _, o := range c.procs {
		if o == p {
			return
		}
	}
	c.giveUp(p)
}

func (c *Capture) process(t *ptrace.Task) *process {
	p := c.procs[t.Proc]
	if p == nil {
		p = newProcess()
		c.procs[t.Proc], c.pids[t.PID] = p, p
	}
	return p
}

// thread returns the calls that a thread is in.
func (c *Capture) thread(t *ptrace.Task) *thread {
	th := c.threads[t]
	if th == nil {
		th = new(thread)
		c.threads[t] = th
	}
	return th
}

func (c *Capture) now() int64 {
	if c.o.Now == nil {
		return 0
	}
	return c.o.Now()
}

// event returns an empty event of a task; nil for none.
func (c *Capture) event(t *ptrace.Task, kind traces.Kind) *traces.Event {
	c.ev = traces.Event{Kind: kind, FD: -1, Time: c.now()}
	if t != nil {
		c.ev.PID, c.ev.TID = int32(t.PID), int32(t.TID)
	}
	return &c.ev
}

func (c *Capture) emit(ev *traces.Event) {
	if c.o.Emit != nil {
		c.o.Emit(ev)
	}
}

// maxSaid bounds how many different gaps and notes a hostile program may cause.
const maxSaid = 1 << 12

// gap says what escaped. The same is said once.
func (c *Capture) gap(t *ptrace.Task, format string, args ...any) {
	c.say(c.gaps, t, traces.KindGap, fmt.Sprintf(format, args...))
}

// note says something that is worth knowing and no gap. The same is said once.
func (c *Capture) note(t *ptrace.Task, format string, args ...any) {
	c.say(c.notes, t, traces.KindNote, fmt.Sprintf(format, args...))
}

func (c *Capture) say(said map[string]bool, t *ptrace.Task, kind traces.Kind, text string) {
	if said[text] || len(said) >= maxSaid {
		return
	}
	said[text] = true
	ev := c.event(t, kind)
	ev.Text = text
	c.emit(ev)
}
