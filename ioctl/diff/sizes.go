package diff

import (
	"encoding/binary"
	"math/bits"

	"nvtrace/ioctl"
	"nvtrace/rm"
	"nvtrace/traces"
)

// maxSizes bounds the sizes that are told apart under one name.
const maxSizes = 1024

// Sizes counts sizes. Beyond 1024 distinct ones further ones are counted as the
// power of two below them.
type Sizes struct {
	Count, Total uint64
	bySize       map[uint64]uint64
	Rounded      bool // some were rounded down to a power of two
}

func (s *Sizes) add(n uint64) {
	s.Count++
	s.Total += n
	if _, ok := s.bySize[n]; !ok && len(s.bySize) >= maxSizes && n > 0 {
		n = 1 << (bits.Len64(n) - 1)
		s.Rounded = true
	}
	s.bySize[n]++
}

func (p *Profile) addSize(k Key, n uint64) {
	s := p.sizes[k]
	if s == nil {
		s = &Sizes{bySize: make(map[uint64]uint64)}
		p.sizes[k] = s
	}
	s.add(n)
}

// note takes the layouts and the sizes out of a call.
func (p *Profile) note(ev *traces.Event, c *ioctl.Call, k Key) {
	for i := range c.Parts {
		if s := c.Parts[i].Struct; s != nil {
			p.structs[s] = struct{}{}
		}
	}
	if c.Failed() {
		return
	}
	switch {
	case ev.Kind == traces.KindMmap:
		p.addSize(k, ev.Args[1])
	case k.Section == SectionClass, k.Section == SectionUVM, c.Nr == escVidHeap && k.Section == SectionEscape:
		if n, ok := sizeOf(c); ok {
			p.addSize(k, n)
		}
	}
}

const escVidHeap = 0x4a

// sizeMembers say where the size of what a call asks for lies, beyond what
// [rm.Class.Attr] knows. The driver's headers have them under these names in
// every version.
var sizeMembers = []struct {
	strct  string // layout's name
	member string
	plus   uint64
}{
	{"NVOS02_PARAMETERS", "limit", 1}, // nvos.h: the last byte's offset
	{"UVM_CREATE_EXTERNAL_RANGE_PARAMS", "length", 0},
	{"UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", "length", 0},
	{"UVM_ALLOC_SEMAPHORE_POOL_PARAMS", "length", 0},
	{"UVM_MAP_DYNAMIC_PARALLELISM_REGION_PARAMS", "length", 0},
	{"UVM_REGISTER_CHANNEL_PARAMS", "length", 0},
	{"UVM_MIGRATE_PARAMS", "length", 0},
	{"UVM_SET_PREFERRED_LOCATION_PARAMS", "length", 0},
	{"NV_VASPACE_ALLOCATION_PARAMETERS", "vaSize", 0},
}

// sizeOf returns the size that a call asks for: bytes, or entries of a channel's
// ring.
func sizeOf(c *ioctl.Call) (uint64, bool) {
	if c.Nr == escVidHeap {
		return heapSize(c)
	}
	for i := range c.Parts {
		part := &c.Parts[i]
		s := part.Struct
		if s == nil {
			continue
		}
		if c.Class != nil && s == c.Class.Alloc && part.Out != nil {
			if n := c.Class.Attr(part.In, part.Out).Size; n != 0 {
				return n, true
			}
		}
		if len(s.Fields) > 0 && s.Fields[0].Name == "params" && s.Fields[0].Struct != nil && s.Fields[0].Dims == nil {
			s = s.Fields[0].Struct // the descriptor's wrapper; params is at 0
		}
		for _, m := range sizeMembers {
			if m.strct != s.Name {
				continue
			}
			if n, ok := member(s, part.In, m.member); ok {
				return n + m.plus, true
			}
		}
	}
	return 0, false
}

// heapSize reads NVOS32_PARAMETERS.data.AllocSize.size.
func heapSize(c *ioctl.Call) (uint64, bool) {
	const allocSize = 2 // NVOS32_FUNCTION_ALLOC_SIZE
	if c.SubNr != allocSize {
		return 0, false
	}
	for i := range c.Parts {
		s := c.Parts[i].Struct
		if s == nil || s.Name != "NVOS32_PARAMETERS" {
			continue
		}
		data := field(s, "data")
		if data == nil || data.Struct == nil {
			return 0, false
		}
		alloc := field(data.Struct, "AllocSize")
		if alloc == nil || alloc.Struct == nil {
			return 0, false
		}
		at := data.Offset + alloc.Offset
		if in := c.Parts[i].In; at <= len(in) {
			return member(alloc.Struct, in[at:], "size")
		}
	}
	return 0, false
}

func field(s *rm.Struct, name string) *rm.Field {
	for i := range s.Fields {
		if s.Fields[i].Name == name {
			return &s.Fields[i]
		}
	}
	return nil
}

// member reads an integer member of 4 or 8 bytes.
func member(s *rm.Struct, b []byte, name string) (uint64, bool) {
	f := field(s, name)
	if f == nil || f.Dims != nil || len(b) < f.Offset+f.Size {
		return 0, false
	}
	switch f.Size {
	case 4:
		return uint64(binary.LittleEndian.Uint32(b[f.Offset:])), true
	case 8:
		return binary.LittleEndian.Uint64(b[f.Offset:]), true
	}
	return 0, false
}
