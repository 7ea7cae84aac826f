package fatbin

import (
	"bytes"
	"iter"
	"slices"
)

// Section is a section of an ELF file.
type Section struct {
	Name    string
	Type    uint32 // SHT_*; NVIDIA's own begin at 0x70000000
	Flags   uint64 // SHF_*
	Addr    uint64
	Offset  uint64 // in the file
	Size    uint64 // in bytes; takes no room in the file if Type is 8, SHT_NOBITS
	Link    uint32
	Info    uint32
	EntSize uint64 // of an element of a table
}

// From the System V ABI, as far as it is needed here.
const (
	elfHeader      = 64
	elfSectionSize = 64
	elfProgSize    = 56
	elfSymSize     = 24
	elfRelaSize    = 24

	shtProgbits = 1
	shtSymtab   = 2
	shtRela     = 4
	shtNobits   = 8

	etRel = 1

	shnXIndex = 0xffff

	machineCUDA = 190
)

// elfFile is a 64-bit little-endian ELF image: its headers and section table.
// A parser of our own, as debug/elf copies what it reads, refuses NVIDIA's
// oddities and allocates by what a file claims.
type elfFile struct {
	data     []byte
	typ      uint16
	machine  uint16
	version  uint32
	flags    uint32
	osabi    byte
	abi      byte
	sections []Section
	budget   *budget
}

// isELF reports whether b begins as a 64-bit little-endian ELF file.
func isELF(b []byte) bool {
	return len(b) >= elfHeader && string(b[:4]) == "\x7fELF" && b[4] == 2 && b[5] == 1
}

// isCubin reports whether b begins as an ELF file for NVIDIA's GPUs.
func isCubin(b []byte) bool { return isELF(b) && u16(b[18:]) == machineCUDA }

// parseELF reads the headers. what names the image in errors.
func parseELF(what string, data []byte) (*elfFile, error) {
	if !isELF(data) {
		return nil, formatError(what, 0, "not a 64-bit little-endian ELF file")
	}
	f := &elfFile{
		data: data, osabi: data[7], abi: data[8],
		typ: u16(data[16:]), machine: u16(data[18:]), version: u32(data[20:]), flags: u32(data[48:]),
		budget: newBudget(len(data)),
	}
	shoff, entSize, num, names := u64(data[40:]), u16(data[58:]), uint64(u16(data[60:])), uint32(u16(data[62:]))
	if shoff == 0 {
		return f, nil // stripped of its section table
	}
	if entSize != elfSectionSize {
		return nil, formatError(what, 58, "section headers of %d bytes, want %d", entSize, elfSectionSize)
	}
	first, ok := cut(data, shoff, elfSectionSize)
	if !ok {
		return nil, formatError(what, 40, "section table at 0x%x, past the end 0x%x", shoff, len(data))
	}
	// With 0xff00 sections or more, the first section's header has the counts.
	if num == 0 {
		num = u64(first[32:])
	}
	if names == shnXIndex {
		names = u32(first[40:])
	}
	if num > uint64(len(data))/elfSectionSize {
		return nil, formatError(what, 60, "%d sections in a file of %d bytes", num, len(data))
	}
	table, ok := cut(data, shoff, num*elfSectionSize)
	if !ok {
		return nil, formatError(what, 40, "a table of %d sections at 0x%x, past the end 0x%x", num, shoff, len(data))
	}
	f.sections = make([]Section, num)
	for i := range f.sections {
		h := table[i*elfSectionSize:]
		f.sections[i] = Section{
			Type: u32(h[4:]), Flags: u64(h[8:]), Addr: u64(h[16:]), Offset: u64(h[24:]),
			Size: u64(h[32:]), Link: u32(h[40:]), Info: u32(h[44:]), EntSize: u64(h[56:]),
		}
	}
	strs := f.bytes(names)
	for i := range f.sections {
		name, _ := cstring(strs, uint64(u32(table[i*elfSectionSize:])))
		if !f.budget.spend(len(name)) {
			return nil, formatError(what, shoff, "the names of sections are longer than the file")
		}
		f.sections[i].Name = string(name)
	}
	return f, nil
}

// bytes returns a section's content; nil if it has none or is outside of the
// file.
func (f *elfFile) bytes(index uint32) []byte {
	if uint64(index) >= uint64(len(f.sections)) {
		return nil
	}
	s := &f.sections[index]
	if s.Type == shtNobits {
		return nil
	}
	b, _ := cut(f.data, s.Offset, s.Size)
	return b
}

