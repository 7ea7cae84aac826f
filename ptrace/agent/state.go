package agent

import (
	"io"
	"log/slog"
	"os"

	"nvtrace/ptrace"
	"nvtrace/ptrace/jump"
	"nvtrace/ptrace/proc"
)

// What all files share is here: an agent's, a process's, a ring's and a hook's state. What is
// done with it is in files above.

// Agent puts agents into processes and reads what they record. All methods are
// for the tracing thread.
//
// Records go through three stages: a ring's pend has those that were seen, in any state; ready those
// that are complete, by time; and [Agent.Deliver] gives out the first of these, once no earlier one
// can come any more. [Agent.Collect] moves them on.
type Agent struct {
	o       Options
	blob    *program
	plan    []byte          // the rules, as the processes have them
	rules   map[uint32]bool // the requests that they are about
	calls   Calls           // of SetCalls
	paths   []byte          // Calls.Paths, likewise
	vdso    *VDSO           // of SetVDSO
	images  []*Image        // of SetImages
	devices []uint64        // of AddDevice: number and kind of each
	procs   map[int]*Process
	rings   []*ring // that may have records
	stats   Stats
	owner   owner
	counter counter
	told    bool // of a program that wants to change the agent's memory

	programs *Programs    // of SetPrograms
	called   []*CallProbe // of SetCallProbes, by number
	asked    func(nr uint64) (all, code bool)
	code     map[proc.FileKey]*codeFile // of files whose calls were looked at, see fileAt
	files    jump.Files                 // see Files

	ready []ready // in order of time, from next on
	next  int
	limit int64  // up to which records were given out
	crowd uint64 // bytes in the fullest ring at the last Collect
	stall int64  // since when a record in the making has held others back; 0: none does
	rec   Record
	segs  []Seg
}

// Options says how to set up an [Agent]. The zero value is usable.
type Options struct {
	// Bind is told of each record of KindIoctl and KindSyscall when it is first seen, before any later
	// call of Agent.Settle for the process returns: the moment to say what its
	// descriptor means, which is Args[0] then. What it returns becomes Record.Tag.
	Bind func(p *Process, r *Record) (tag any)
	// Record takes the records, in the order of Record.End. It must not keep
	// the record, nor memory that it refers to.
	Record func(p *Process, r *Record)
	// Started, if not nil, is told of each process in which the agent begins to work, whoever asked
	// for it, before anything is recorded there.
	Started func(p *Process)
	// Counted takes what was counted of a process's calls, where Hook.Count asks for it: when
	// the process ends, begins another program, or is left.
	Counted func(p *Process, c *Count)
	// Explain, if not nil, is told why a thread has stopped, in a few words, where it did so for
	// the agent.
	Explain func(why string)
	// Say, if not nil, is told what users are to know of a process, in a line.
	Say    func(text string)
	Logger *slog.Logger // nil discards
}

