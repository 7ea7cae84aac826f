package rm

// This file holds the inputs of a Tree: what a decoder of the traffic extracts
// from calls that the driver confirmed (status 0).

// At says when, by whom and on which open file an operation was made. Every
// input of a [Tree] holds one.
type At struct {
	Time int64  // ns, any origin, not decreasing
	PID  int32  // calling process
	File uint32 // open file (not descriptor) that the call was made on, 0 unknown
}

// Ref names an object: handles are unique in a client, clients in the driver.
// A client is named by itself: Client equals Handle.
type Ref struct {
	Client, Handle uint32
}

// Attr is what a [Tree] wants to know of an object beyond its class.
// [Class.Attr] reads it from allocation parameters.
type Attr struct {
	Size     uint64   // bytes of a memory object, entries of a channel's GPFIFO
	Aperture Aperture // where the memory is
	Deps     []uint32 // handles, in the same client, whose end ends the object: hVASpace, hContextShare, hMemory, ...
	FD       int32    // a descriptor that the parameters name, -1 none
	Engine   uint32   // engine type of a channel or channel group (NV2080_ENGINE_TYPE_*)
}

// Aperture is where memory lies.
type Aperture uint8

// The apertures.
const (
	ApertureUnknown Aperture = iota
	ApertureVidmem           // on the GPU
	ApertureSysmem           // in the host's memory
	ApertureVirtual          // a range of GPU addresses without memory
	ApertureFabric           // on another GPU, through the NVLink fabric
)

// AllocOp creates an object: RM_ALLOC, ALLOC_MEMORY, ALLOC_OBJECT,
// ALLOC_CONTEXT_DMA2, and VID_HEAP_CONTROL's ALLOC_SIZE. Give only successful
// ones, with the handle that the driver answered.
type AllocOp struct {
	At
	Ref            // the new object
	Parent  uint32 // its parent's handle, in the same client; 0 for a client
	ClassID uint32
	Class   *Class // nil: unknown
	Attr    Attr
}

// DupOp makes an object of another client (or the same) known under a new handle.
type DupOp struct {
	At
	Ref           // the new object
	Parent uint32 // its parent
	Src    Ref    // what was duplicated
}

// MapOp maps an object's memory into the program: NV_ESC_RM_MAP_MEMORY.
type MapOp struct {
	At
	Ref                   // the memory object
	Device         uint32 // device or subdevice through which it is mapped
	Offset, Length uint64
	Cookie         uint64 // pLinearAddress as the driver answered it, no user address
	Through        uint32 // open file that the mapping was attached to (its descriptor is in the call), 0 none
	Flags          uint32
}

// DMAOp maps memory into a GPU address space: NV_ESC_RM_MAP_MEMORY_DMA.
type DMAOp struct {
	At
	Ref                   // the memory object
	Space          uint32 // hDma: the address space or virtual memory object
	Offset, Length uint64
	Addr           uint64 // GPU address (dmaOffset) as the driver answered it
}

// DMABufOp puts memory objects into a dma-buf: EXPORT_TO_DMABUF_FD.
type DMABufOp struct {
	At
	Client  uint32
	Handles []uint32
	FD      int32 // descriptor of the dma-buf in the process
}

// ExportOp puts objects into an open file: EXPORT_OBJECT(S)_TO_FD.
type ExportOp struct {
	At
	Client  uint32
	Handles []uint32
	Into    uint32 // open file that holds them then, 0 unknown
}

// ImportOp takes an object out of an open file.
type ImportOp struct {
	At
	Ref            // the new object
	Parent  uint32 // its parent
	From    uint32 // open file that holds it
	Index   int    // which of the objects in it, in the order of their export
	ClassID uint32 // class if the call tells it, else 0
	Class   *Class
}

// Span is a range of addresses.
type Span struct {
	Base, Length uint64
}

// UUID identifies a GPU.
type UUID [16]byte
