package interpose

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"

	"nvtrace/fatbin"
)

// Mode says what the shim does in a process.
type Mode uint32

// The modes.
const (
	ModeOff     Mode = iota // nothing: processes that ask are told to be silent
	ModeObserve             // calls are told, images are not: a supervisor captures them
	ModeCapture             // images are sent too
)

// String returns the mode in a word.
func (m Mode) String() string {
	switch m {
	case ModeOff:
		return "off"
	case ModeObserve:
		return "observe"
	case ModeCapture:
		return "capture"
	}
	return fmt.Sprintf("mode(%d)", uint32(m))
}

// Libc is the kind of C library that a program runs on.
type Libc uint32

// The kinds. The shim wraps functions on glibc alone; on musl, for which NVIDIA
// makes no driver, it says so once ([GapLibc]) and stays out of the way.
const (
	LibcOther Libc = iota
	LibcGlibc
	LibcMusl
)

// String returns the library's name.
func (l Libc) String() string {
	switch l {
	case LibcGlibc:
		return "glibc"
	case LibcMusl:
		return "musl"
	case LibcOther:
	}
	return "unknown"
}

// Process is a program that the shim was loaded into and that has used something
// of CUDA's. A fork is a process of its own from its first such use on; an exec
// makes another Process with the same id.
type Process struct {
	PID   int    // in nvtrace's pid namespace, as the kernel says
	UID   int    // as the kernel says
	OwnID int    // what the process takes for its id: another number in another pid namespace
	Exe   string // its executable, as it says
	Libc  Libc
	Major int    // of the C library's version: 2
	Minor int    // 36
	Born  uint64 // when the program was started, CLOCK_MONOTONIC, ns, as it says
}

// CallFlags qualify a [Call].
type CallFlags uint16

// The flags.
const (
	FlagFile       CallFlags = 1 << iota // the image is what the path in Text names
	FlagSent                             // a note: an [Image] of the same Seq went before
	FlagKnown                            // a note: the process, or one that it was forked from, sent these bytes earlier
	FlagReplaced                         // the driver was given the replacement
	FlagUnreadable                       // the image could not be read, or does not say its size
	FlagCut                              // Text or Handles are not complete
	FlagHandles                          // the call has Handles
	FlagUUID                             // the call has a UUID
)

// Call is one call of a function of the driver. PID comes from the kernel,
// SHA256 was computed here; everything else is what the program says, with its
// lengths checked.
type Call struct {
	PID      int
	TID      int       // in the program's pid namespace
	Seq      uint32    // of the call, in its process
	Time     int64     // entry, CLOCK_MONOTONIC, ns
	Dur      int64     // until it returned, ns; 0 in an Image
	Function Function  // what was called
	Flags    CallFlags // see there
	Caller   uint64    // return address
	Library  string    // the file that the caller lies in, "" unknown
	Target   uint64    // the driver's function: tells its instances apart
	Args     [6]uint64 // integer arguments
	Addr     uint64    // where the image lies, 0 none or a file
	Size     int64     // of the image
	Hash     [2]uint64 // hash of its first Hashed bytes
	Hashed   int64     // all of Size in ModeCapture, at most [HashPrefix] in ModeObserve
	Handle   uint64    // module, library, function, context, table; launches and nodes: the function
	Ret      int64     // the driver's result, a CUresult; in an Image 0
	Part     int       // which of a wrapper's containers: 0 the linked one, then those of before the link
	Parts    int       // how many
	Text     string    // path, name of kernel or variable, or requested symbol
	Handles  []uint64  // what an enumeration gave
	UUID     [16]byte  // of an export table
	SHA256   string    // of the image, hexadecimal; "" if this server has not had it
	Process  *Process  // who called; never nil
}

// uuidString returns the id of an export table the way cuda.h's tools print it.
func (c *Call) uuidString() string {
	u := c.UUID
	return strings.ToUpper(fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:]))
}