// Process is a process with the agent in it, or of which is known why there is none.
//
// It has four states, each with what is in the process then: nothing; mapped, with the code and
// the private memory; started, with the shared memory and rings; gone, when it has ended and its rings
// may still have records. It is the tracing thread's, like all of an Agent.
//
// What is in the process's memory is written by /proc/PID/mem while it runs. So every change must leave it
// in a state that a thread may find in between: tables are written entry first, then what makes
// the entry valid, and what is replaced is written beside what is in force (writePlan, insertKey).
type Process struct {
	PID  int
	Data any // the caller's own

	a       *Agent
	mem     memory   // its memory
	err     error    // why there is no agent
	mapped  bool     // its code and private memory are there
	started bool     // it records
	again   bool     // its memory has been another supervisor's
	timed   bool     // its clock is known to be ours
	shares  bool     // it lives in another process's memory
	host    *Process // that one
	planned bool     // the rules are the current ones
	opens   bool     // it may open devices
	runs    bool     // the memory of programs is mapped
	runsErr error    // why it can't be
	onCalls bool     // programs run at its system calls
	gone    bool     // the process has ended
	times   bool     // the memory of struct times is mapped
	inner   bool     // some of its functions have Hook.Inner
	// ownStack is where calls for the supervisor have their stack; 0: not known.
	ownStack uint64
	driver   Driver // of Time
	scaled   bool   // it knows how fast the processor's counter runs

	first  []byte         // mapped at once: shared, and the first of chunks
	shared []byte         // struct shared
	chunks map[int][]byte // the rings, by piece
	rings  []*ring        // by slot; nil: free
	starts []uint64       // by slot: where the records of the thread before ended
	byTID  map[int]*ring
	keys   map[uint64]int // place in the table of a thread pointer's entry
	places []uint64       // the table: thread pointer by place, 0: empty
	freed  map[int]bool   // places that can be used again
	turn   int            // of the two plans, which is in force
	sites  map[uint64]bool
	imaged map[*Image]bool // libraries whose sites are patched
	arenas []*arena
	hooks  []*hookSite
	found  siteIndex                     // what is in hooks
	breaks map[uint64]*ptrace.Breakpoint // of functions hooked by one
	onces  int

	borrowed map[int]*ring // rings that another task's thread pointer names too, by that task
	// inherited are the slots that threads have from the process that this one was forked
	// from, or from another supervisor, by thread pointer: calls of hooked functions may
	// be open in them.
	inherited map[uint64]int
	number    uint64 // of this supervisor, of those that the process has had
	manners   manners
}

// memory is /proc/PID/mem.
type memory interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
}

// ring is what the supervisor knows of a thread's ring. The program can write
// all of it: every number that comes from there is checked, and what is kept of a
// record is as large as the least record at most.
//
// A thread reserves room by moving head (compare-and-exchange, as its own signal handlers may do the
// same in between), writes the record's position into it, and completes it by its state. The position
// tells a record that has a header from what was there before: it counts bytes ever reserved, and
// never comes twice. The supervisor frees room by moving tail.
//
// A thread can leave a record unfinished: it may be stopped in the middle by a debugger, or a signal
// handler that has interrupted it there may end by longjmp. So nothing here waits without end. A reserved record without a header is a hole, which is
// passed over after a while; one that is about to be completed (stateEnding) holds the others back
// for at most patience; and a record whose thread needs the room is given up (relieve).
type ring struct {
	p    *Process
	slot int // whose memory it is
	home int // of its thread: another one, if it was exchanged
	tid  int
	tp   uint64
	data []byte // shared
	head int    // offset in p.shared of struct rhead

	seen  uint64    // up to where records are in pend
	tail  uint64    // up to where they were consumed
	given uint64    // the tail that the thread knows
	pend  []pending // records that were not consumed; a part of store
	store []pending
	base  uint64 // number of pend[0]
	last  int64  // the latest time of those that were
	dead  bool   // the thread has ended: nothing changes any more
	death int64  // when
	over  bool   // it was dropped
	off   bool   // the agent does not use it for now
	// unwritten: the record at seen has been reserved, but has no header yet. Its
	// thread is about to write it; or has left it by longjmp, for good. Nobody waits
	// for the one at hole.
	unwritten bool
	hole      uint64 // ^0: none
	holes     []span // of records like that before seen; they may yet be written
	odd       bool   // pend may not be in the order of pos
	spoil     bool   // the program wrote garbage: it is not read any more
}

// ready is a record that can be given out.
type ready struct {
	end    int64
	at     int64 // orders those that come late
	r      *ring
	number uint64
}

// pending is a record in a ring.
type pending struct {
	pos   uint64
	size  uint32
	kind  uint8
	done  bool  // consumed
	taken bool  // is among Agent.ready
	lost  bool  // given up: its thread went elsewhere
	stuck bool  // about to be completed for too long: nobody waits for it
	end   int64 // its time, if it is taken
	at    int64 // what its time was in the ring
	tag   any
}

