package ioctl

import (
	"nvtrace/rm"
)

// Plan says which requests are so plain that a few numbers tell which memory
// they refer to: exactly the segments that a [Watcher] copies. It is for copying
// where there is no room for tables. Requests that are not in it need a Watcher.
type Plan struct {
	Requests []PlainRequest
	Tables   [][]PlainLength
	// Nested says what pointers lead to that lie in the second segment: a segment
	// each, in their order.
	Nested []PlainNested
}

// PlainNested is for second segments of Size bytes; others need a Watcher.
type PlainNested struct {
	Size     uint32
	Pointers []PlainPointer // four at most
}

// PlainPointer is a pointer at offset Ptr to as many elements of Elem bytes as the
// 4 bytes at offset Count say; none if that is 0, or the pointer null.
type PlainPointer struct{ Ptr, Count, Elem uint32 }

// PlainRequest is one request. Its argument is a segment, if it is not null.
type PlainRequest struct {
	UVM     bool   // on nvidia-uvm; otherwise on nvidiactl or a GPU
	Request uint32 // as in the ioctl
	Size    uint32 // bytes of the argument; 0: it is not copied
	// Follow: the argument has a pointer to a second segment at offset Ptr, unless
	// that is null or of length 0. Its length is in Tables[Table] under the number
	// at offset Select, or, if it is not there, at offset Len (4 bytes). If any bit of
	// Mask is set in the 4 bytes at offset Flags, or the 8 bytes at offset Null are
	// not 0, a Watcher is needed. An offset of 255 means that there is no such field.
	Follow           bool
	Ptr, Len, Select uint8
	Flags, Null      uint8
	Mask             uint32
	Table            uint8
}

// PlainLength is the length of the memory that goes with a number.
type PlainLength struct {
	Value  uint32
	Length uint32 // bytes, or one of the following
}

// What is no number of bytes.
const (
	LengthNested  = 1<<32 - 1<<16 // + n: what the argument says, with pointers as in Nested[n]
	LengthClaimed = 1<<32 - 2     // what the argument says
	LengthUnknown = 1<<32 - 1     // a Watcher is needed
)

// maxPlain is the longest argument that a plan has.
const maxPlain = 16 << 10

// NewPlan makes the plan for a driver's tables. brief is as in
// [Watcher.SetBrief].
func NewPlan(abi *rm.ABI, brief bool) *Plan {
	p := new(Plan)
	for e := range abi.Escapes() {
		p.escape(abi, e, brief)
	}
	for r := range abi.UVMs() {
		// The request is the number itself, without an encoding. It says all that a
		// brief record has.
		q := PlainRequest{UVM: true, Request: r.Nr}
		if !brief {
			if r.Size == 0 || r.Size > maxPlain {
				continue
			}
			q.Size = uint32(r.Size)
		}
		p.Requests = append(p.Requests, q)
	}
	return p
}

// rmRequest is _IOWR('F', nr, size), as programs make the requests.
func rmRequest(nr uint32, size int) uint32 { return 3<<30 | uint32(size)<<16 | 'F'<<8 | nr }

// escape enters the requests of an escape, one for each size of its argument.
func (p *Plan) escape(abi *rm.ABI, e *rm.Escape, brief bool) {
	if e.Nr == escCheckVersion || e.Nr == escXfer {
		return // tells the version; holds another escape
	}
	if e.Array { // has any size; libraries ask for as many elements as there can be GPUs
		const maxGPUs = 32 // nvlimits.h: NV_MAX_DEVICES
		if len(e.Params) == 0 || len(e.Embedded) > 0 {
			return
		}
		if n := maxGPUs * e.Params[0].Size; n > 0 && n < maxPlain {
			p.Requests = append(p.Requests, PlainRequest{Request: rmRequest(e.Nr, n), Size: uint32(n), Null: noField})
		}
		return
	}
	for _, s := range e.Params {
		if s.Size == 0 || s.Size > maxPlain {
			continue
		}
		r := PlainRequest{Request: rmRequest(e.Nr, s.Size), Size: uint32(s.Size)}
		if brief || p.pointers(abi, &r, e, s) {
			p.Requests = append(p.Requests, r)
		}
	}
}