// Note is a call that has returned.
type Note struct{ Call }

// Image is an image that the driver is about to read; for cuLinkComplete it is
// what the driver made. It is valid during [Options.OnImage] only.
type Image struct {
	Call
	Format fatbin.Format // what its bytes look like
	file   *os.File      // a sealed memfd: no one can change it
}

// ReadAt implements [io.ReaderAt] on the image's bytes.
func (im *Image) ReadAt(b []byte, off int64) (int, error) { return im.file.ReadAt(b, off) }

// GapCode is a reason for which the shim's view is incomplete.
type GapCode uint32

// The codes.
const (
	GapLost      GapCode = 1 + iota // Count notes were dropped: the server did not read in time
	GapThunks                       // no wrapper was left for Function
	GapLaunches                     // too many functions were launched to tell all first launches
	GapMemory                       // an image could not be sent: -Detail is an errno
	GapTimeout                      // a verdict came too late: the driver was given the original
	GapLibc                         // not glibc: nothing is wrapped here
	GapUnwrapped                    // Function was handed out unwrapped

	// What the server itself noticed; Text says it.
	GapProtocol GapCode = 1 << 16   // a connection was ended for what came through it, or an image was above the limits
	GapRefused  GapCode = 1<<16 + 1 // a connection was refused: by a limit, or for its user
)

// Gap is something that the shim's view lacks, in one process.
type Gap struct {
	PID      int
	Code     GapCode
	Count    int
	Detail   int64
	Function string // of GapThunks and GapUnwrapped
	Text     string // of what the server itself noticed
}

// String returns the gap as a sentence without a full stop.
func (g *Gap) String() string {
	switch g.Code {
	case GapLost:
		return fmt.Sprintf("process %d: %d calls were not told: nvtrace did not read in time", g.PID, g.Count)
	case GapThunks:
		return fmt.Sprintf("process %d: no wrapper was left for %s", g.PID, g.Function)
	case GapLaunches:
		return fmt.Sprintf("process %d: too many kernels to tell the first launch of each", g.PID)
	case GapMemory:
		return fmt.Sprintf("process %d: an image could not be sent (errno %d)", g.PID, -g.Detail)
	case GapTimeout:
		return fmt.Sprintf("process %d: an image was not replaced, the answer took too long", g.PID)
	case GapLibc:
		return fmt.Sprintf("process %d: not a glibc program, the interposer does nothing in it (ptrace only)", g.PID)
	case GapUnwrapped:
		return fmt.Sprintf("process %d: %s was looked up in a way that the interposer can't wrap", g.PID, g.Function)
	case GapProtocol, GapRefused:
		return fmt.Sprintf("process %d: %s", g.PID, g.Text)
	}
	return fmt.Sprintf("process %d: gap %d, detail %d", g.PID, g.Code, g.Detail)
}

// call makes a Call of what came through the socket.
func (m *wireCall) call(p *Process, functions []Function, caller, data []byte) Call {
	c := Call{
		PID: p.PID, TID: int(m.TID), Seq: m.H.Seq, Time: int64(m.Time), Dur: int64(m.Dur),
		Function: functions[m.Fn], Flags: CallFlags(m.Flags), Caller: m.Caller, Library: string(caller),
		Target: m.Target, Args: m.Args, Addr: m.Image, Size: int64(m.Size), Hash: m.Hash, Hashed: int64(m.Hashed),
		Handle: m.Handle, Ret: m.Ret, Part: int(m.Part), Parts: int(m.Parts), Process: p,
	}
	switch {
	case c.Flags&FlagUUID != 0:
		copy(c.UUID[:], data)
	case c.Flags&FlagHandles != 0:
		for ; len(data) >= 8; data = data[8:] {
			c.Handles = append(c.Handles, binary.LittleEndian.Uint64(data))
		}
	default:
		c.Text = string(data)
	}
	return c
}
