// Package traces holds what nvtrace records: the event types, the file format
// (traces/SCHEMA.md) and the recordings in traces/corpus.
//
// It knows facts and bytes, never names: which bytes a call carried, on which
// open file, how long it took. What the bytes mean is package ioctl's business,
// decided when a recording is read, so that a better table improves old
// recordings. It imports nothing of nvtrace.
package traces

// Kind says what an [Event] is a record of.
type Kind uint8

// The kinds. Their numbers are internal; the file format uses the names that
// [Kind.String] gives.
const (
	KindInvalid Kind = iota
	KindOpen         // open, openat, openat2, creat of a device node
	KindClose        // close or close_range of a device descriptor, also by exec (FlagImplicit)
	KindDup          // dup, dup2, dup3, fcntl(F_DUPFD*); also a descriptor first seen without its open (FlagImplicit)
	KindMmap         // mmap of a device descriptor
	KindMunmap       // munmap of a range that a device mapping lies in
	KindMremap       // mremap of a device mapping
	KindIoctl        // ioctl on a device descriptor
	KindFork         // a new process or thread; Child holds its id
	KindExec         // a program was started; Path and Argv
	KindExit         // a thread ended; Ret holds the wait status
	KindSignal       // a signal that ended or stopped a process; Ret holds its number
	KindNote         // nvtrace has something to say about the recording; Text
	KindLost         // events could not be recorded; Ret holds how many
	KindEnd          // the last record: nvtrace's own cost; Cost
)

// Flags qualify an [Event].
type Flags uint16

// The flags.
const (
	FlagUnfinished Flags = 1 << iota // the call had not returned when the thread ended or the recording stopped
	FlagRestarted                    // the kernel restarts the call (ERESTART*); the repetition is an event of its own
	FlagNoExit                       // the exit was not observed on purpose (summary mode): Ret, Dur and Out bytes are missing
	FlagCompat                       // a call of another ABI than the machine's own (i386, x32)
	FlagImplicit                     // not seen as a call of its own, but inferred (from /proc, exec, fork)
	FlagTruncated                    // not all bytes that the call refers to were copied
	FlagThread                       // KindFork: the child is a thread of the same process
	FlagAttached                     // the task was already running when nvtrace attached
)

// Event is one recorded fact. Calls (open to ioctl) carry the raw system call;
// the bytes in Mem are what the call's pointers referred to.
type Event struct {
	Kind  Kind
	Flags Flags

	PID  int32 // thread group id, in the recorder's pid namespace
	TID  int32 // thread id
	Time int64 // entry, in ns since [Header.Start], CLOCK_MONOTONIC
	Dur  int64 // exit minus entry, in ns

	Args [6]uint64 // raw system call arguments (ioctl: fd, request, argument; mmap: addr, len, prot, flags, fd, offset)
	Ret  int64     // result, negative errno on failure

	FD    int32  // the device descriptor that the call concerns, -1 if none
	File  uint32 // the open file behind FD: equal in every descriptor that dup, fork or SCM_RIGHTS made of it; 0 unknown
	Dev   string // node name of that file below /dev: "nvidiactl", "nvidia0", "nvidia-uvm", "nvidia-caps/nvidia-cap1"
	Rdev  uint64 // its device number as stat(2) gives it
	Child int32  // KindFork: id of the new process or thread

	Path string   // KindOpen: the path as given; KindExec: the executable
	Argv []string // KindExec
	Text string   // KindNote
	Mem  []Seg    // copied memory, outermost first
	Cost *Cost    // KindEnd
}

// Seg is a run of the traced program's memory, copied at the entry and at the
// exit of a call.
type Seg struct {
	Addr uint64
	Len  uint32 // bytes the call refers to; In and Out may be shorter (fault, limit)
	In   []byte // at entry
	Out  []byte // at exit; the same slice as In where nothing changed; nil where it was not read
}

// Cost is what recording cost, as [KindEnd] reports it.
type Cost struct {
	Stops     uint64 // ptrace stops
	Events    uint64 // events recorded
	Bytes     uint64 // payload bytes copied from the program
	TracerCPU int64  // CPU time of nvtrace itself, ns
	Wall      int64  // from start to end of the recording, ns
}

// Header is the first record of a recording.
type Header struct {
	Schema   int      // version of the format, [SchemaVersion]
	Tool     string   // nvtrace's version
	Start    int64    // wall clock at time 0, ns since the Unix epoch
	Arch     string   // GOARCH of the recorder
	Kernel   string   // uname -r
	Driver   string   // kernel module's version from /proc/driver/nvidia/version, "" unknown
	Argv     []string // the traced command
	PID      int32    // its first process
	UVMMajor uint32   // major number of nvidia-uvm, from /proc/devices
}

// FDOf returns the descriptor argument of an ioctl, close or dup event.
func (e *Event) FDOf() int32 { return int32(uint32(e.Args[0])) }

// Request returns an ioctl's request number (the kernel looks at 32 bits only).
func (e *Event) Request() uint32 { return uint32(e.Args[1]) }

// Arg returns an ioctl's third argument, as a rule the address of its parameters.
func (e *Event) Arg() uint64 { return e.Args[2] }
