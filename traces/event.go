// Package traces holds what nvtrace records: the event types, the file format
// (traces/SCHEMA.md) and the recordings in traces/corpus.
//
// It knows facts and bytes, never names: which bytes a call carried, on which
// open file, how long it took. What the bytes mean is package ioctl's business,
// decided when a recording is read, so that a better table improves old
// recordings. It imports nothing of nvtrace.
//
// # Stability
//
// Programs may import this package. Before version 1.0 names may still change; the changelog says
// which. A recording of any version stays readable.
package traces

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Kind says what an [Event] is a record of.
type Kind uint8

// The kinds. Their numbers are internal; the file format uses the names that
// [Kind.String] gives.
const (
	KindInvalid    Kind = iota
	KindOpen            // open, openat, openat2, creat of a device node
	KindClose           // close or close_range of a device descriptor, also by exec (FlagImplicit)
	KindDup             // dup, dup2, dup3, fcntl(F_DUPFD*); also a descriptor first seen without its open (FlagImplicit)
	KindMmap            // mmap of a device descriptor
	KindMunmap          // munmap of a range that a device mapping lies in
	KindMremap          // mremap of a device mapping
	KindIoctl           // ioctl on a device descriptor
	KindFork            // a new process or thread; Child holds its id
	KindExec            // a program was started; Path and Argv
	KindExit            // a thread ended; Ret holds the wait status
	KindSignal          // a signal that ended or stopped a process; Ret holds its number
	KindNote            // nvtrace has something to say about the recording; Text
	KindLost            // events could not be recorded; Ret holds how many
	KindCall            // a library function was entered: Name, Path (its library), Args (integer registers), Mem
	KindReturn          // it returned: Name, Ret, Dur (since the entry), Mem; calls of a thread nest
	KindImage           // a code image was given to the CUDA driver; Name (the loader called) and Image
	KindKernel          // first launch of a kernel: Name (mangled), Image (where it came from; nil: unknown)
	KindGap             // something escaped the guarantee that all is captured: the recording is incomplete; Text
	KindFault           // a kernel on the simulated GPU failed: Name (mangled), Text (where, and why)
	KindProbe           // what became of a kernel that probes were to run in: Name (mangled), Probe; without Probe, the program was given its handle with probes (Args[0])
	KindMap             // what a map of the probes held at the end: Name, Text (as it is printed), Data (as JSON)
	KindCaptured        // capturing code images came to its end: what it came to; Captured
	KindCount           // calls of a library function that were counted in a thread: Name, Path, Args (calls, returned, ns, non-zero results), Data, Text (the function within whose calls they were)
	KindGPU             // a GPU did what a call had it do, or, with FlagUnfinished, had not done it: Name and Path (of the function), Args, Ret; Time is when that was noticed, see [Event.Work]
	KindStack           // where the call that a thread is in was made, at Time: Name (the function), Data, see [Event.Stack]; with FlagUnfinished it was looked at since nothing went on
	KindChannels        // what the GPU channels of a process were at, at Time: Data, a JSON object as nvtrace ps --json has it; Args has the number of the look, and how many events of it follow. With FlagUnfinished one of them has not got on for long
	KindThread          // a thread is called Text from now on, by prctl(PR_SET_NAME); with FlagAttached it has been since before
	KindSampled         // what looks at a process's channels from outside have come to: Data, see [Event.Sampled]
	KindMissed          // a GPU did something whose times were not seen: see [Event.Miss]
	KindPushbuffer      // what a channel of a process was handed: see [Event.Piece]
	KindEnd             // the last record: nvtrace's own cost; Cost
	KindOther           // a kind that this version does not know; Name holds what the file calls it
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
	FlagKept                         // KindCall, KindReturn: a call from before [Header.CallsFrom] that names a handle, or ends one that was open; it does not count
	FlagOwn                          // open to ioctl: nvtrace's own work, as it was made within a function of the driver that nvtrace called in the thread; the program alone would not have made it
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

	Name  string   // KindCall, KindReturn, KindImage: the function; KindKernel: the kernel; KindOther: the kind's name in the file
	Path  string   // KindOpen: the path as given; KindExec: the executable; KindCall: the library; KindImage: the library that called the loader
	Argv  []string // KindExec
	Text  string   // KindNote, KindGap, KindFault, KindMap, KindThread, KindChannels; KindGPU, KindMissed: the kernel, where no call is known that launched it
	Data  string   // KindMap, KindChannels: a JSON object; KindCount, KindStack: an array; KindGPU, KindMissed: see [WorkDetail]; KindSampled: see [Sampled]
	Mem   []Seg    // copied memory, outermost first
	Image *Image   // KindImage, KindKernel
	Probe *Probe   // KindProbe
	Cost  *Cost    // KindEnd
	// Captured is what capturing code images came to: KindCaptured.
	Captured *Captured

	arena []byte // what Alloc hands out; reused by Reset
}

