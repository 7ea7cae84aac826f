package gpu

import (
	"crypto/sha256"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"nvtrace/fatbin"
	"nvtrace/nvattach"
	"nvtrace/nvattach/api/cuda"
	"nvtrace/nvattach/jit"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/session"
	"nvtrace/ptrace"
	"nvtrace/ptrace/agent"
	"nvtrace/ptrace/dso"
	"nvtrace/ptrace/proc"
	"nvtrace/ptrace/remote"
)

// What all files share is here: the state of a tracer, a process, a context, a visit and a
// trial. What is done with it is in files above.

// Tracer runs a session's probes in the programs of a run. Its Replace is for
// package capture's Options; it is a [ptrace.Handler] for the calls that [Tracer.Rules]
// select.
//
// Its methods as a handler, Refused and all that breakpoints call run on the tracing thread; Replace
// and Found run on a goroutine, with the loading thread held. Locks are taken in the order later.finding, process.visits,
// context.clocksMu, clockLine.mu, live.mu, process.known, Tracer.mu. The first four are held while
// the tracing thread is asked for something, so that it takes none of these itself.
type Tracer struct {
	o     Options
	class uint16
	code  dso.Watcher // of mapped drivers
	log   *slog.Logger
	quit  chan struct{} // closed by Close
	share func(t *ptrace.Task) error
	clock *clockLine
	own   func(t *ptrace.Task, addr uint64) error
	work  sync.WaitGroup // goroutines: visits, compilations, watches of contexts

	mu        sync.Mutex // guards what follows
	threads   map[int]*thread
	procs     map[*ptrace.Process]*process
	follows   map[*ptrace.Process]*follow
	holdings  map[*ptrace.Process]holding
	compilers map[string]*compiler // by the path of the driver
	files     map[proc.FileKey]*symbolFile
	said      map[string]bool
	stats     Stats
	closed    bool
	attached  *attached // of Live; nil: programs are started
	// How often goroutines had the tracing thread do something, and how long they
	// waited for it to begin, for those who want to know where time goes.
	handovers int
	handing   time.Duration
}

// Options say what to run where.
type Options struct {
	Session *session.Session
	// JIT tunes the compiler of rewritten images.
	JIT *jit.Options
	// MachineCode says whether programs go into machine code, too, where a kernel has no
	// PTX.
	MachineCode MachineCode
	// Running: programs that run already are attached to, and Live is called.
	Running bool
	// Hold bounds how long threads of programs that run already are held for programs to be put in, or taken out: so
	// long of any 200 ms; 0: DefaultHold.
	Hold time.Duration
	// Refuse is told, once, of an image that the session refuses: the program is to
	// be ended before it can go on. It may be called from any goroutine.
	Refuse func(err error)
	// Report is told what keeps probes from running, the same once; nil for nobody.
	// It may be called from any goroutine.
	Report func(text string)
	// Ending, if not nil, is told on the tracing thread of a thread that is about to end its
	// process, or to run another program there.
	Ending func(t *ptrace.Task, last bool)
	// KeepEvery is how often maps are read in a program that runs, for the case that it
	// is killed; 0: every 5 s.
	KeepEvery time.Duration
	Logger    *slog.Logger // nil discards
}

// DefaultHold is a tenth of a program's time.
const DefaultHold = 20 * time.Millisecond

// MachineCode says into which machine code programs are put.
type MachineCode uint8

const (
	// NoMachineCode leaves machine code alone.
	NoMachineCode MachineCode = iota
	// TestedMachineCode is that of architectures on which this was seen to work.
	TestedMachineCode
	// AnyMachineCode is that of all architectures whose instructions are known.
	AnyMachineCode
)

// Stats say what probes cost besides what they cost in kernels.
type Stats struct {
	Images      int           // that were rewritten
	Rewriting   time.Duration // threads that loaded them waited so long
	Compiled    int           // modules
	Cached      int           // of these, that were in the cache
	Visits      int           // of threads that were held to read maps
	Visiting    time.Duration // they waited so long
	Kept        int           // times that all maps of a context were read
	DriverCalls int           // that threads of programs made for us
	Copies      int           // kernels whose launches have gone on with copies, see Live
}

