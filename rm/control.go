package rm

// Control is a control command, the method call of the resource manager.
type Control struct {
	Name      string // NV2080_CTRL_CMD_GPU_GET_NAME_STRING
	Cmd       uint32
	Params    *Struct    // nil: takes none, or its layout is not public
	Size      int        // bytes of Params
	Interface string     // interface name: NV20_SUBDEVICE_0_GPU
	Category  string     // name of bits 15:8: GPU; "" unknown
	Exported  bool       // is in the driver's own export tables; the next fields come from there
	Func      string     // the implementing function
	Owner     string     // the implementing class: Subdevice
	Flags     uint32     // RMCTRL_FLAGS_*, whose bits move between versions
	FlagNames []string   // the names of Flags in this version, without RMCTRL_FLAGS_
	Access    uint32     // access rights needed, a bit mask of RS_ACCESS_*
	Embedded  []Embedded // pointers in the parameters that the driver follows
}

// ClassID returns the class half of the command number.
func (c *Control) ClassID() uint32 { return c.Cmd >> 16 }

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
	CountOff  int
	CountSize int
	Const     int // number of elements where Count is ""

	When    string // path of a member that must hold WhenVal, "" if none
	WhenOff int
	WhenVal uint32
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

// Resolve reads pointer and length from the bytes of the struct. It reports
// false for a null pointer, an empty buffer, params that end before the
// members, a condition that does not hold, and TargetAlloc, whose length is
// the class's. The length is what the program claims: limit it before copying.
func (e *Embedded) Resolve(params []byte) (addr, length uint64, ok bool) { return 0, 0, false }