// Seg is a run of the traced program's memory, copied at the entry and at the
// exit of a call.
type Seg struct {
	Addr uint64
	Len  uint32 // bytes the call refers to; In and Out may be shorter (fault, limit)
	In   []byte // at entry; nil where it was not read
	Out  []byte // at exit; the same slice as In where nothing changed; nil where it was not read
}

// Image is a code image that a program gave to the CUDA driver: a fat binary, a
// cubin, PTX text, an archive. Its bytes are in the module store beside the
// recording, under their hash.
type Image struct {
	SHA256 string `json:"sha256"` // of the bytes as given to the driver, hexadecimal
	Size   int64  `json:"size"`   // bytes
	Format string `json:"format"` // "fatbin", "cubin", "ptx", "archive", "nvvm", "unknown"
	// File and Offset say where the bytes lie, if they are a part of a file that
	// the program had mapped, or a file that it named.
	File   string `json:"file,omitempty"`
	Offset int64  `json:"offset,omitempty"`
	Handle uint64 `json:"handle,omitempty"` // the module, library or link state that came of it; 0 unknown
	// Origin says who saw the load: "breakpoint", "interposer", "simulated GPU".
	Origin string `json:"origin,omitempty"`
	// Replaced is the hash of the image that the driver was given in its place; "" none.
	Replaced string `json:"replaced,omitempty"`
}

// How images were captured: the values of [Captured.Mode].
const (
	CaptureBreakpoints = "breakpoints" // at the entry points of the CUDA driver, in each traced process
	CaptureSimulator   = "simulator"   // by the simulated GPU, which is the driver itself
	CaptureInterposer  = "interposer"  // by a preloaded library alone: what goes past it is not seen
)

// Captured is what capturing code images came to, as [KindCaptured] reports it when
// the program has ended. A recording without it holds no images, or was cut off.
type Captured struct {
	Mode    string `json:"mode"`    // [CaptureBreakpoints], …; other words are of later versions
	Images  uint64 `json:"images"`  // different images
	Loads   uint64 `json:"loads"`   // calls of loaders with them
	Bytes   uint64 `json:"bytes"`   // of the images in these calls
	Drivers uint64 `json:"drivers"` // mappings of CUDA drivers that were watched
	Kernels uint64 `json:"kernels"` // launched
	Gaps    uint64 `json:"gaps"`    // what may have escaped: each is a KindGap before
}

// Complete reports whether nothing can have escaped: in a mode that sees all there is,
// and without a gap.
func (c *Captured) Complete() bool {
	return c != nil && (c.Mode == CaptureBreakpoints || c.Mode == CaptureSimulator) && c.Gaps == 0
}

// String says it in words.
func (c *Captured) String() string {
	s := fmt.Sprintf("images: %d, loads: %d, bytes: %d; ", c.Images, c.Loads, c.Bytes)
	switch c.Mode {
	case CaptureBreakpoints:
		s += fmt.Sprintf("drivers watched: %d, kernels launched: %d", c.Drivers, c.Kernels)
	case CaptureSimulator:
		s += fmt.Sprintf("kernels launched: %d; told by the simulated GPU", c.Kernels)
	case CaptureInterposer:
		s += "seen by the interposer alone, so that what went past it is missing"
	default:
		s += "captured by " + c.Mode
	}
	return s + fmt.Sprintf(", gaps: %d", c.Gaps)
}

// Probe is what became of a kernel that probes were to run in.
type Probe struct {
	Images   int    `json:"images"`             // that were loaded with probes in the kernel
	Sites    int    `json:"sites"`              // places of probes in the last of them
	Launched bool   `json:"launched,omitempty"` // the kernel, with or without probes
	Reason   string `json:"reason,omitempty"`   // why it has no probes in some image; "": it has in all
	// Unprobed are launches that were made without probes although the kernel has
	// them, and UnprobedWhy is why.
	Unprobed    int    `json:"unprobed,omitempty"`
	UnprobedWhy string `json:"unprobed_why,omitempty"`
	// Launches is how many launches were counted, with probes or without; 0: nobody did.
	Launches uint64 `json:"launches,omitempty"`
	Machine  bool   `json:"machine,omitempty"` // the probes are in machine code, not in PTX
}