// compiler compiles for one driver.
type compiler struct {
	once sync.Once
	c    *jit.Compiler
	err  error
}

// attached is what Live was given.
type attached struct {
	agent  *agent.Agent
	memory []byte // of which no process uses what is left
	addr   uint64
	all    []*live // guarded by Tracer.mu
}

// process is a process that loads code.
//
// It is made when the process loads its first image, or when nvtrace attaches to it, and ends with
// the process, or its image: an exec makes another one. A child after fork has none of its parent's
// contexts, which CUDA can't use there, and begins with a process of its own.
type process struct {
	tr  *Tracer
	pid int

	visits    sync.Mutex     // one at a time; guards what follows
	live      *live          // of programs that were attached to; of the tracing thread
	scratch   remote.Scratch // for calls of the driver
	driver    *library
	contexts  map[uint64]*context
	order     []*context       // those with maps, in the order in which they came
	comparers map[uint64]tools // kernels of ours, by context; guarded by known
	stuck     bool             // a function of the driver did not return

	late atomic.Uint64 // counts launches, and returns from them, since exit was reached

	known   sync.Mutex
	kernels map[uint64]*kernel  // that were launched, by handle; guarded by known
	asides  map[asideKey]uint64 // modules without programs; guarded by known

	loading    int32                                            // CUmoduleLoadingMode, 0 if it was not asked for, -1 if the driver does not say; guarded by visits
	laters     map[laterKey]func(kernel string) ([]byte, error) // see later.alone; guarded by known
	laterBytes uint64                                           // of their code; guarded by known

	// Of the tracing thread.
	launching bool // launches are looked at
	watched   bool // breakpoints are set
	exits     bool // at libc's exit, too
	exiting   bool // it was reached: the driver must not be called any more when exit_group is
	rereads   int  // how often maps were read since, as something was launched
	reread    time.Time
	armed     []*ptrace.Breakpoint
	active    bool // there are contexts; guarded by Tracer.mu
}

// laterKey names code: an image, by its SHA-256, may have other code for other GPUs.
type laterKey struct {
	image string
	arch  fatbin.Arch
}

// asideKey names an image without programs that was loaded beside, into a context.
type asideKey struct {
	context uint64
	image   [sha256.Size]byte
}

// aside is a variable of a module with programs, and the one that the module without has in
// its place.
type aside struct{ addr, other, size uint64 }

// tools are the kernels of comparePTX in a context: 0 before they are loaded.
type tools struct{ compare, wait, clear uint64 }

// kernel is what the driver says about a kernel that was launched.
type kernel struct {
	name   string // "" if it does not say
	module uint64 // CUmodule
	twin   uint64 // CUfunction without programs; 0: there is none
	aside  uint64 // its CUmodule, if that is another
	// variables: that module has some, which are not the program's.
	variables bool
}

// clockLine is memory through which a kernel is asked what time it is. One context at a time
// uses it.
//
// The kernel waits for a number in word clockAsked to become the next one, writes %globaltimer
// to clockTimer and then the number to clockAnswered. Of a question that took d from asking to
// answer, the timer was read d/2 after it was asked, within d/2. The memory is the host's, shared
// with the GPU, so that neither side makes a call in between.
type clockLine struct {
	*mapmem.ClockLine
	mu   sync.Mutex
	next uint64 // the last number that a kernel has waited for
}

// clocks is what is known of a GPU's clock in a context.
type clocks struct {
	kernel uint64 // nvtrace_clock, 0: not loaded
	failed bool
	known  mapmem.Clock // what was found out; its Margin is 0 before
	past   clockMoment  // that the drift is known from
	tries  int
	due    time.Time
}

// A clockMoment is what both clocks said at a time.
type clockMoment struct {
	timer, host uint64
	margin      uint64 // host may be wrong by so much
}

// holding is what a process has allocated, by address; there is none where that is not known. Guarded
// by Tracer.mu.
type holding map[uint64]*owned

// owned is an allocation.
type owned struct {
	end     uint64
	managed bool   // every context reaches it
	context uint64 // whose it is, as the driver says; 0: it was not asked yet. Of the visits of its process.
}

