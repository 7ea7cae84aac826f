package rm

// Control is a control command, the method call of the resource manager.
type Control struct {
	Name      string // NV2080_CTRL_CMD_GPU_GET_NAME_STRING
	Cmd       uint32
	Params    *Struct    // nil: takes none, or its layout is not public
	Size      int        // bytes of Params
	Interface string     // interface name: NV20_SUBDEVICE_0_GPU
	Exported  bool       // is in the driver's own export tables; the next fields come from there
	Func      string     // the implementing function
	Owner     string     // the implementing class: Subdevice
	Flags     uint32     // RMCTRL_FLAGS_*, whose bits move between versions
	FlagNames []string   // the names of Flags in this version, without RMCTRL_FLAGS_
	Access    uint32     // access rights needed, a bit mask of RS_ACCESS_*
	Embedded  []Embedded // pointers in the parameters that the driver follows
	Other     *Control   // another command that the headers define under the number, told apart by Size; mostly nil
}

// classID returns the class half of the command number.
func (c *Control) classID() uint32 { return c.Cmd >> 16 }

// Embedded is a pointer inside parameters that the driver follows.
type Embedded struct {
	In     *Struct // the struct that Field lies in
	Field  string  // path of the pointer: "transData.edidData.pMessage"
	Offset int     // its place in the struct, 8 bytes
	Of     Target  // what it points to
	Dir    Dir     // who writes the buffer
	Struct *Struct // TargetArray, TargetRecord: layout of an element if it is a record, else nil
	Elem   int     // bytes of an element
	Text   bool    // NUL-terminated characters

	Count     string // path of the member that counts the elements, "" if Const does
	CountOff  int    // its place in the struct
	CountSize int    // its bytes: 1, 2, 4 or 8
	Plus      int    // elements beyond the count: the NUL of a string
	Square    bool   // the buffer has count times count elements
	Const     int    // number of elements where Count is ""

	When    string // path of a member that must hold WhenVal, "" if none
	WhenOff int    // its place in the struct, 4 bytes
	WhenVal uint32 // the value under which the pointer is there
}

// Target says what an [Embedded] pointer points to.
type Target uint8

// The targets.
const (
	TargetArray   Target = iota // Count elements of Elem bytes
	TargetControl               // the parameters of the control command in the member cmd; Count bytes
	TargetAlloc                 // the allocation parameters of the class in the member hClass
	TargetEscape                // the argument of the escape in the member cmd (NV_ESC_IOCTL_XFER_CMD); Count bytes
)

// Resolve reads pointer and length, in bytes, from the bytes of the struct In.
// It reports false for a null pointer, an empty buffer, params that end before
// the members, a condition that does not hold, a length beyond 2 GiB, and for
// TargetAlloc, whose length is that of the class's parameters (the address is
// returned then). The length is what the program claims: limit it before copying.
func (e *Embedded) Resolve(params []byte) (addr, length uint64, ok bool) {
	addr, ok = number(params, e.Offset, 8)
	if !ok || addr == 0 {
		return 0, 0, false
	}
	if e.When != "" {
		if v, ok := number(params, e.WhenOff, 4); !ok || uint32(v) != e.WhenVal {
			return 0, 0, false
		}
	}
	if e.Of == TargetAlloc {
		return addr, 0, false
	}
	n := uint64(e.Const)
	if e.Count != "" {
		if n, ok = number(params, e.CountOff, e.CountSize); !ok || n == 0 || n > maxBuffer {
			return 0, 0, false
		}
		n += uint64(e.Plus)
	}
	if e.Square {
		if n *= n; n > maxBuffer {
			return 0, 0, false
		}
	}
	if length = n * uint64(e.Elem); n == 0 || length > maxBuffer {
		return 0, 0, false
	}
	return addr, length, true
}

// maxBuffer is longer than any buffer the driver follows (it caps copies at
// 1 MiB); it keeps the products of Resolve from overflowing.
const maxBuffer = 1 << 31

// number reads a little-endian number of size bytes, at most 8.
func number(b []byte, off, size int) (uint64, bool) {
	if off < 0 || size < 1 || size > 8 || off > len(b)-size {
		return 0, false
	}
	var v uint64
	for i := size - 1; i >= 0; i-- {
		v = v<<8 | uint64(b[off+i])
	}
	return v, true
}