// Cost is what recording cost, as [KindEnd] reports it.
type Cost struct {
	Stops     uint64 `json:"stops"`      // ptrace stops
	Events    uint64 `json:"events"`     // events recorded
	Bytes     uint64 `json:"bytes"`      // payload bytes copied from the program
	TracerCPU int64  `json:"tracer_cpu"` // CPU time of nvtrace itself, ns
	Wall      int64  `json:"wall"`       // from start to end of the recording, ns
}

// Header is the first record of a recording.
type Header struct {
	Schema   int      // version of the format, [SchemaVersion]
	Tool     string   // nvtrace's version
	Start    int64    // wall clock at time 0, ns since the Unix epoch
	Arch     string   // GOARCH of the recorder
	Kernel   string   // uname -r
	Host     string   // uname -n
	Boot     string   // /proc/sys/kernel/random/boot_id: with it and CLOCK_MONOTONIC, recordings of one machine can be put on one time axis
	Driver   string   // kernel module's version from /proc/driver/nvidia/version, "" unknown
	GPUs     []string // UUIDs of the machine's GPUs, as far as the driver tells them
	Argv     []string // the traced command
	PID      int32    // its first process
	UVMMajor uint32   // major number of nvidia-uvm, from /proc/devices
	// Container is the id of the container that the program runs in, "" for none, or
	// if that can't be seen from inside.
	Container string
	// Rank has the environment variables by which launchers (mpirun, srun, torchrun) tell
	// a process its place among others, by name: RANK, WORLD_SIZE, SLURM_PROCID, …
	Rank map[string]string
	// API has the libraries whose calls were recorded, as --api has them: "driver,runtime"; with
	// "count" among them calls were only counted. "none": none were; "": it is not known.
	API string
	// CallsFrom is since when library calls are here, as [Event.Time]: those that returned before were
	// dropped, but for what later ones refer to (FlagKept). 0: all are.
	CallsFrom int64
}

// OnlyGPU returns the UUID of the machine's GPU if it has one; "" otherwise, since it is not known which of several a
// process has taken.
func (h *Header) OnlyGPU() string {
	if len(h.GPUs) != 1 {
		return ""
	}
	return h.GPUs[0]
}

// Work is what a GPU did for a library call.
type Work struct {
	Call            int64  // when the call began, that is its Time; the thread is the event's
	Start, Dur      int64  // when the GPU began, ns since [Header.Start], and how long it took
	Stream, Context uint64 // handles
	Subject         uint64 // the function or graph that was launched, or bytes that were copied; 0: neither is known
	Margin          int64  // Start may be off by so much either way, as the clocks of the GPU and the host were compared
	// By says how the times are known.
	By Witness
	// Kernel is its name, mangled, where it is not known by which call it was launched: of ByProbe,
	// ByChannel and ByLook. Of the last two it is "" for a copy, and a text in parentheses for a graph.
	Kernel string
	// Launch is the %gridid of ByProbe: all launches of a node of a graph have the same, and no others.
	Launch uint64
	// Device is the number of the GPU's node, EndMargin by how much the end may be off either way: of
	// ByTracker, ByChannel and ByLook. Of the last two Stream is made by [ChannelStream], Subject the address
	// of the kernel's first instruction, or the bytes that were copied.
	Device    int32
	EndMargin int64
}

// A Witness says how it is known when a GPU did something.
type Witness uint8

// How times of GPUs are known.
const (
	ByEvent   Witness = iota // events of the driver around it: the call is known
	ByProbe                  // a probe in the kernel
	ByChannel                // what the GPU has written to the channel's semaphores, seen from outside
	ByLook                   // a look at the channel, for which the time since the look before stands
	ByTracker                // as ByChannel, and it is known which call it was launched by
)

// witnessNames are the names of works that were seen from outside, as their events have them.
var witnessNames = [...]string{ByChannel: "channel", ByLook: "look"}

func (w Witness) String() string {
	return [...]string{"event", "probe", "channel", "look", "tracker"}[w]
}

