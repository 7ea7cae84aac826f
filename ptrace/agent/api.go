package agent

import (
	"errors"
	"strings"
	"time"

	"nvtrace/ptrace"
)

// Errors that callers tell apart.
var (
	// ErrUnsupported: the agent can't be put into this process; the reason follows.
	// The supervisor's way serves.
	ErrUnsupported = errors.New("agent not usable")
	// ErrUnpatchable: a function's beginning can't be replaced by a jump. A
	// breakpoint serves.
	ErrUnpatchable = errors.New("function not patchable")
)

// Class is the class of the system calls by which the agent calls for the
// supervisor. A handler gives their entry to [Agent.Trap].
const Class = 0xfff0

// Calls says which system calls other than ioctls the agent records.
type Calls struct {
	// Maps has the agent record mappings of descriptors that were announced by
	// Process.SetHeld, but for mappings of code. Without it they stop.
	Maps bool
	// Files has the agent record calls that open the devices of Agent.AddDevice, where
	// Process.OpenDevices allows it, and that
	// duplicate and close what was opened so. Without it they stop. The path of an
	// open is a segment of its record.
	Files bool
	// Paths are those whose opening the supervisor wants to see, wherever
	// Process.PatchSite lets the agent make such calls; without any, and if there are too
	// many or too long ones, that is all paths.
	Paths []Path
}

// Path selects paths: those that begin with Prefix and have Part in them. Either
// may be empty; MaxPathPart bytes are possible.
type Path struct {
	Prefix, Part string
	Base         bool // Part is where the path's last name begins
}

// Bounds of Options.Paths.
const (
	MaxPaths    = maxPaths
	MaxPathPart = pathBase - pathPart - 1
)

// Match says whether p selects a path.
func (p *Path) Match(path []byte) bool {
	s := string(path)
	if p.Base {
		return strings.HasPrefix(s, p.Prefix) && strings.HasPrefix(s[strings.LastIndexByte(s, '/')+1:], p.Part)
	}
	return strings.HasPrefix(s, p.Prefix) && strings.Contains(s, p.Part)
}

// encodePaths writes paths as the agent reads them.
func encodePaths(list []Path) []byte {
	if len(list) > MaxPaths {
		return nil
	}
	b := make([]byte, pathSize*len(list))
	for i, p := range list {
		if max(len(p.Prefix), len(p.Part)) > MaxPathPart || strings.ContainsRune(p.Prefix+p.Part, 0) {
			return nil
		}
		copy(b[i*pathSize:], p.Prefix)
		copy(b[i*pathSize+pathPart:], p.Part)
		if p.Base {
			b[i*pathSize+pathBase] = 1
		}
	}
	return b
}

// Kind says what a [Record] is about.
type Kind uint8

// The kinds.
const (
	KindIoctl   Kind = iota + 1 // an ioctl was made
	KindCall                    // a hooked function was entered
	KindReturn                  // it returned
	KindSyscall                 // another system call was made: a device was opened, closed, duplicated or mapped
	KindTime                    // what a call of a hooked function had the GPU do is over, see Hook.Work
)

// Record is one thing that a thread did. It is valid during the call that gives
// it out.
type Record struct {
	Kind     Kind
	PID, TID int
	// Begin and End are CLOCK_MONOTONIC in ns. They are the same for KindCall. Begin
	// of KindReturn is that of its call. A KindSyscall that closes a file comes as if
	// it ended at Begin: its number may be another file's at once.
	Begin, End int64
	// Unfinished: the ioctl, or the function, was not seen to return, since
	// the thread ended or left it by longjmp. End is when that was noticed.
	Unfinished bool
	Alone      bool // KindReturn: of a call that was counted, see Hook.Failed
	// NoReturn: KindCall, and no KindReturn will follow: Hook.NoReturn, or the
	// thread has too many hooked calls open, or no ring.
	NoReturn bool
	// Truncated: not all memory that it refers to could be read.
	Truncated bool
	// Own: KindIoctl and KindSyscall that the program would not make by itself, as the driver makes it within a
	// call for the supervisor: see Process.Time and Process.OwnStack.
	Own bool
	// Unsaved: at OnStop the registers that functions preserve are not the program's.
	Unsaved bool

	Args [6]uint64 // KindIoctl, KindSyscall: the system call's; KindCall: the integer registers
	Ret  int64     // KindIoctl, KindSyscall: the result; KindReturn: rax
	Nr   uint64    // KindSyscall: its number
	// KindIoctl, KindSyscall: the number of the open file, among those of the
	// process that were opened by a KindSyscall, whose record is given out before; 0:
	// it was opened elsewhere, see Options.Bind. The program may have made it up.
	File uint32
	Rdev uint64 // KindSyscall that opened a file: the device's number
	Segs []Seg  // memory; for hooks, the stack words come first

	Hook   *Hook  // KindCall, KindReturn
	Caller uint64 // KindCall, KindReturn: the address that the function returns to
	SP     uint64 // KindCall: the address of the return address; the return of the call has the same

	// Work, of KindTime: TID is the thread that made the call, Begin and End are when it was
	// noticed that the work is over.
	Work GPUWork

	Tag any // what Options.Bind returned
}

// GPUWork is what a GPU did for a call. Times are the program's word.
type GPUWork struct {
	Call            int64  // Begin of the call
	Start           int64  // of the work on the GPU, by the host's clock
	Dur             int64  // of it, ns
	Margin          int64  // Start may be off by so much either way, ns
	Stream, Context uint64 // handles
	Subject         uint64 // the argument that Work.Subject names
}

// Seg is a run of memory that a record refers to.
type Seg struct {
	Addr uint64
	Len  uint32 // bytes that it has; In and Out may be shorter
	In   []byte // at entry; nil: not read
	Out  []byte // at return; nil: not read
}