// follow is what is followed of a process for trials of launches. Of the tracing
// thread, and of a trial while it is under way.
//
// It is also the gate by which a trial has the GPU to itself. Each thread's call of a function that
// changes memory is counted from entry to return (inside). A thread that is to try a launch waits
// until the others are out (begin); meanwhile, and until its trial is over (open), threads that come
// to such a function are held at its entry (gated).
type follow struct {
	tracked uint64            // the driver that was followed from its beginning; 0: none
	device  map[uint64]uint64 // memory of GPUs, and managed: sizes, by address
	pinned  map[uint64]uint64 // page-locked memory of the host's that kernels can write
	// shared is the function by which the program got or gave memory that others have,
	// too; "" for none.
	shared    string
	stale     bool // contexts and modules have ended, and memory with them
	capturing int  // captures of streams that are under way

	trial  *thread
	begin  func()      // the trial waits for others
	gated  []func()    // release the threads that wait for it
	inside map[int]int // calls by which threads change memory, by thread
}

// context is a CUDA context of a program, with its maps.
//
// Memory for maps is of one of three kinds. In a primary context it belongs to the device
// (cuMemCreate, lasting): the runtime's contexts can be reset and come again, and libraries outlive
// them and run on all devices. In other contexts it is allocated as the program's own is
// (cuMemAlloc), and in a process that sees several devices it is managed, so that kernels on all of
// them reach it.
//
// process.visits guards it, except where something else is said. kept, final, late and lost say how
// good the last reading was, for the sentence that is shown with the maps if the context ends
// without another one.
type context struct {
	handle  uint64
	device  uint32 // CUdevice
	arch    fatbin.Arch
	mem     *memory
	session *session.Context
	err     error  // it can't have maps
	ended   bool   // its memory is gone, or about to go
	kept    bool   // its maps were read
	final   bool   // when no kernel ran any more
	late    uint64 // process.late at that time
	lost    error  // why they could not be read, or what was read is not the last
	primary bool   // it is its device's primary context
	// lasting: its memory belongs to the device, and stays when the primary context
	// is reset. So may libraries with code that knows where it is.
	lasting  bool
	retained bool        // for a visit
	attended atomic.Bool // a goroutine sees to it that it is looked at, see attend
	looked   time.Time
	read     time.Time     // when the maps were kept
	took     time.Duration // how long that took
	unread   bool          // they were not, at a release
	free     []step        // gives their memory back
	// sharedAt and shared are address and size of the host's maps that its kernels reach.
	sharedAt, shared uint64

	clocked  bool // clocks were compared before a copy was loaded, see live
	clocksMu sync.Mutex
	clocks   clocks // guarded by clocksMu

	linked names // of kernels with programs that were given to the driver's linker
}

// names is a set of names of kernels and of their copies without programs.
type names struct {
	mu   sync.Mutex
	have map[string]bool
}

// memory is the memory of a context's maps, as nvattach reads it: during a visit
// through the driver, a chunk at a time, which is kept until the visit's end.
//
// Kernels go on meanwhile, so that a visit sees each word as it was at some moment of the visit, and
// no two words at the same one. Readers of rings and tables must cope with that. Writes are put off
// until something is read that was not before, or the visit ends, so that many small ones go together;
// late ones until the visit ends.
type memory struct {
	addr, size uint64
	stream     uint64 // of the visit, which waits for no other

	v      *visit // nil: none
	chunks map[uint64][]byte
	spans  []span // of Prefetch, by address
	writes []write
	late   []write
}

// span is what was read of the GPU's memory.
type span struct {
	addr uint64
	data []byte
}

// write is one that the GPU has not seen yet.
type write struct {
	addr uint64
	data []byte
}

// visit is a thread that is held where it may call the driver. Its methods run
// on a goroutine, never on the tracing thread, and wait; process.visits is locked.
//
// A thread may call the driver where the program itself is about to: at the entry of a function
// of the driver, which holds no lock of it there, as at a return from one to the program, and at libc's exit. Elsewhere it may be anywhere, in
// the middle of the driver, too. When a call does not return within limit, it is cancelled, and
// no other is made in that process (stuck).
type visit struct {
	p     *process
	th    *thread
	limit time.Duration // of a function; 0: none
	stuck bool
	code  int32  // that the last call has returned; of the tracing thread
	mode  uint64 // capture mode that is exchanged for the thread's next: captureRelaxed, or its own between enter and leave
}

