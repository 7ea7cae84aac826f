package ptrace

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"nvtrace/ptrace/proc"
)

// What all files share is here: the state of a tracer, its processes and threads, and of memory
// with breakpoints. What is done with it is in files above.

// tracer is the state of one Run or Attach. Everything in it belongs to the
// tracing thread, except for what is marked.
type tracer struct {
	o   *Options
	h   Handler
	log *slog.Logger
	res Result
	why string // of the stop that is dealt with, see Task.Why

	prog  Program  // of the base rules
	base  *matcher // of the same, for tasks without a filter
	users *matcher // of those of them that the handler wants
	extra *ruleSet // of the extra rules; nil: none
	stubs ReturnStubs

	tasks   map[int]*Task
	last    *Task // the one looked up last
	root    int   // pid of the program
	child   *spawned
	refused func() error // whether the context of Run has been cancelled
	held    int          // tasks that the handler has not been told of yet

	cur       *Task // the task that is being dispatched
	born      *Task // a new task that the handler is being told of
	pending   []waited
	kept      int // the task that is being dispatched, if its stop is kept; see keeps
	detaching bool
	killing   bool
	outlived  bool // tasks live on if this process is killed
	noInfo    bool // the kernel lacks PTRACE_GET_SYSCALL_INFO
	crash     *HandlerError
	frozen    []*Task  // frozen by StopWorld
	former    []*space // of processes that have ended
	unstopped bool     // the handler is told of tasks that are not stopped

	info syscallInfo
	ev   TaskEvent

	wake atomic.Bool // set by other threads: cancelled
	seen atomic.Bool // set by this one: it knows
	over atomic.Bool // set by this one: the program has ended
	tid  int

	sigs     *signals  // that are passed on; nil: none
	arrived  []arrival // signals that processes have got lately
	running  int       // threads that Attach has found, and that have not stopped yet
	expected []arrival // signals that they are about to get, and that were dealt with

	seesEnds     bool // tasks stop when they are about to end, see endings
	filters      int  // see countFilters
	filtersKnown bool

	mu       sync.Mutex
	requests []request     // by any goroutine, guarded by mu
	work     atomic.Bool   // there are requests
	served   bool          // one was done: stops come first now
	kick     chan struct{} // tells the watcher to interrupt the wait
}

// waited is a result of wait4.
type waited struct {
	tid    int
	status unix.WaitStatus
	kept   bool // see tracer.keeps
}

// request is work for the tracing thread, from any goroutine.
type request struct {
	t         *Task
	fn        func(*Task)
	interrupt bool
	signal    bool // of Task nil: to be done in any case
}

// spawned is a child that waits for the word to go.
type spawned struct {
	pid  int
	path string
	dir  string

	plan *plan  // the child reads it
	page []byte // the mapping of hs, and of the child's stack
	hs   *handshake
	goW  *os.File // a byte lets it go, closing it makes it end
	done *os.File // reads end of file when it has execed or ended
}

// signals passes this process's signals on to the traced program.
type signals struct {
	ch     chan unix.Signal // that has come
	want   []unix.Signal
	batch  []sent      // what was not looked at yet; guarded by catcher.mu
	stop   func()      // ends that, soon, once
	detach bool        // Attach: the first one ends tracing
	came   atomic.Bool // one has, and what comes with it is still caught after the end
}

// sent is a signal that a process has got.
type sent struct {
	sig  unix.Signal
	code int32 // si_code
	from int32 // si_pid: who has sent it; 0: the kernel
}

// arrival is a signal that a process has got.
type arrival struct {
	sent
	pid  int
	when int64
}

// signalSet reads a set of signals from /proc/PID/status.
func signalSet(tid int, name string) (set uint64, ok bool) {
	v, _ := proc.Status(tid, name)
	set, err := strconv.ParseUint(v, 16, 64)
	return set, err == nil
}

// siKernel is the si_code of the SIGTRAP of a breakpoint instruction
// (asm-generic/siginfo.h: SI_KERNEL).
const siKernel = 0x80

func signalBit(s unix.Signal) uint64 { return 1 << (s - 1) }