// pointers describes the pointers of an escape's argument, and returns false if
// they are not plain: one that is followed, and one that is as a rule null.
func (p *Plan) pointers(abi *rm.ABI, r *PlainRequest, e *rm.Escape, s *rm.Struct) bool {
	r.Null = noField
	for i := range e.Embedded {
		q := &e.Embedded[i]
		switch {
		case q.In != s:
		case p.follow(abi, r, q):
		case r.Null == noField && q.Offset < noField:
			r.Null = uint8(q.Offset)
		default:
			return false
		}
	}
	return r.Follow || r.Null == noField
}

// follow describes a pointer of an escape, and returns false if it is not plain.
func (p *Plan) follow(abi *rm.ABI, r *PlainRequest, e *rm.Embedded) bool {
	switch {
	case r.Follow:
		return false // there is one already
	case e.Of == rm.TargetControl:
		// NVOS54_PARAMETERS: cmd at 8, as in resolve.
		if e.CountSize != 4 || e.Plus != 0 || e.Square || e.Elem != 1 || e.When != "" || e.Count == "" {
			return false
		}
		r.Follow, r.Ptr, r.Len, r.Select, r.Flags = true, uint8(e.Offset), uint8(e.CountOff), 8, 12
		r.Mask = controlFinn
		r.Table = p.controls(abi)
		return true
	case e.Of == rm.TargetAlloc:
		// NVOS21 and NVOS64: hClass at 12, as in resolveAlloc.
		r.Follow, r.Ptr, r.Select, r.Len, r.Flags = true, uint8(e.Offset), 12, noField, noField
		if f := fieldOf(e.In, "paramsSize"); f != nil && f.Size == 4 {
			r.Len = uint8(f.Offset)
		}
		if f := fieldOf(e.In, "flags"); f != nil {
			r.Flags, r.Mask = uint8(f.Offset), allocFinn
		}
		r.Table = p.allocs(abi)
		return true
	}
	return false
}

// noField says that the argument has no such field.
const noField = 0xff

// The tables of a plan.
const (
	tableControls = iota
	tableAllocs
)

// table returns the table of that number, which is to be filled if it is new.
func (p *Plan) table(n int) (list *[]PlainLength, isNew bool) {
	for len(p.Tables) <= n {
		p.Tables = append(p.Tables, nil)
	}
	return &p.Tables[n], p.Tables[n] == nil
}

// controls lists the control commands whose parameters have pointers, in any
// layout: those need a Watcher, or Nested. All others are as long as the program says.
func (p *Plan) controls(abi *rm.ABI) uint8 {
	list, isNew := p.table(tableControls)
	if !isNew {
		return tableControls
	}
	for _, cmd := range pointerControls {
		length := uint32(LengthUnknown)
		if n, ok := nested(abi.Control(cmd)); ok {
			length = LengthNested + uint32(len(p.Nested))
			p.Nested = append(p.Nested, n)
		}
		*list = append(*list, PlainLength{cmd, length})
	}
	return tableControls
}

// nested describes the pointers in the parameters of a control command, and
// returns false if they are not plain.
func nested(c *rm.Control) (n PlainNested, ok bool) {
	const maxSize, maxPointers = 64, 4
	if c == nil || c.Params == nil || c.Size != c.Params.Size || c.Size > maxSize || len(c.Embedded) > maxPointers {
		return n, false
	}
	n.Size = uint32(c.Size)
	for i := range c.Embedded {
		e := &c.Embedded[i]
		if e.Of != rm.TargetArray || e.Count == "" || e.CountSize != 4 || e.Plus != 0 || e.Square || e.When != "" ||
			e.Elem <= 0 || e.Offset+8 > c.Size || e.CountOff+4 > c.Size {
			return n, false
		}
		n.Pointers = append(n.Pointers, PlainPointer{uint32(e.Offset), uint32(e.CountOff), uint32(e.Elem)})
	}
	return n, true
}

// allocs lists the lengths of the classes' allocation parameters.
func (p *Plan) allocs(abi *rm.ABI) uint8 {
	list, isNew := p.table(tableAllocs)
	if !isNew {
		return tableAllocs
	}
	*list = []PlainLength{}
	for c := range abi.Classes() {
		switch {
		case c.Alloc != nil:
			*list = append(*list, PlainLength{c.ID, uint32(c.Alloc.Size)})
		case c.Need == rm.NeedNone:
			*list = append(*list, PlainLength{c.ID, 0})
		}
	}
	return tableAllocs
}
