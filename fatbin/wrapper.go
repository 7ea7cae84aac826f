package fatbin

import "fmt"

// Wrapper is a __fatBinC_Wrapper_t in a host file: what a program registers with
// the CUDA runtime, and how containers hang together.
//
// fatbinary_section.h: i32 magic, i32 version, u64 data, u64 file name (version
// 1) or list (version 2). The list of version 2, of the containers that were
// linked, is in .bss: the program fills it in when it starts, so that no file
// says what is on it.
type Wrapper struct {
	// Offset is where the wrapper is in the file.
	Offset int64
	// Version is 1 for a whole program, 2 for the result of linking device
	// code (-rdc).
	Version int
	// Container is the file offset of the container, or -1 if that is known
	// only when the file is loaded.
	Container int64
}

const (
	wrapperSize    = 24
	wrapperSection = ".nvFatBinSegment"

	relX86Relative = 8    // R_X86_64_RELATIVE
	relX86Abs64    = 1    // R_X86_64_64
	relARMRelative = 1027 // R_AARCH64_RELATIVE
	relARMAbs64    = 257  // R_AARCH64_ABS64
)

// Wrappers reads the wrappers of a host file by its section table; none if it
// has no .nvFatBinSegment. Pointers are followed through the file's relocations,
// as the loader would.
func (f *File) Wrappers() ([]Wrapper, error) {
	if f.format != FormatHost {
		return nil, nil
	}
	e, err := parseELF("ELF", f.data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.name, err)
	}
	index, ok := e.section(wrapperSection)
	if !ok {
		return nil, nil
	}
	b := e.bytes(index)
	at := e.sections[index]
	p := &pointers{elf: e, relocs: make(map[pointerAt]uint64)}
	p.load(index)
	var list []Wrapper
	for off := uint64(0); off+wrapperSize <= uint64(len(b)); off += wrapperSize {
		if m := u32(b[off:]); m != wrapperMagic {
			if allZero(b[off:]) {
				break
			}
			return list, fmt.Errorf("%s: %w", f.name, formatError("wrapper", at.Offset+off, "magic 0x%08x, want 0x%08x", m, uint32(wrapperMagic)))
		}
		w := Wrapper{Offset: int64(at.Offset + off), Version: int(int32(u32(b[off+4:]))), Container: p.follow(index, off+8, u64(b[off+8:]))}
		list = append(list, w)
	}
	return list, nil
}

// pointers finds what pointers in a file point at. A relocation says it: by the
// section (in an object file) or by the address that the pointer will be at.
type pointers struct {
	elf    *elfFile
	relocs map[pointerAt]uint64 // file offset that the pointer points at
}

type pointerAt struct {
	section uint32
	offset  uint64 // in the section
}

// load reads the relocations of the pointers in a section.
func (p *pointers) load(index uint32) {
	e := p.elf
	lo := e.sections[index].Addr
	hi := lo + e.sections[index].Size
	for i := range e.sections {
		s := &e.sections[i]
		if s.Type != shtRela || e.typ == etRel && s.Info != index {
			continue
		}
		for b := e.bytes(uint32(i)); len(b) >= elfRelaSize; b = b[elfRelaSize:] {
			off := u64(b)
			if e.typ != etRel && (off < lo || off >= hi) || len(p.relocs) >= len(e.data)/elfRelaSize {
				continue
			}
			if target, ok := p.target(s.Link, u64(b[8:]), u64(b[16:])); ok {
				p.relocs[pointerAt{index, off - lo}] = target
			}
		}
	}
}

// target returns the file offset that a relocation makes a pointer point at.
func (p *pointers) target(symtab uint32, info, addend uint64) (uint64, bool) {
	switch uint32(info) {
	case relX86Relative, relARMRelative:
		return p.fileOffset(addend)
	case relX86Abs64, relARMAbs64:
		if uint64(symtab) >= uint64(len(p.elf.sections)) {
			return 0, false
		}
		table, _ := p.elf.symbols(symtab)
		s, ok := symbolAt(table, info>>32)
		if !ok || s.section == 0 || uint64(s.section) >= uint64(len(p.elf.sections)) {
			return 0, false
		}
		if p.elf.typ == etRel {
			return p.elf.sections[s.section].Offset + s.value + addend, true
		}
		return p.fileOffset(s.value + addend)
	}
	return 0, false
}

// fileOffset maps an address to the file, through the sections.
func (p *pointers) fileOffset(addr uint64) (uint64, bool) {
	for i := range p.elf.sections {
		s := &p.elf.sections[i]
		if s.Addr != 0 && s.Type != shtNobits && addr >= s.Addr && addr-s.Addr < s.Size {
			return s.Offset + (addr - s.Addr), true
		}
	}
	return 0, false
}

// follow returns the file offset that the pointer at off in a section points at,
// or -1.
func (p *pointers) follow(section uint32, off, value uint64) int64 {
	if target, ok := p.relocs[pointerAt{section, off}]; ok {
		return p.bounded(target)
	}
	if target, ok := p.fileOffset(value); ok && value != 0 {
		return p.bounded(target)
	}
	return -1
}

func (p *pointers) bounded(off uint64) int64 {
	if off >= uint64(len(p.elf.data)) {
		return -1
	}
	return int64(off)
}

// WrapperPointers are the addresses in a wrapper as it is in memory.
type WrapperPointers struct {
	Version   int
	Container uint64
	// List is the address of an array of addresses of containers, which a
	// null ends; with version 2, else 0. The driver links them if nothing in
	// Container fits.
	List uint64
}

// ParseWrapper reads the wrapper that b begins with, of a running program.
func ParseWrapper(b []byte) (WrapperPointers, error) {
	if len(b) < wrapperSize || u32(b) != wrapperMagic {
		return WrapperPointers{}, formatError("wrapper", 0, "no magic 0x%08x in %d bytes", uint32(wrapperMagic), len(b))
	}
	p := WrapperPointers{Version: int(int32(u32(b[4:]))), Container: u64(b[8:])}
	if p.Version == 2 {
		p.List = u64(b[16:])
	}
	return p, nil
}