// Process is what the threads of a process share.
type Process struct {
	PID  int
	Data any // the handler's own

	nsInit tristate // the first of its pid namespace

	tasks     int        // how many threads are known
	mem       int        // /proc/PID/mem, -1: could not be opened
	all       bool       // stops at every call; rules are applied here
	sets      []*ruleSet // further rules in force
	ours      int        // filters of this package that are in the process
	own       []Program  // filters of the program's own, see confine.go
	noRestart bool       // own forbids restart_syscall
	ownKnown  bool       // own has all of them
	path      []byte     // room for names in /proc
	space     *space
}

// Task is a traced thread. It is made by [Run] and [Attach]; its methods may be
// called only from within a [Handler]'s methods and the functions given to
// Task's, except for Release and Interrupt.
type Task struct {
	TID  int      // in the tracer's pid namespace
	PID  int      // of the process, its thread group
	Proc *Process // shared by the threads of a process
	Data any      // the handler's own

	tr   *tracer
	call Syscall // the current call
	at   place   // where it is stopped, while the handler is called

	wantExit  bool // call was given to Enter, which wants its exit
	inKernel  bool // the entry of a call was seen, and its exit will be
	announced bool // the handler knows the task
	held      bool // stopped since it was born, not adopted yet
	muted     bool // before the first exec: our own code runs in it
	attached  bool // Attach has found it, and it has not stopped yet
	first     stop // held: what it stopped with

	dead      bool // it has died, or lost its id to an execve; that is still to be reported
	queued    bool // its last stop or its end waits in tracer.pending
	noted     bool // the signal of that stop has been noted, see tracer.arrives
	frozen    bool // by StopWorld
	listening bool // in a stop by job control
	execed    bool // at TaskExec it was let run to the exit of execve

	changed     changedFlags // of its call of clone3
	interrupted bool         // the stop that it is in may have interrupted a call
	restarted   restarted    // see spareRestart

	brk     *breakState // at a breakpoint
	brkRoom breakState  // for brk
	skip    uint64      // the next hit here is none
	fault   unix.Signal // passing a breakpoint caused it
	rejoin  bool        // passing it, the task left a stop
	returns []oneShot   // by age

	hold     bool // the handler wants it to stay stopped
	parked   bool // it does
	after    stopKind
	afterSig unix.Signal
	onStop   []func(*Task)
	fcall    *funcCall // it runs a function for Call
	vectors  []byte    // room for its registers meanwhile
}

// Regs are the general registers of a stopped task, as PTRACE_GETREGSET
// (NT_PRSTATUS) gives them: struct user_regs_struct of sys/user.h.
type Regs unix.PtraceRegs

// place says what a stopped task is about to do, for Syscall and InjectFilter.
type place uint8

const (
	placeNone  place = iota
	placeEntry       // execute a call that a filter stopped
	placeCall        // execute a call, where all stop
	placeExit        // return from a call
	placeExec        // return from execve, whose exit comes later
	placeBreak       // execute the instruction at a breakpoint
	placeStop        // anything; it was interrupted
	placeGroup       // stay in a stop of its process by job control
)

// tristate is an answer that may not have been looked for yet.
type tristate uint8

const (
	unknown tristate = iota
	no
	yes
)

// restarted is the call of a task that the kernel goes on with by restart_syscall(2) when a stop has
// interrupted it.
type restarted struct {
	nr uint64
	ip uint64 // behind its instruction; 0: it is not known which call that is
}

// changedFlags are the flags of a call of clone3, in the program's memory, which keepTraced has changed.
type changedFlags struct {
	pending     bool // the call is not over yet
	addr, flags uint64
}

// ruleSet is a list of rules in both its forms.
type ruleSet struct {
	rules []Rule
	prog  Program
	match *matcher
}

// replaced says whether t is gone. A main thread in a stop can be killed by
// another thread's execve, and its id is then that thread's, in a stop of its own
// that must be left alone until it is reported.
func (t *Task) replaced() bool {
	if !t.dead && t.TID == t.PID && t.Proc.tasks > 1 {
		var si siginfo
		t.dead = getSiginfo(t.TID, &si) == 0 && si.signo == int32(unix.SIGTRAP) && si.code>>8 == unix.PTRACE_EVENT_EXEC
	}
	return t.dead
}

