package rm

// Escape is a request on nvidiactl or a GPU's node.
type Escape struct {
	Name     string     // NV_ESC_RM_CONTROL
	Nr       uint32     // _IOC_NR of the request
	Params   []*Struct  // accepted parameter structs, in ascending order of size; empty: none known
	Array    bool       // the argument is an array of Params[0], as long as the request's size says
	Scope    Scope      // which node the driver accepts it on
	Source   string     // file of the driver that handles it, "" if the open driver does not
	Embedded []Embedded // pointers in Params[i] are those with Embedded.In == Params[i]
}

// Layout returns the parameter struct for an argument of size bytes: the one of
// that size, or, for an array, its element. Nil if none fits.
func (e *Escape) Layout(size int) *Struct {
	for _, s := range e.Params {
		if s.Size == size || e.Array && s.Size > 0 && size > 0 && size%s.Size == 0 {
			return s
		}
	}
	return nil
}

// Scope says which nodes take an escape.
type Scope uint8

// The scopes.
const (
	ScopeAny Scope = iota
	ScopeCtl       // nvidiactl only
	ScopeGPU       // nvidiaN only
)

// Request is a request of one of the other device nodes.
type Request struct {
	Name   string
	Nr     uint32  // as the lookup that found it takes it
	Params *Struct // nil: none
	Size   int     // bytes of Params
	Live   bool    // the driver dispatches it; false: the number is defined only
	Test   bool    // one of UVM's built-in tests
}

// The numbers of the escapes (_IOC_NR of requests on nvidiactl and nvidiaN),
// the same in all versions that have them (nv_escape.h, nv-ioctl-numbers.h).
const (
	EscRMAllocMemory      = 0x27
	EscRMAllocObject      = 0x28
	EscRMFree             = 0x29
	EscRMControl          = 0x2a
	EscRMAlloc            = 0x2b
	EscRMDupObject        = 0x34
	EscRMShare            = 0x35
	EscRMIdleChannels     = 0x41
	EscRMVidHeapControl   = 0x4a
	EscRMAccessRegistry   = 0x4d
	EscRMMapMemory        = 0x4e
	EscRMUnmapMemory      = 0x4f
	EscRMGetEventData     = 0x52
	EscRMAllocContextDMA2 = 0x54
	EscRMMapMemoryDMA     = 0x57
	EscRMUnmapMemoryDMA   = 0x58
	EscRMBindContextDMA   = 0x59
	EscRMUpdateMapping    = 0x5e
	EscCardInfo           = 0xc8
	EscRegisterFD         = 0xc9
	EscAllocOSEvent       = 0xce
	EscFreeOSEvent        = 0xcf
	EscStatusCode         = 0xd1
	EscCheckVersionStr    = 0xd2
	EscXfer               = 0xd3
	EscAttachGPUs         = 0xd4
	EscSysParams          = 0xd6
	EscExportToDMABuf     = 0xd9
	EscWaitOpen           = 0xda
)