// symtab is the index of the section with the file's symbols, -1 if there is none.
func (f *elfFile) symtab() int {
	return slices.IndexFunc(f.sections, func(s Section) bool { return s.Type == shtSymtab })
}

// relocations goes through those in a section, which is one of them: the offset that each is for, and the
// index of its symbol.
func (f *elfFile) relocations(index uint32) iter.Seq2[uint64, uint64] {
	return func(yield func(offset, symbol uint64) bool) {
		size := elfRelaSize
		if f.sections[index].Type == shtRel {
			size = elfRelSize
		}
		for b := f.bytes(index); len(b) >= size && yield(u64(b), u64(b[8:])>>32); b = b[size:] {
		}
	}
}

// section finds a section by name.
func (f *elfFile) section(name string) (uint32, bool) {
	for i := range f.sections {
		if f.sections[i].Name == name {
			return uint32(i), true
		}
	}
	return 0, false
}

// elfSymbol is a symbol; its name is looked up when it is needed.
type elfSymbol struct {
	name    uint32
	info    byte
	other   byte
	section uint32
	value   uint64
	size    uint64
}

// symbols returns the symbols of the section at index, and their names.
func (f *elfFile) symbols(index uint32) (table, strs []byte) {
	return f.bytes(index), f.bytes(f.sections[index].Link)
}

// symbolAt decodes the symbol at an index of a table.
func symbolAt(table []byte, index uint64) (elfSymbol, bool) {
	if index >= uint64(len(table))/elfSymSize {
		return elfSymbol{}, false
	}
	b := table[index*elfSymSize:]
	return elfSymbol{
		name: u32(b), info: b[4], other: b[5], section: uint32(u16(b[6:])),
		value: u64(b[8:]), size: u64(b[16:]),
	}, true
}

// note finds a note by its section and returns its descriptor.
func (f *elfFile) note(section string) []byte {
	index, ok := f.section(section)
	if !ok {
		return nil
	}
	b := f.bytes(index)
	if len(b) < 12 {
		return nil
	}
	nameSize, descSize := uint64(u32(b)), uint64(u32(b[4:]))
	if nameSize > uint64(len(b)) {
		return nil
	}
	desc, _ := cut(b, 12+(nameSize+3)&^3, descSize)
	return desc
}

// elfEnd returns where an ELF image ends, by its own tables: read is called for
// the header and the two tables, which must be small.
func elfEnd(read func(off, size uint64) ([]byte, error)) (uint64, error) {
	const what = "ELF"
	h, err := read(0, elfHeader)
	if err != nil {
		return 0, err
	}
	if !isELF(h) {
		return 0, formatError(what, 0, "not a 64-bit little-endian ELF file")
	}
	end := uint64(elfHeader)
	reach := func(off, size uint64) error {
		if off+size < off {
			return formatError(what, 0, "a part at 0x%x of 0x%x bytes", off, size)
		}
		end = max(end, off+size)
		return nil
	}
	// table reaches the end of a table, and the ends of what its entries name.
	table := func(off uint64, size, n uint16, named func(entry []byte) error) error {
		b, err := read(off, uint64(size)*uint64(n))
		if err != nil {
			return err
		}
		if err := reach(off, uint64(len(b))); err != nil {
			return err
		}
		for ; len(b) >= int(size); b = b[size:] {
			if err := named(b); err != nil {
				return err
			}
		}
		return nil
	}
	if off, size, n := u64(h[32:]), u16(h[54:]), u16(h[56:]); n > 0 && size >= elfProgSize {
		if err := table(off, size, n, func(p []byte) error { return reach(u64(p[8:]), u64(p[32:])) }); err != nil {
			return 0, err
		}
	}
	if off, size, n := u64(h[40:]), u16(h[58:]), u16(h[60:]); off != 0 && n > 0 && size >= elfSectionSize {
		if err := table(off, size, n, func(s []byte) error {
			if u32(s[4:]) == shtNobits {
				return nil
			}
			return reach(u64(s[24:]), u64(s[32:]))
		}); err != nil {
			return 0, err
		}
	}
	return end, nil
}

// hasPrefixName returns what follows a prefix in a section's name.
func hasPrefixName(name, prefix string) (string, bool) {
	if len(name) > len(prefix) && name[:len(prefix)] == prefix {
		return name[len(prefix):], true
	}
	return "", false
}

// allZero reports whether b holds only zeros.
func allZero(b []byte) bool {
	return len(bytes.Trim(b, "\x00")) == 0
}