// Outside reports whether the work was seen from outside, and its device is known.
func (w Witness) Outside() bool { return w == ByChannel || w == ByLook || w == ByTracker }

// Called reports whether it is known by which call the work was launched.
func (w Witness) Called() bool { return w == ByEvent || w == ByTracker }

const (
	channelStream = 1 << 63
	deviceShift   = 32
)

// ChannelStream stands for a channel where streams have handles: none has that.
func ChannelStream(device int32, channel int) uint64 {
	return channelStream | uint64(uint16(device))<<deviceShift | uint64(uint32(channel))
}

// StreamChannel is the reverse of ChannelStream; false: it is a stream's handle.
func StreamChannel(stream uint64) (device int32, channel int, ok bool) {
	if stream>>48 != channelStream>>48 {
		return 0, 0, false
	}
	return int32(uint16(stream >> deviceShift)), int(uint32(stream)), true
}

// WorkDetail is what an event of a work by a tracker, a channel or a look has in Data, as JSON.
type WorkDetail struct {
	Grid  []uint32 `json:"grid,omitempty"`
	Block []uint32 `json:"block,omitempty"`
	// Kernels is how many kernels a graph has, as far as they can be read.
	Kernels int `json:"kernels,omitempty"`
	// Named says whence the kernel's name is: "memory", the driver's own in the process's memory, "sim",
	// the simulated GPU's; "": there is no name, but the address of the kernel's first instruction.
	Named string `json:"named,omitempty"`
	// End says how the end is known: "stamped" by the GPU, "next", the begin of the next work, which waited for
	// it, or "seen" to come between two looks.
	End string `json:"end,omitempty"`
}

// Detail returns what Data says of a work that was seen from outside.
func (e *Event) Detail() (d WorkDetail) {
	if json.Unmarshal([]byte(e.Data), &d) != nil {
		return WorkDetail{}
	}
	return d
}

// deviceNode is what the path of a work that was seen from outside begins with.
const deviceNode = "/dev/" + nodePrefix

// nodePrefix is what the names of GPUs' nodes begin with.
const nodePrefix = "nvidia"

// SetWork makes e an event of KindGPU by a probe, with w's Start, Dur, Context, Margin, Kernel and
// Launch, or by a channel or a look, with all but Call, Context and Launch, or by a tracker, with all but Kernel
// and Launch; the call's function and thread are then for the caller to set.
func (e *Event) SetWork(w *Work) {
	e.Kind, e.Text, e.Ret = KindGPU, w.Kernel, w.Margin
	if w.By == ByTracker {
		e.Text, e.Dev, e.Dur = "", nodePrefix+strconv.Itoa(int(w.Device)), w.EndMargin
		e.Args = [6]uint64{uint64(w.Call), uint64(w.Start), uint64(w.Dur), w.Stream, w.Context, w.Subject}
		return
	}
	e.Args = [6]uint64{0, uint64(w.Start), uint64(w.Dur), 0, w.Context, w.Launch}
	if w.By == ByChannel || w.By == ByLook {
		e.Name, e.Path = witnessNames[w.By], deviceNode+strconv.Itoa(int(w.Device))
		e.Args = [6]uint64{uint64(w.EndMargin), uint64(w.Start), uint64(w.Dur), w.Stream & (1<<deviceShift - 1), 0, w.Subject}
	}
}

// Work returns what an event of KindGPU says.
func (e *Event) Work() Work {
	w := Work{
		Call: int64(e.Args[0]), Start: int64(e.Args[1]), Dur: int64(e.Args[2]),
		Stream: e.Args[3], Context: e.Args[4], Subject: e.Args[5], Margin: e.Ret,
	}
	if number, ok := strings.CutPrefix(e.Path, deviceNode); ok {
		n, _ := strconv.ParseUint(number, 10, 16)
		w.By, w.Kernel, w.Device, w.EndMargin, w.Call = ByChannel, e.Text, int32(n), w.Call, 0
		if e.Name == witnessNames[ByLook] {
			w.By = ByLook
		}
		w.Stream = ChannelStream(w.Device, int(uint32(w.Stream)))
		return w
	}
	if number, ok := strings.CutPrefix(e.Dev, nodePrefix); ok && e.Text == "" {
		n, _ := strconv.ParseUint(number, 10, 16)
		w.By, w.Device, w.EndMargin = ByTracker, int32(n), e.Dur
		return w
	}
	if e.Text != "" {
		w.By, w.Kernel, w.Launch, w.Subject = ByProbe, e.Text, w.Subject, 0
	}
	return w
}

