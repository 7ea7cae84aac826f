package channels

import (
	"bytes"
	"encoding/binary"

	"nvtrace/fatbin"
)

// Bounds of what is read of an image in a process's memory.
const (
	maxImageBack = 16 << 20 // from a name back to the image's beginning
	maxSections  = 1 << 20
	maxStrings   = 16 << 20 // of a table of strings
	maxInfo      = 1 << 16  // of a kernel's attributes
)

// params returns the parameters of a kernel whose name stands at an address: libcuda keeps the image of a
// module (an ELF file) in memory, and the name that it gives a kernel is that in the image's table of strings. It
// returns false if the memory before the name is no such image.
func params(m Memory, at uint64, name string) ([]fatbin.Param, bool) {
	for back := uint64(0); back < maxImageBack; back += searchChunk / 16 {
		end := at - back
		if end < searchChunk/16 {
			break
		}
		from := end - searchChunk/16
		b := make([]byte, searchChunk/16+8) // and a little of what was searched, for a header on the border
		readPages(m, from, b)
		for i := len(b); ; {
			if i = bytes.LastIndex(b[:i], imageBegin); i < 0 {
				break
			}
			if list, ok := paramsOf(m, from+uint64(i), at, name); ok {
				return list, true
			}
		}
	}
	return nil, false
}

// imageBegin is what an image of a module begins with: an ELF file of 64 bits, little-endian.
var imageBegin = []byte("\x7fELF\x02\x01\x01")

// An elfHeader is the part of an ELF file's header behind its identification.
type elfHeader struct {
	Type, Machine                                        uint16
	Version                                              uint32
	Entry, Programs, Sections                            uint64
	Flags                                                uint32
	Size, ProgramSize, ProgramCount, SectionSize, NumSec uint16
	Strings                                              uint16
}

// An elfSection is one entry of an ELF file's table of sections.
type elfSection struct {
	Name, Type         uint32
	Flags, Addr        uint64
	Offset, Size       uint64
	Link, Info         uint32
	AddrAlign, EntSize uint64
}

const (
	machineCUDA   = 190
	elfIdent      = 16
	elfHeaderSize = 64
	sectionSize   = 64
	typeStrings   = 3
	extended      = 0xffff // the number of the section with names stands in the first section
)

// paramsOf reads a kernel's parameters from an image at an address, if that is one and has the name at nameAt in one of its
// tables of strings.
func paramsOf(m Memory, image, nameAt uint64, name string) ([]fatbin.Param, bool) {
	head := make([]byte, elfHeaderSize)
	if m.Read(image, head) != nil {
		return nil, false
	}
	var h elfHeader
	if _, err := binary.Decode(head[elfIdent:], binary.LittleEndian, &h); err != nil || h.Machine != machineCUDA || h.SectionSize != sectionSize || h.Sections > 1<<40 {
		return nil, false
	}
	section := func(i uint64) (s elfSection, ok bool) {
		b := make([]byte, sectionSize)
		if m.Read(image+h.Sections+i*sectionSize, b) != nil {
			return s, false
		}
		_, err := binary.Decode(b, binary.LittleEndian, &s)
		return s, err == nil && s.Offset < 1<<40
	}
	first, ok := section(0)
	count, names := uint64(h.NumSec), uint64(h.Strings)
	if count == 0 {
		count = first.Size
	}
	if names == extended {
		names = uint64(first.Link)
	}
	if !ok || count > maxSections || names >= count {
		return nil, false
	}
	table, ok := section(names)
	if !ok || table.Size > maxStrings {
		return nil, false
	}
	texts := make([]byte, table.Size)
	if m.Read(image+table.Offset, texts) != nil {
		return nil, false
	}
	var info *elfSection
	own := false // the name is in this image
	wanted := []byte(".nv.info." + name + "\x00")
	all := make([]byte, count*sectionSize)
	if m.Read(image+h.Sections, all) != nil {
		return nil, false
	}
	for ; len(all) > 0; all = all[sectionSize:] {
		var s elfSection
		if _, err := binary.Decode(all, binary.LittleEndian, &s); err != nil {
			return nil, false
		}
		own = own || s.Type == typeStrings && nameAt-image >= s.Offset && nameAt-image-s.Offset < s.Size
		if uint64(s.Name) < table.Size && bytes.HasPrefix(texts[s.Name:], wanted) && s.Size <= maxInfo {
			info = &s
		}
	}
	if !own || info == nil {
		return nil, false
	}
	b := make([]byte, info.Size)
	if m.Read(image+info.Offset, b) != nil {
		return nil, false
	}
	list, err := fatbin.ParamsOf(b)
	return list, err == nil
}
