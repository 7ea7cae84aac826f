package rm

// Class is an object class.
type Class struct {
	Name     string   // HOPPER_CHANNEL_GPFIFO_A
	ID       uint32   // 0xc86f
	Aliases  []string // further names of the number
	Internal string   // the driver's own class that implements it: KernelChannel
	Alloc    *Struct  // allocation parameters, nil if none
	Need     Need     // whether they must be given
	Parents  []string // internal classes, any of which an object may be created under; RS_ROOT_OBJECT: none, RS_ANY_PARENT: any
	Multi    bool     // a parent may have several
	Listed   bool     // in the driver's resource table; false: a number that only headers name

	Kind Kindred // what an object of it is, whatever the class is called
	Nick string  // short name for printing: "chan", "compute", "vas"
	Map  MapKind // what an mmap of such an object shows
}

// Need says whether a class wants allocation parameters.
type Need uint8

// The needs.
const (
	NeedUnknown Need = iota
	NeedNone
	NeedOptional
	NeedRequired
)

// Kindred is what an object is, however its class is called.
type Kindred uint8

// The kindreds.
const (
	Other Kindred = iota
	Client
	Device
	Subdevice
	VASpace
	ChannelGroup
	ContextShare
	Channel
	Compute  // compute engine object of a channel
	Copy     // copy engine object
	Graphics // 2D, 3D, inline-to-memory engine object
	Video    // decoder, encoder, JPEG, optical flow engine object
	Memory   // vidmem, sysmem, virtual and imported memory
	Fabric   // memory on the NVLink fabric, multicast, export and import objects
	ContextDMA
	Event
	Usermode // the doorbell page
	Stats    // RM_USER_SHARED_DATA
	Debugger
	Profiler
	Display
	Semaphore // semaphore surfaces and software semaphores
	VGPU
	MIG // GPU instance and compute instance subscriptions
	FaultBuffer
	Registers // device registers mapped as memory
	P2P       // peer mappings between GPUs
)

// MapKind is what an mmap of an object exposes.
type MapKind uint8

// The kinds of mappings.
const (
	MapNone      MapKind = iota // the class is not mappable, or not known to be
	MapDoorbell                 // 64 KiB page: doorbell at 0x90, time at 0x80
	MapUSERD                    // a channel's put and get pointers
	MapVidmem                   // GPU memory through BAR1
	MapSysmem                   // pinned system memory
	MapStats                    // read-only statistics page, NV00DE_SHARED_DATA
	MapRegisters                // device registers
)