// A Miss is work that a GPU did and that was seen from outside, but not when it began and ended: that was between After and
// Before. It is no [Work], so that no sum of times has it.
type Miss struct {
	Called        bool  // it is known by which call it was launched: then Call, and the stream's handle; else its channel
	Call          int64 // when the call began
	After, Before int64 // ns since [Header.Start]
	Stream        uint64
	Subject       uint64 // as [Work] has it
	Device        int32
	Kernel        string // as [Work] has it, where the call isn't known
}

// SetMiss makes e an event of KindMissed. The call's function and thread, and Data, are for the caller to set.
func (e *Event) SetMiss(m *Miss) {
	e.Kind, e.Text, e.Dev = KindMissed, m.Kernel, nodePrefix+strconv.Itoa(int(m.Device))
	e.Args = [6]uint64{uint64(m.Call), uint64(m.After), uint64(m.Before), m.Stream, 0, m.Subject}
	if !m.Called {
		e.Args[3] = m.Stream & (1<<deviceShift - 1)
	}
}

// Miss returns what an event of KindMissed says.
func (e *Event) Miss() Miss {
	n, _ := strconv.ParseUint(strings.TrimPrefix(e.Dev, nodePrefix), 10, 16)
	m := Miss{
		Called: e.Name != "", Call: int64(e.Args[0]), After: int64(e.Args[1]), Before: int64(e.Args[2]), Stream: e.Args[3],
		Subject: e.Args[5], Device: int32(n), Kernel: e.Text,
	}
	if !m.Called {
		m.Stream = ChannelStream(m.Device, int(uint32(m.Stream)))
	}
	return m
}

// A Piece is a piece of pushbuffer, and what its channel was at.
type Piece struct {
	Channel        int
	Device         int32
	UserData, Ring uint64 // addresses in the process
	Entries        int    // of the ring
	Index          uint32 // of the ring's entry with the piece
	Words          uint32 // of the piece: what was read of them is Mem's first segment

	PieceDetail
}

// A PieceDetail is what an event of KindPushbuffer has in Data, as JSON.
type PieceDetail struct {
	Tracker uint64            `json:"tracker,omitempty"` // by which the channel was found where its ring was not read: of what follows, names alone are known then
	Put     uint64            `json:"put"`               // where the channel's pushbuffer ends, and where the GPU reads it
	Get     uint64            `json:"get"`
	GPPut   uint32            `json:"gp_put"` // the same of the ring
	GPGet   uint32            `json:"gp_get"`
	Names   map[string]string `json:"names,omitempty"` // of kernels that it launches, mangled, by the hexadecimal address of their first instruction
}

// SetPiece makes e an event of KindPushbuffer. Mem is for the caller to set: first the words, then other memory that the piece
// refers to, all by the GPU's addresses.
func (e *Event) SetPiece(p *Piece) {
	b, err := json.Marshal(&p.PieceDetail)
	if err != nil {
		panic("BUG: a piece of pushbuffer as JSON: " + err.Error())
	}
	e.Kind, e.Dev, e.Data = KindPushbuffer, nodePrefix+strconv.Itoa(int(p.Device)), string(b)
	e.Args = [6]uint64{uint64(p.Channel), p.UserData, p.Ring, uint64(p.Entries), uint64(p.Index), uint64(p.Words)}
}

// Piece returns what an event of KindPushbuffer says, false where that makes no sense.
func (e *Event) Piece() (p Piece, ok bool) {
	n, _ := strconv.ParseUint(strings.TrimPrefix(e.Dev, nodePrefix), 10, 16)
	p = Piece{
		Channel: int(uint32(e.Args[0])), Device: int32(n), UserData: e.Args[1], Ring: e.Args[2], Entries: int(uint32(e.Args[3])),
		Index: uint32(e.Args[4]), Words: uint32(e.Args[5]),
	}
	return p, len(e.Mem) > 0 && json.Unmarshal([]byte(e.Data), &p.PieceDetail) == nil
}

// StackFrame is a call in a stack.
type StackFrame struct {
	Language string // "python"; "native": machine code; other words are of later versions
	File     string
	Func     string // native: as the linker has it; "" where there is no symbol
	Line     int    // 0: not known
	Offset   uint64 // native: the address of the instruction that calls, as the file has it
}