// step is a call of a function of the driver, or a decision what to call next.
//
// Several steps are one request to the tracing thread, which makes them one after the other without
// asking the goroutine in between: handing over costs more than most of these calls. What depends on
// results is a step, too (choose), which is given the words that the calls have left.
type step struct {
	fn   string
	args []uint64
	may  bool // it may be missing, or fail
	// choose, if not nil, makes it a decision: it is given the results so far, on the
	// tracing thread, and returns what comes before the other steps.
	choose func(w results) ([]step, error)
}

// results are the words for results.
type results [numWords]uint64

// The words for results.
const (
	wordMode = iota // capture mode of the thread
	wordContext
	wordPrimary
	wordDevice
	wordCount
	wordActive
	wordMajor
	wordMinor
	wordSMs
	wordOut
	wordPopped
	wordHandle
	wordStream
	wordEvent
	wordName
	numWords
	wordRelaxed // outlasts what is between
)

// Other constants of cuda.h.
const (
	captureRelaxed    = cuda.CU_STREAM_CAPTURE_MODE_RELAXED
	streamNonBlocking = cuda.CU_STREAM_NON_BLOCKING
	memAttachGlobal   = cuda.CU_MEM_ATTACH_GLOBAL
	eventNoTiming     = cuda.CU_EVENT_DISABLE_TIMING
	errNotReady       = cuda.CUDA_ERROR_NOT_READY
	errNotInitialized = cuda.CUDA_ERROR_NOT_INITIALIZED
	errDeinitialized  = 4
	errInvalidContext = 201
)

// thread is a traced thread.
type thread struct {
	task *ptrace.Task
	gone chan struct{} // closed when it has ended
	// visiting: it is held for a visit. Of the tracing thread.
	visiting bool
}

// live is a process with such kernels.
type live struct {
	p      *process
	subst  *agent.Substitutes
	images images

	mu      sync.Mutex // guards what follows
	kernels map[uint64]*liveKernel
	ready   []*liveKernel // to be loaded
	loaded  []*liveModule
	off     bool                // nothing is substituted any more
	leaving bool                // copies are to be unloaded
	marks   map[*context]uint64 // events behind the last launch of copies
	left    chan struct{}       // closed when nothing of ours is there any more
	pace    pace
	making  int // copies that are being compiled, which compiling tells of

	compiling *progress
	worked    time.Time // when something was unloaded, or leaving began

	// Of the tracing thread.
	armed    []*ptrace.Breakpoint
	captures int // streams that are captured, as far as that was seen
	hits     int // of armed, since one was of use
}

// liveKernel is a kernel that was launched.
type liveKernel struct {
	handle   uint64
	name     string // "" until the driver was asked, or if it does not say
	library  bool   // the handle is a CUkernel
	owner    uint64 // its module, or library
	function uint64 // the CUfunction in the context
	context  *context
	shape    shape
	copy     *session.Copy
	image    []byte // of the copy; nil: the addresses of its variables are to be asked for
	asked    bool
	copied   bool
	asleep   int  // how often its context was not active
	all      bool // it was launched with all blocks to run at a time
	fits     bool // as many blocks of the copy fit on a GPU
}

// liveModule is a module with programs, in a context.
type liveModule struct {
	context *context
	handle  uint64
	library bool
	addr    uint64 // of its image, in the program
	size    uint64
}

