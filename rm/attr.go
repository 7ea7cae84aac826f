package rm

// Lookup finds a member by name, nil if there is none.
func (s *Struct) Lookup(name string) *Field {
	for i := range s.Fields {
		if s.Fields[i].Name == name {
			return &s.Fields[i]
		}
	}
	return nil
}

// Uint reads an unsigned member of up to 8 bytes from the struct's bytes; false
// if there is no such member or the bytes end before it.
func (s *Struct) Uint(name string, b []byte) (uint64, bool) {
	if f := s.Lookup(name); f != nil {
		return number(b, f.Offset, f.Elem)
	}
	return 0, false
}

// dependence lists, by the kindred of an object, the members of its allocation
// parameters that name objects which it does not outlive: the callers of
// refAddDependant in the driver (kernel_channel.c, kernel_channel_gv100.c,
// kernel_channel_group_api.c, kernel_ctxshare.c, context_dma.c, virtual_mem.c,
// virt_mem_range.c, p2p_api.c, event_buffer.c, mem_mapper.c).
func (k Kindred) dependence() []string {
	switch k {
	case Channel:
		return []string{"hVASpace", "hContextShare", "hUserdMemory"}
	case ChannelGroup, ContextShare, Memory:
		return []string{"hVASpace"}
	case ContextDMA:
		return []string{"hMemory"}
	case Debugger:
		return []string{"hClass3dObject"}
	case P2P:
		return []string{"hSubDevice", "hPeerSubDevice"}
	case Event:
		return []string{"hBufferHeader", "hRecordBuffer", "hVardataBuffer"}
	}
	return nil
}

// Bits of NVOS32_ATTR_LOCATION, nvos.h: the same in all versions of the data.
const (
	attrLocationLo  = 25
	attrLocationPCI = 1
	attrLocationVid = 0
)

// sizeMembers are the members that tell an object's size, and what to add.
var sizeMembers = []struct {
	name string
	plus uint64
}{{"size", 0}, {"allocSize", 0}, {"limit", 1}, {"gpFifoEntries", 0}}

// Attr reads from the allocation parameters of a class what a [Tree] keeps of
// an object. It takes them as they are after the call, when the driver has
// filled in what it chose, and as the program passed them, for what the driver
// overwrites; short or absent parameters give what there is.
func (c *Class) Attr(passed, params []byte) Attr {
	at := Attr{FD: -1, Aperture: c.aperture()}
	if c.Alloc == nil {
		return at
	}
	if c.Name == "NV01_EVENT_OS_EVENT" {
		// The pointer holds the descriptor, until the driver puts the address of
		// its own event there (os.c; seen in every recording).
		if v, ok := c.Alloc.Uint("data", passed); ok {
			at.FD = int32(uint32(v))
		}
	}
	switch c.Kind {
	case Memory, Fabric, ContextDMA, Channel:
		for _, m := range sizeMembers {
			if v, ok := c.Alloc.Uint(m.name, params); ok && v != 0 {
				at.Size = v + m.plus
				break
			}
		}
	}
	for _, name := range c.Kind.dependence() {
		f := c.Alloc.Lookup(name)
		if f == nil || f.Elem != 4 {
			continue
		}
		for off := f.Offset; off < f.Offset+f.Size; off += f.Elem {
			if v, ok := number(params, off, f.Elem); ok && v != 0 {
				at.Deps = append(at.Deps, uint32(v))
			}
		}
	}
	if v, ok := c.Alloc.Uint("engineType", params); ok {
		at.Engine = uint32(v)
	}
	if v, ok := c.Alloc.Uint("attr", params); ok && c.Internal == "NoDeviceMemory" {
		at.Aperture = AttrAperture(uint32(v))
	}
	return at
}

// AttrAperture tells where memory with such NVOS32_ATTR_* attributes lies.
func AttrAperture(attr uint32) Aperture {
	switch attr >> attrLocationLo & 3 {
	case attrLocationVid:
		return ApertureVidmem
	case attrLocationPCI:
		return ApertureSysmem
	}
	return ApertureUnknown
}

// aperture is what the class alone says.
func (c *Class) aperture() Aperture {
	switch c.Internal {
	case "VideoMemory", "PhysicalMemory", "ConsoleMemory":
		return ApertureVidmem
	case "SystemMemory", "OsDescMemory", "ExtendedGpuMemory":
		return ApertureSysmem
	case "VirtualMemory", "VirtualMemoryRange":
		return ApertureVirtual
	case "MemoryFabric", "MemoryFabricImportV2", "MemoryMulticastFabric", "FlaMemory":
		return ApertureFabric
	}
	return ApertureUnknown
}

// String names the aperture.
func (a Aperture) String() string {
	switch a {
	case ApertureVidmem:
		return "vidmem"
	case ApertureSysmem:
		return "sysmem"
	case ApertureVirtual:
		return "virtual"
	case ApertureFabric:
		return "fabric"
	}
	return "unknown"
}