// String is the frame in short: "train.py:35 forward", "libtorch_cuda.so c10::Malloc", and where there is no symbol
// "libfoo.so+0x1234".
func (f *StackFrame) String() string {
	file := f.File[strings.LastIndexByte(f.File, '/')+1:]
	switch {
	case f.Language != LanguageNative:
		return file + ":" + strconv.Itoa(f.Line) + " " + f.Func
	case f.Func == "" && file == "":
		return "0x" + strconv.FormatUint(f.Offset, 16)
	case f.Func == "":
		return file + "+0x" + strconv.FormatUint(f.Offset, 16)
	case file == "":
		return f.Func
	}
	return file + " " + f.Func
}

// Text is String with the name of a function of machine code as demangle has it, nil: as it is.
func (f *StackFrame) Text(demangle func(name string) string) string {
	if demangle == nil || f.Language != LanguageNative {
		return f.String()
	}
	named := *f
	named.Func = demangle(f.Func)
	return named.String()
}

// Interpreted returns the calls of a stack that are not machine code.
func Interpreted(stack []StackFrame) []StackFrame {
	return slices.DeleteFunc(slices.Clone(stack), func(f StackFrame) bool { return f.Language == LanguageNative })
}

// LanguageNative is the Language of machine code.
const LanguageNative = "native"

// MaxFrames is how many calls an event of KindStack has at most.
const MaxFrames = 64

// SetStack makes Data of a stack's calls, the innermost first.
func (e *Event) SetStack(frames []StackFrame) {
	list := make([][]any, 0, len(frames))
	for _, f := range frames[:min(len(frames), MaxFrames)] {
		v := []any{f.Language, f.File, f.Func, f.Line}
		if f.Offset != 0 {
			v = append(v, f.Offset)
		}
		list = append(list, v)
	}
	b, err := json.Marshal(list)
	if err != nil {
		panic("BUG: a stack as JSON: " + err.Error())
	}
	e.Data = string(b)
}

// Stack returns what an event of KindStack says, the innermost call first; nil where that makes no sense.
func (e *Event) Stack() []StackFrame {
	var list [][]any
	if json.Unmarshal([]byte(e.Data), &list) != nil {
		return nil
	}
	var frames []StackFrame
	for _, v := range list[:min(len(list), MaxFrames)] {
		if len(v) < 4 { // later versions may say more
			return nil
		}
		var f StackFrame
		f.Language, _ = v[0].(string)
		f.File, _ = v[1].(string)
		f.Func, _ = v[2].(string)
		line, _ := v[3].(float64)
		f.Line = int(min(max(line, 0), 1<<31-1))
		if len(v) > 4 {
			offset, _ := v[4].(float64)
			f.Offset = uint64(min(max(offset, 0), 1<<53))
		}
		frames = append(frames, f)
	}
	return frames
}

// Request returns an ioctl's request number (the kernel looks at 32 bits only).
func (e *Event) Request() uint32 { return uint32(e.Args[1]) }

// Arg returns an ioctl's third argument, as a rule the address of its parameters.
func (e *Event) Arg() uint64 { return e.Args[2] }

// Limits of one event. They keep a reader's memory bounded whatever the file
// says; [AppendEvent] cuts an event that exceeds them and sets FlagTruncated.
const (
	MaxEventBytes = 8 << 20 // bytes of all In and Out together
	MaxSegs       = 1024    // segments of one event
	MaxText       = 1 << 20 // bytes of one string, and of all of Argv together
)

// maxArena is the largest scratch that an idle event keeps.
const maxArena = 256 << 10

// Reset makes e an empty event without a descriptor, keeping its buffers for
// reuse: whatever Alloc returned before is overwritten by later calls of it.
func (e *Event) Reset() {
	arena := e.arena[:0]
	if cap(arena) > maxArena {
		arena = nil
	}
	mem := e.Mem
	clear(mem)
	*e = Event{FD: -1, Mem: mem[:0], Argv: e.Argv[:0], arena: arena}
}

// resetTo is Reset with all of an event that has no memory.
func (e *Event) resetTo(t *Event) {
	arena, mem, argv := e.arena[:0], e.Mem, e.Argv[:0]
	if cap(arena) > maxArena {
		arena = nil
	}
	clear(mem)
	*e = *t
	e.Mem, e.Argv, e.arena = mem[:0], append(argv, t.Argv...), arena
}

