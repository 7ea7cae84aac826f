package ioctl

import (
	"strconv"

	"nvtrace/rm"
	"nvtrace/traces"
)

// Unknown says what the tables lack of a call. Closed means that NVIDIA
// publishes nothing about it: not a gap in the tables.
type Unknown uint8

// The degrees of ignorance, from none to all.
const (
	Known          Unknown = iota
	UnknownSize            // named, but the parameters' size fits no known layout
	UnknownBytes           // named, but its layout is not public, or its bytes were not recorded
	ClosedControl          // a control command of the closed parts: GSS-legacy or NV2081_BINAPI
	UnknownControl         // a control command without a name
	UnknownClass           // an object class without a name
	UnknownRequest         // a request without a name
)

var unknownNames = [...]string{"known", "unknown size", "unknown layout", "closed control", "unknown control", "unknown class", "unknown request"}

// String says it in words: "unknown control".
func (u Unknown) String() string {
	if int(u) < len(unknownNames) {
		return unknownNames[u]
	}
	return "unknown(" + strconv.Itoa(int(u)) + ")"
}

// Call is what an event says. Its Parts and the slices in them belong to the
// event and to the Decoder: they are good until the next Decode.
type Call struct {
	Kind   traces.Kind
	Device Device

	// Name is the call's name: "NV_ESC_RM_CONTROL", "UVM_INITIALIZE", "mmap",
	// "openat" is not told apart from "open". It is "" for an unknown request;
	// AppendName then makes one up from Nr.
	Name string
	// Sub is the name of what the call is about: control command, class,
	// NVOS32 function; "" if there is none or it has no name.
	Sub string
	Nr  uint32 // what the device tells requests apart by: _IOC_NR, or the whole number
	// SubNr is the control command, class or function; HasSub whether there is one.
	SubNr  uint32
	HasSub bool

	Escape  *rm.Escape
	Control *rm.Control
	Class   *rm.Class
	Request *rm.Request
	// Other is set where the layout is taken from another driver version than
	// the recording's, because only there the parameters' size fits.
	Other rm.Version

	// The objects that an RM call names; 0 none.
	Client, Parent, Object uint32
	// New is the handle of the object that the call made, as the driver returned it.
	New uint32

	Errno     int32 // error of the system call, 0 none
	Status    rm.Status
	HasStatus bool // the argument has a status member, and it was read after the call
	Unknown   Unknown
	Finn      bool // the parameters are FINN-serialised
	Xfer      bool // the escape came inside NV_ESC_IOCTL_XFER_CMD; Parts[0] is the envelope

	Parts []Part // the argument, then what it points to

	Link *Mapping // KindMmap: what is mapped; nil not known

	// Own says that the call is nvtrace's own work, not the program's: the driver made it for a
	// function that nvtrace called (traces.FlagOwn), or gives back what it took for one.
	Own bool

	// Returned is how a library call ended (KindReturn). A Decoder does not know the
	// libraries' functions: who does sets it.
	Returned Returned

	abi *rm.ABI // the tables that named it
}

// StatusName returns the name that the recorded driver has for the call's
// status: numbers have been reused (139, in 595).
func (c *Call) StatusName() string {
	if c.abi == nil {
		return c.Status.String()
	}
	return c.abi.StatusName(c.Status)
}

// Failed reports whether the call failed: the system call or the resource manager
// refused, or the library's function returned an error.
func (c *Call) Failed() bool {
	return c.Errno != 0 || c.HasStatus && c.Status != rm.OK || c.Returned.Failed
}

// Returned is the status that a library's function returned. The zero value is
// that of a function which returns none, or that is not known.
type Returned struct {
	Known  bool
	Failed bool   // answers such as "not ready" are no failures
	Name   string // "CUDA_SUCCESS", "CUDA_ERROR_OUT_OF_MEMORY"; the number where it has no name
	Code   int32
}

// Part is one piece of memory of a call and what lies in it.
type Part struct {
	// Field is the path of the pointer that leads here: "params", "classList",
	// "" for the argument itself. Parent is the index of the part it lies in.
	// Offset is the pointer's place in that part.
	Field  string
	Parent int
	Offset int
	// Struct is the layout of the bytes, or of one element where Array is set;
	// nil for plain bytes, characters (Text) or numbers of Elem bytes.
	Struct *rm.Struct
	Elem   int
	Array  bool
	Text   bool
	// Written says that the call may have changed the bytes: false where the
	// driver does not copy parameters back after an error.
	Written bool

	Addr uint64
	Len  int    // bytes that the call refers to
	In   []byte // as in traces.Seg
	Out  []byte
}

// Argument returns the part that is the argument of the call itself: inside
// NV_ESC_IOCTL_XFER_CMD the enveloped one. Nil if it was not recorded.
func (c *Call) Argument() *Part {
	i := 0
	if c.Xfer {
		i = 1
	}
	if i >= len(c.Parts) {
		return nil
	}
	return &c.Parts[i]
}

// pointed returns the part that the pointer of that name in the argument leads
// to, nil if there is none.
func (c *Call) pointed(field string) *Part {
	for i := range c.Parts {
		if c.Parts[i].Field == field {
			return &c.Parts[i]
		}
	}
	return nil
}

// Latest returns the part's bytes after the call, or before it where they were
// not read again.
func (p *Part) Latest() []byte {
	if p.Out != nil {
		return p.Out
	}
	return p.In
}

// AppendName appends the call's name, for an unknown request one made of the
// device's kind and the number: "nvidiactl:0x3f".
func (c *Call) AppendName(dst []byte) []byte {
	if c.Name != "" {
		return append(dst, c.Name...)
	}
	dst = append(dst, c.Device.String()...)
	dst = append(dst, ":0x"...)
	return strconv.AppendUint(dst, uint64(c.Nr), 16)
}

// AppendSub appends the name of what the call is about, for an unknown one its
// number and, for a control command, its class and category. It appends nothing
// where HasSub is false.
func (c *Call) AppendSub(dst []byte, abi *rm.ABI) []byte {
	if c.Sub != "" || !c.HasSub {
		return append(dst, c.Sub...)
	}
	dst = append(dst, "0x"...)
	dst = strconv.AppendUint(dst, uint64(c.SubNr), 16)
	if c.Unknown == UnknownControl || c.Unknown == ClosedControl {
		if g := abi.ControlGroup(c.SubNr); g != "" {
			dst = append(dst, ' ')
			dst = append(dst, g...)
		}
	}
	return dst
}

// Key identifies what was called: calls of equal Keys have equal names.
type Key struct {
	Kind   traces.Kind
	Device Device
	Nr     uint32
	SubNr  uint32
	HasSub bool
}

// Key returns the call's key. Escapes on nvidiactl and on a GPU's node have the
// same one.
func (c *Call) Key() Key {
	dev := c.Device
	if c.Kind == traces.KindIoctl && dev == DeviceGPU {
		dev = DeviceCtl
	}
	return Key{c.Kind, dev, c.Nr, c.SubNr, c.HasSub}
}
