package dso

import "debug/elf"

// Relocations returns the tables of relocations that the loader applies, each of entries of ELF's kind with addends;
// a table of more than most bytes is left out.
func (f *File) Relocations(most uint64) (tables [][]byte) {
	for _, tags := range [][2]elf.DynTag{{elf.DT_RELA, elf.DT_RELASZ}, {elf.DT_JMPREL, elf.DT_PLTRELSZ}} { //nolint:misspell // ELF's names
		addr, size := f.value(tags[0]), f.value(tags[1])
		off, ok := f.at(addr)
		if addr == 0 || !ok {
			continue
		}
		if b, err := f.readLong(off, size, most); err == nil {
			tables = append(tables, b)
		}
	}
	return tables
}

// PackedRelocations reports whether the file has relocations as a bitmap (DT_RELR), which leave
// addresses in the data as the file has them.
func (f *File) PackedRelocations() bool {
	const relr = 36
	return f.value(relr) != 0
}

// value returns what the dynamic section has under a tag, 0 for nothing.
func (f *File) value(tag elf.DynTag) uint64 {
	for _, d := range f.dynamic {
		if elf.DynTag(d.Tag) == tag {
			return d.Val
		}
	}
	return 0
}