// span is a part of a ring, from where to where as records count bytes.
type span struct{ from, to uint64 }

// hookSite is a function that is hooked. Its place in Process.hooks is its
// number in records, so that sites are never taken out of that list, only marked as gone.
//
// There may be several at one function: a detour, a hook for records and one for programs. Only the
// first has replaced code; the others are a chain behind it, each entered from the one before in
// place of the moved beginning (append).
type hookSite struct {
	addr uint64 // of the function
	size uint64 // of what was replaced
	at   uint64 // where the jump is
	orig uint64 // where the moved beginning is
	once uint64 // address of the set of seen arguments, 0: none
	back uint64 // of a detour: code that goes on behind it
	jump []byte // what was written there; nil: the hook is behind that of a detour
	stop bool   // it is a detour's, see Agent.Detour
	free bool   // another supervisor has left it, and nobody has asked for it yet
	hook *Hook
	gone bool // the memory was unmapped
}

// siteIndex has the places of hooks in a process's list by address: a program has thousands, and each
// new one is held against those that are there. Hooks are added to the list, and stay where they are.
type siteIndex struct {
	n        int              // of the list's hooks, the first, are in it
	at, addr map[uint64][]int // by what they have of these names
}

// Hook says what is recorded of a function's calls.
type Hook struct {
	Name    string // of the function
	Library string // path of the file that it is in
	// Data is the caller's own.
	Data any

	StackWords uint8 // words of the stack above the return address to be copied, from argument 6 on
	Derefs     []Deref
	NoReturn   bool // do not watch the return
	// Count has calls counted in the program and not recorded; nothing is copied of them. In a
	// process with so many functions and threads that there is no room to count, they are
	// recorded, without memory.
	Count bool
	// Failed has calls that Count would count recorded at their return, which then comes without its
	// call, if the low 32 bits of their result are not 0.
	Failed bool
	// Inner has calls that are made within those of other hooked functions counted by these, where their return is
	// watched. They are recorded all the same, from their beginning, if something else is recorded within them: an
	// ioctl, a call that is; see Process.Touched, too; and with Failed if the low 32 bits of their result are not
	// 0. With Count, calls that are made within none are counted, too, and none is recorded but as Failed says.
	Inner bool
	// Once records only the first call with each value of the first argument;
	// others cost a few nanoseconds, and are counted. See Process.Forget and
	// Process.Repeated.
	Once bool
	// New, if not nil, is called at returns from a function that gives a handle to the program, where its first
	// argument points to, with a result whose low 32 bits are 0, and as long as Process.Know was not called for the
	// handle. The thread is stopped where the function's caller goes on, as at a breakpoint. r has the first three
	// arguments. Nothing is recorded. Not for processes where ptrace.Task.MovesReturns.
	New func(t *ptrace.Task, p *Process, r *Record)
	// Quiet keeps the records from Options.Record; they only go to OnRecord.
	Quiet bool
	// Stop stops the thread at each recorded call until OnStop, which is called on
	// the tracing thread with t stopped before the function runs, has returned. All
	// records up to and with the call have been given out then, as far as
	// their order is known.
	//
	// The registers that functions preserve are the program's then, but where the record has
	// Unsaved, and its callers can be followed from Record.SP and Record.Caller.
	Stop   bool
	OnStop func(t *ptrace.Task, p *Process, r *Record)
	// Rate says at which of the calls.
	Rate Rate
	// OnFail, if not nil, is called with the thread stopped at each recorded return with a result whose low
	// 32 bits are not 0, before the return is recorded: r is a KindReturn without memory. Of calls that are
	// counted, it is called with those that Failed has recorded. Rate holds for it, but for Every.
	OnFail func(t *ptrace.Task, p *Process, r *Record)
	// Probe, if not 0, is what Programs.Probe has returned: calls run programs, and nothing
	// is recorded. Nothing else but Name, Library and Data counts then.
	Probe uint64
	// Returns: some of the programs run at the return.
	Returns bool
	// Beside: other programs may be at the function, too.
	Beside bool
	// Work has what calls put on a GPU's stream timed, in processes that Process.Time was called
	// for, where the calls are recorded and their return is watched.
	Work *Work
	// Waits: when the function returns, the GPU has done something.
	Waits bool
	// Ends, if not nil: the function ends the context that is argument *Ends - 1, or, with 0, any
	// context. What Work needs in it is given back before.
	Ends *uint8
	// OnRecord, if not nil, takes the records of this hook, in order with all others.
	OnRecord func(p *Process, r *Record)

	// Of calls that stop by breakpoints or have no ring.
	calls uint32
	next  int64
}