// trial is the work of running a launch both ways.
//
//	save                      all memory of the program's on the GPU is copied (before)
//	without, keep, restore    what the first run without programs changed is copied (once)
//	without, keep, restore    the same again (again): what differs from the first time is not repeatable
//	with, judge, restore      what the run with programs left is compared with the rest
//	with                      the times of both are compared; the memory is restored in any case
//
// Memory of the host that a kernel may write can't be restored, and a kernel that does something besides, as
// printing, would do it several times: such launches are not tried (possible).
type trial struct {
	*visit
	lc     *launchCall
	c      *context
	k      *kernel
	stream uint64 // the program's
	event  uint64
	timers [2]uint64

	tools
	dynamic  uint32 // bytes of shared memory that the launch asks for besides the kernel's own
	clearing grid   // what clears shared memory before each run; no blocks: nothing does

	globals, constants []aside // of a kernel whose copy is in another module

	regions []region
	maps    region   // of the probes: restored, not compared
	scratch []uint64 // what was allocated
	out     uint64   // results of comparisons
	failed  bool     // a run did: the context may be lost
	skip    bool     // a run that can't be ended stands for the program's own
}

// region is memory with what it held at first, and what two runs without programs left
// there, if they changed it.
type region struct {
	what        string
	base, size  uint64
	before      uint64 // addresses of copies
	once, again uint64
	changed     bool
}

// base and its like are places of a region's bytes, for copies and diff.
func base(r *region) uint64 { return r.base }

func before(r *region) uint64 { return r.before }

func once(r *region) uint64 { return r.once }

func again(r *region) uint64 { return r.again }

// grid is how many blocks a kernel is launched in, of how many threads, with how many bytes of shared memory.
type grid struct{ blocks, threads, shared uint64 }

// resultBytes are what a comparison leaves: three words.
const resultBytes = 24

// launchCall is a call of one.
type launchCall struct {
	launcher
	fn   string
	addr uint64
	sp   uint64
	argv []uint64
}

// launcher is a function of the driver that launches a kernel: which arguments are
// what. Its variants with other default streams take the same.
type launcher struct {
	args, kernel, params int
	stream               int  // none: in the configuration
	all                  bool // all blocks are to run at a time
}

// inConfig is launcher.stream of a function whose stream is in its configuration.
const inConfig = -1

// launchers returns them by their names (prototypes of cuda.h).
func launchers() map[string]launcher {
	plain, ex := launcher{args: 11, kernel: 0, params: 9, stream: 8}, launcher{args: 4, kernel: 1, params: 2, stream: inConfig}
	coop := launcher{args: 10, kernel: 0, params: 9, stream: 8, all: true}
	return map[string]launcher{
		"cuLaunchKernel": plain, "cuLaunchKernel_ptsz": plain, "cuLaunchKernelEx": ex, "cuLaunchKernelEx_ptsz": ex,
		"cuLaunchCooperativeKernel": coop, "cuLaunchCooperativeKernel_ptsz": coop,
	}
}

// CUfunction_attribute (cuda.h), and CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN.
const (
	funcMaxThreads = 0
	funcShared     = 1
	funcRegisters  = 4
	funcMaxDynamic = 8
	attrMaxShared  = 97
)

// process returns what is known of a task's process, nil if it has loaded no code.
func (tr *Tracer) process(t *ptrace.Task) *process {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.procs[t.Proc]
}

// isActive reports whether a process has contexts with maps: without any there is nothing to read.
func (tr *Tracer) isActive(p *process) bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return p.active
}

// thread returns a thread that is traced, nil if there is none of that number.
func (tr *Tracer) thread(tid int) *thread {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.threads[tid]
}

// calling says whether a thread runs a function for nvtrace, or is not known.
func (tr *Tracer) calling(t *ptrace.Task) bool {
	th := tr.thread(t.TID)
	return th == nil || t.Calling()
}

// report says something once.
func (tr *Tracer) report(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	tr.mu.Lock()
	known := tr.said[text]
	tr.said[text] = true
	tr.mu.Unlock()
	if !known && tr.o.Report != nil {
		tr.o.Report(text)
	}
}

// count changes the statistics.
func (tr *Tracer) count(f func(s *Stats)) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	f(&tr.stats)
}

// handed notes that the tracing thread has begun what a goroutine wanted.
func (tr *Tracer) handed(after time.Duration) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.handovers++
	tr.handing += after
}

// library is a library that a program has mapped, with the addresses that its functions have there.
type library struct {
	path string
	bias uint64 // address in the program minus that in the file
	syms map[string]uint64
	jit  nvattach.JIT // of a driver: what it takes of images
}