// isRestart recognises the results that only a tracer gets to see
// (linux/errno.h): ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND and
// ERESTART_RESTARTBLOCK.
func isRestart(ret int64) bool {
	return ret == -512 || ret == -513 || ret == -514 || ret == -516
}

// space is an address space, with the breakpoints in it. The processes that
// share one are mostly a vfork child and its parent.
type space struct {
	tr    *tracer
	procs []*Process
	sites map[uint64]*site // live ones
	// tombs are sites that were removed. A thread may have run into one without
	// this being known yet.
	tombs map[uint64]*site
	jumps map[uint64]*site  // detours, live ones and others
	stubs map[uint64]uint64 // return stubs in use, and where they return to

	syscall uint64 // a syscall instruction; 0: not looked for yet
	relay   uint64 // this tracer's relay; 0: not looked for yet
	pages   []page // for copies of instructions
	noPages bool   // none can be had
	skips   bool   // some task's skip was set
}

// site is an address with a breakpoint instruction of ours.
type site struct {
	addr  uint64
	code  [maxCode]byte // what the program has there
	n     int           // how much of that could be read
	list  []*Breakpoint // replaced, never changed in place
	waits int           // one-shots of OnReturn

	plan planKind // how the instruction is executed
	how  details
	slot uint64 // its copy; 0: none yet

	jump *Detour // not nil: it is a detour

	told     int // the process that Options.Planted was last told of it
	toldCode [maxCode]byte
}

// maxCode is how long an instruction can be.
const maxCode = 15

func (st *site) live() bool { return len(st.list) > 0 || st.waits > 0 }

// planKind says how the instruction under a breakpoint is executed.
type planKind uint8

const (
	planUnknown planKind = iota
	planInPlace          // where it is, with all other threads stopped
	planSkip             // it does nothing
	planJump             // it jumps to a fixed address
	planCall             // it calls one
	planCopy             // from a copy
	planBranch           // from a copy, a conditional jump
)

// details is what else is known of the instruction.
type details struct {
	n        int    // its length
	target   uint64 // of planJump, planCall, planBranch
	rel      int    // planCopy: where a 4-byte operand lies that counts from the end of the instruction; 0: none
	opposite byte   // planBranch: the short jump's opcode
}

// page holds copies of instructions.
type page struct {
	addr uint64
	used int // copies
}

// copySize is the room of one copy with its jumps.
const copySize = 32

// faults are the signals that an instruction can cause; blocked ones would kill.
const faults = 1<<(unix.SIGSEGV-1) | 1<<(unix.SIGBUS-1) | 1<<(unix.SIGILL-1) | 1<<(unix.SIGFPE-1) | 1<<(unix.SIGTRAP-1)

// Breakpoint calls a function whenever a thread comes to an instruction. It
// belongs to an address space: all threads of a process share it, and so does a
// vfork child until it execs; a forked child gets a copy; execve ends it.
type Breakpoint struct {
	Addr uint64
	Hits uint64 // how often the function was called

	fn    func(*Task, *Breakpoint)
	site  *site // nil: removed
	space *space
}

// breakState is what a task that is stopped at a breakpoint will go on with.
type breakState struct {
	regs  Regs // not the task's yet
	addr  uint64
	entry *Breakpoint // whose function is being called
}

// ErrBreakpoint is wrapped by the errors of Task.SetBreakpoint and Task.OnReturn
// that say that there can't be a breakpoint at the address.
var ErrBreakpoint = errors.New("no breakpoint possible")

func breakError(addr uint64, why any) error {
	if e, ok := why.(error); ok {
		return fmt.Errorf("%w at %#x: %w", ErrBreakpoint, addr, e)
	}
	return fmt.Errorf("%w at %#x: %v", ErrBreakpoint, addr, why)
}

// oneShot waits for the return from a function.
type oneShot struct {
	addr   uint64 // where it returns to
	sp     uint64 // the stack pointer behind the return
	entry  uint64 // the function's breakpoint
	thread uint64 // thread pointer
	fn     func(*Task, uint64)
	stub   uint64 // the return stub in place of addr; 0: there is a breakpoint
	why    string // what Task.Why had said
}

// slot is where the return address lies.
func (e *oneShot) slot() uint64 { return e.sp - retSize }