// arena is executable memory near code that is patched, within the reach of a
// jump. It begins with addresses in the agent, to which stubs jump by way of memory: the agent itself is too
// far away from libraries. Room in it is never given back, since a thread may still be there.
type arena struct {
	base uint64
	used uint64
}

// Image is what a library file has of system calls that the agent can reroute. It is
// found out beforehand: to do so one by one as the calls stop costs the program two
// stops for each, and all its threads another one.
type Image struct {
	sites []imageSite
}

// imageSite is a system call instruction.
type imageSite struct {
	ip   uint64 // behind it, where the file is mapped as it says
	nr   uint64
	code []byte // in front of ip: as much as Process.patchSite looks at
}

// Programs is memory of code that runs in traced processes, and of the data that it
// shares: all processes have the same. They can execute the code, with what helpers know of
// maps, and nobody but this process can write it; the data is everybody's.
//
// A traced program can write whatever it likes into the data. The helpers (helpers.c) must come
// to an end and stay within it whatever they find; what they take for sure, as where a map lies and
// how large it is, is beside the code.
//
// A program is a function
//
//	struct { uint64_t r0, end; } program(const struct pt_regs *, const uint64_t table[]);
//
// that keeps rbp for a frame pointer, and calls nothing but helpers (see [Helper]) through
// its table. end is 0, or which of its ends has ended it early.
type Programs struct {
	// OnLock is told where a lock is that a thread has waited for in vain.
	OnLock func(addr uint64)

	data     []byte
	dataAddr uint64
	code     []byte
	used     uint64 // of code
	files    []*os.File
}

// Driver has the addresses of functions of the CUDA driver in a process, which the agent calls
// there to time what calls put on the GPU, see Process.Time.
type Driver struct {
	CtxGetCurrent, StreamIsCapturing, ThreadExchangeStreamCaptureMode    uint64
	EventCreate, EventDestroy, EventRecord, EventQuery, EventElapsedTime uint64
	StreamCreate, PrimaryCtxState                                        uint64
}

// A CallProbe is what runs at system calls of a number, in the processes: programs in the
// memory of [Programs], which get struct trace_event_raw_sys_enter or _exit.
type CallProbe struct {
	Nr    uint64
	Probe uint64 // of Programs.Probe: its returns are the exits
}

// codeFile is what is known of a file that is mapped as code. Programs do not run at calls from Go's
// code: they would run on a goroutine's stack, which may have a few hundred bytes left.
type codeFile struct {
	starts []uint64 // where functions begin, in the file; nil: it is not known
	err    error    // why its calls must stay as they are
}

// manners are what the agent does in a process in view of its filters.
type manners struct {
	bell   int64 // number of the call; noBell
	silent bool
}

// rooms answers, while the threads of a process stand still, whether its code may be replaced by a jump.
type rooms struct {
	p    *Process
	maps []proc.Mapping // nil: not read yet
	at   proc.Mapping   // the one that was asked for last
	code *jump.Code
	bias uint64
	err  error
}

// stood is a thread that stands still, and where.
type stood struct {
	task *ptrace.Task
	pc   uint64
}