// Deref is memory that an argument of a hooked function points to.
type Deref struct {
	Arg uint8  // 0 to 5: integer register; from 6 on: word of the stack above the return address
	Off uint32 // where it begins, from the argument's value
	Len uint32 // bytes at most; at most MaxDeref
	// LenArg, if above 0, is 1 + the argument (counted as Arg) that holds the
	// length in units of Unit bytes (0: 1); Len is the most that is copied.
	LenArg  uint8
	Unit    uint32
	CString bool // up to and with the first NUL
	In      bool // copy at entry: a segment of the call
	Out     bool // copy at return, from the address that the argument had at entry: a segment of the return
}

// Bounds of a [Hook].
const (
	MaxDerefs     = 8       // in all, and MaxOutDerefs of them with Out
	MaxOutDerefs  = 4       //
	MaxDeref      = 1 << 12 // bytes of one
	MaxStackWords = 32
)

// longAgo is before all times, those less a Rate's burst, too.
const longAgo = -1 << 62

// A Rate bounds how often something is done.
type Rate struct {
	Every uint32        // once in so many times; 0 and 1: each time
	Pause time.Duration // no oftener than that, in the mean of many; 0: as often as it comes
	Burst uint32        // but so many times more at once
}

// due reports whether it is to be done at a time, by CLOCK_MONOTONIC. next is kept for it. The agent's code
// has the same in C.
func (r *Rate) due(next *int64, at int64) bool {
	if r.Pause <= 0 {
		return true
	}
	if *next == 0 {
		*next = longAgo
	}
	*next = max(*next, at-int64(r.Burst)*int64(r.Pause))
	if *next > at {
		return false
	}
	*next += int64(r.Pause)
	return true
}

// Work says of a function of the CUDA driver which stream it has a GPU do something on.
type Work struct {
	Stream    uint8 // 1 + the argument (counted as Deref.Arg) that is the stream; 0: it is the default one
	StreamAt  uint8 // if not 0, that argument points to a structure which has the stream there, a multiple of 8
	Subject   uint8 // 1 + the argument that GPUWork.Subject is; 0: none
	PerThread bool  // the default stream is the thread's own
	Early     bool  // the GPU may begin long before the call returns
	Orders    bool  // it has the stream wait: what comes behind it there begins later, and it is not recorded itself
	Behind    bool  // works that are not timed may be in front of it on its stream
}

// Count is what was counted of a thread's calls of a function.
type Count struct {
	Hook     *Hook
	Within   *Hook // of Hook.Inner: the innermost hooked call that they were made in; nil: they were made in none
	TID      int
	Calls    uint64
	Returned uint64 // of the calls; what follows is of these
	Nonzero  uint64 // those with a result whose low 32 bits are not 0
	// Time in them, ns. Of a function's calls in a thread the first 16 are timed, then one in 16, which stands for
	// these.
	Time int64
	// Buckets has the calls by time: the first those below 32 ns, each other one those
	// below twice the bound of the one before, the last what is left.
	Buckets [numBuckets]uint32
}

// Target is a function to be hooked.
type Target struct {
	Addr uint64 // of its first instruction
	Hook *Hook
	// Err is set by Process.HookAll: why the function is not hooked.
	Err error
}

// Stats counts what an [Agent] did.
type Stats struct {
	Processes   int    // in which it was set up
	Refused     int    // in which it could not be
	Counted     uint64 // calls of hooked functions that were counted, see Hook.Count
	Sites       int    // system call instructions that were rerouted
	Hooks       int    // functions that were hooked by a jump
	Probes      int    // of them, those that run programs
	Breakpoints int    // by breakpoints
	Detours     int    // functions that stop by a jump, see Agent.Detour
	Ioctls      uint64 // ioctl records
	Syscalls    uint64 // records of other system calls
	Calls       uint64 // call records
	Bytes       uint64 // of memory copied
	Full        uint64 // stops because a ring was full
	Traps       uint64 // stops that the agent asked for
	Garbage     uint64 // rings that the program spoiled
	Times       uint64 // records of what a GPU did
	Untimed     Untimed
}

// Untimed counts what was not timed of the calls of functions with Hook.Work, and why.
type Untimed struct {
	Captured uint64 // it was put into a graph, not onto the GPU
	Full     uint64 // too much of the thread's was on its way
	Failed   uint64 // the driver refused
	Pending  uint64 // nobody has asked the GPU for its end before the process's own
}

// stops reports whether OnStop is to be called for a call that the agent's code has not recorded.
func (h *Hook) stops(at int64) bool {
	if !h.Stop || h.OnStop == nil {
		return false
	}
	n := h.calls
	h.calls++
	return (h.Rate.Every <= 1 || n%h.Rate.Every == 0) && h.Rate.due(&h.next, at)
}

// read reads what a pointer argument with that value points to.
func (d *Deref) read(t *ptrace.Task, v uint64, arg func(int) uint64) (s Seg, ok bool) {
	if v == 0 {
		return s, false
	}
	n := d.Len
	if d.LenArg > 0 {
		if have := arg(int(d.LenArg) - 1); have < uint64(n) {
			n = uint32(min(have*uint64(max(d.Unit, 1)), uint64(n)))
		}
	}
	s = Seg{Addr: v + uint64(d.Off), Len: n, In: make([]byte, n)}
	got, _ := t.ReadMem(s.Addr, s.In)
	s.In = s.In[:got]
	if d.CString {
		for i, c := range s.In {
			if c == 0 {
				s.In, s.Len = s.In[:i+1], uint32(i+1)
				break
			}
		}
	}
	return s, true
}