// Alloc returns n bytes for a segment's In or Out that live until the next
// Reset. Their content is undefined. Once the event has seen its largest
// payload, Alloc allocates nothing.
func (e *Event) Alloc(n int) []byte {
	used := len(e.arena)
	if cap(e.arena)-used < n {
		// The old backing array stays with the slices made from it.
		e.arena = make([]byte, 0, max(2*cap(e.arena), n, 4<<10))
		used = 0
	}
	e.arena = e.arena[:used+n]
	return e.arena[used : used+n : used+n]
}

// Clone returns a copy of e that shares no memory with it, for keeping an
// event beyond the call that delivered it.
func (e *Event) Clone() *Event {
	c := *e
	c.arena = nil
	c.Argv = append([]string(nil), e.Argv...)
	c.Mem = nil
	for i := range e.Mem {
		s := e.Mem[i]
		same := sameSlice(s.In, s.Out)
		s.In = cloneBytes(s.In)
		if same {
			s.Out = s.In
		} else {
			s.Out = cloneBytes(s.Out)
		}
		c.Mem = append(c.Mem, s)
	}
	if e.Image != nil {
		image := *e.Image
		c.Image = &image
	}
	if e.Probe != nil {
		probe := *e.Probe
		c.Probe = &probe
	}
	if e.Cost != nil {
		cost := *e.Cost
		c.Cost = &cost
	}
	if e.Captured != nil {
		captured := *e.Captured
		c.Captured = &captured
	}
	return &c
}

// Changed reports whether the call changed the segment's bytes. It is false
// where they were not read at exit.
func (s *Seg) Changed() bool {
	return s.Out != nil && !sameSlice(s.In, s.Out) && !bytes.Equal(s.In, s.Out)
}

// sameSlice reports whether a and b are one slice, not merely equal.
func sameSlice(a, b []byte) bool {
	if a == nil || b == nil || len(a) != len(b) {
		return false
	}
	return len(a) == 0 || &a[0] == &b[0]
}

// cloneBytes is bytes.Clone that keeps empty apart from nil.
func cloneBytes(b []byte) []byte {
	if b == nil {
		return nil
	}
	return append(make([]byte, 0, len(b)), b...)
}

// kindNames are the names of the kinds in the file format.
var kindNames = [...]string{
	KindInvalid:    "invalid",
	KindOpen:       "open",
	KindClose:      "close",
	KindDup:        "dup",
	KindMmap:       "mmap",
	KindMunmap:     "munmap",
	KindMremap:     "mremap",
	KindIoctl:      "ioctl",
	KindFork:       "fork",
	KindExec:       "exec",
	KindExit:       "exit",
	KindSignal:     "signal",
	KindNote:       "note",
	KindLost:       "lost",
	KindCall:       "call",
	KindReturn:     "return",
	KindImage:      "image",
	KindKernel:     "kernel",
	KindGap:        "gap",
	KindFault:      "fault",
	KindProbe:      "probe",
	KindMap:        "map",
	KindCount:      "count",
	KindGPU:        "gpu",
	KindStack:      "stack",
	KindChannels:   "channels",
	KindThread:     "thread",
	KindSampled:    "sampled",
	KindMissed:     "missed",
	KindPushbuffer: "pushbuffer",
	KindEnd:        "end",
	KindCaptured:   "captured",
	KindOther:      "other",
}

// String returns the kind's name as the file format spells it.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "kind(" + strconv.Itoa(int(k)) + ")"
}

// flagNames are the flags' names in the file format, by bit.
var flagNames = [...]string{
	"unfinished", "restarted", "noexit", "compat", "implicit", "truncated", "thread", "attached", "kept", "own",
}

// String returns the names of the set flags joined by "|", bits without a name
// in hexadecimal: "restarted|truncated|0x100".
func (f Flags) String() string { return string(f.append(nil)) }

func (f Flags) append(b []byte) []byte {
	sep := false
	for i, name := range flagNames {
		if f&(1<<i) == 0 {
			continue
		}
		if sep {
			b = append(b, '|')
		}
		b, sep = append(b, name...), true
	}
	if rest := f >> len(flagNames) << len(flagNames); rest != 0 {
		if sep {
			b = append(b, '|')
		}
		b = append(b, "0x"...)
		b = strconv.AppendUint(b, uint64(rest), 16)
	}
	return b
}
