package dso

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"slices"
)

// Sections returns the section headers. They are information that a file need not
// have, and memory never has: there are none then.
func (f *File) Sections() []elf.SectionHeader {
	if f.sections == nil {
		f.sections = f.readSections()
	}
	return f.sections
}

func (f *File) readSections() []elf.SectionHeader {
	none := []elf.SectionHeader{}
	n := int(f.shnum)
	if f.memory || n == 0 || n > maxSections || int(f.shstr) >= n {
		return none
	}
	table, err := f.read(f.shoff, n*shdrSize)
	if err != nil {
		return none
	}
	str := table[int(f.shstr)*shdrSize:]
	names, err := f.readLong(le.Uint64(str[24:]), le.Uint64(str[32:]), maxNames)
	if err != nil {
		return none
	}
	list := make([]elf.SectionHeader, 0, n)
	for ; len(table) > 0; table = table[shdrSize:] {
		list = append(list, elf.SectionHeader{
			Name: stringAt(names, le.Uint32(table)), Type: elf.SectionType(le.Uint32(table[4:])), Flags: elf.SectionFlag(le.Uint64(table[8:])),
			Addr: le.Uint64(table[16:]), Offset: le.Uint64(table[24:]), Size: le.Uint64(table[32:]), FileSize: le.Uint64(table[32:]),
			Link: le.Uint32(table[40:]), Info: le.Uint32(table[44:]), Addralign: le.Uint64(table[48:]), Entsize: le.Uint64(table[56:]),
		})
	}
	return list
}

func stringAt(table []byte, at uint32) string {
	if uint64(at) >= uint64(len(table)) {
		return ""
	}
	s, _, _ := bytes.Cut(table[at:], []byte{0})
	return string(s)
}

// Section returns the first section of a name, nil if there is none.
func (f *File) Section(name string) *elf.SectionHeader {
	return f.section(func(s elf.SectionHeader) bool { return s.Name == name })
}

func (f *File) section(is func(s elf.SectionHeader) bool) *elf.SectionHeader {
	list := f.Sections()
	if i := slices.IndexFunc(list, is); i >= 0 {
		return &list[i]
	}
	return nil
}

// Data returns what is in a section; it fails if that is more than most bytes.
func (f *File) Data(s *elf.SectionHeader, most uint64) ([]byte, error) {
	if s.Type == elf.SHT_NOBITS {
		return nil, nil
	}
	b, err := f.readLong(s.Offset, s.Size, most)
	if err != nil {
		return nil, fmt.Errorf("section %s: %w", s.Name, err)
	}
	return b, nil
}

// Contains reports whether a text is in the first most bytes of a section. It reads them piece by piece, up to the text.
func (f *File) Contains(s *elf.SectionHeader, text string, most uint64) (bool, error) {
	if s.Type == elf.SHT_NOBITS {
		return false, nil
	}
	const step = 256 << 10
	b := make([]byte, 0, step+len(text))
	for at, end := uint64(0), min(s.Size, most); at < end; {
		have := len(b)
		b = b[:have+int(min(end-at, step))]
		if err := f.readInto(b[have:], s.Offset+at); err != nil {
			return false, fmt.Errorf("section %s: %w", s.Name, err)
		}
		if bytes.Contains(b, []byte(text)) {
			return true, nil
		}
		at += uint64(len(b) - have)
		b = b[:copy(b, b[max(len(b)-len(text)+1, 0):])] // the text may go on in the next piece
	}
	return false, nil
}

// A Symbol is an entry of a symbol table.
type Symbol struct {
	Name       string
	Addr, Size uint64 // in bytes; the address as the file has it
	Type       elf.SymType
	Defined    bool // in this file
}

// Function reports whether the symbol is a function of the file.
func (s *Symbol) Function() bool { return s.Defined && s.Type == elf.STT_FUNC }

// Indirect reports whether the symbol is a function that returns the address of the one that is meant,
// which the loader calls (GNU_IFUNC).
func (s *Symbol) Indirect() bool { return s.Defined && s.Type == elf.STT_GNU_IFUNC }

// parseSymbol reads struct Elf64_Sym.
func parseSymbol(b []byte, name string) Symbol {
	return Symbol{
		Name: name, Addr: le.Uint64(b[8:]), Size: le.Uint64(b[16:]),
		Type: elf.SymType(b[4] & 0xf), Defined: elf.SectionIndex(le.Uint16(b[6:])) != elf.SHN_UNDEF,
	}
}

// DynamicSymbols returns the symbols by which files are linked when a program starts: those that the
// file exports, and those that it wants of others. There may be none.
func (f *File) DynamicSymbols() ([]Symbol, error) { return f.symbols(elf.SHT_DYNSYM) }

// Symbols returns the symbols that most files are stripped of: there may be none.
func (f *File) Symbols() ([]Symbol, error) { return f.symbols(elf.SHT_SYMTAB) }

// DynamicSymbolsNamed returns those of [File.DynamicSymbols] that have one of the names, in less time.
func (f *File) DynamicSymbolsNamed(names ...string) ([]Symbol, error) {
	return f.symbolsNamed(elf.SHT_DYNSYM, names)
}

// SymbolsNamed returns those of [File.Symbols] that have one of the names, in less time.
func (f *File) SymbolsNamed(names ...string) ([]Symbol, error) {
	return f.symbolsNamed(elf.SHT_SYMTAB, names)
}

// symbolTable returns a symbol table and the names of its symbols, nil if there is none.
func (f *File) symbolTable(typ elf.SectionType) (table, names []byte, err error) {
	s := f.section(func(s elf.SectionHeader) bool { return s.Type == typ })
	if s == nil {
		return nil, nil, nil
	}
	sections := f.Sections()
	if int64(s.Link) >= int64(len(sections)) {
		return nil, nil, fmt.Errorf("section %s: its names are in section %d: %w", s.Name, s.Link, errELF)
	}
	if names, err = f.Data(&sections[s.Link], maxTable); err != nil {
		return nil, nil, err
	}
	table, err = f.Data(s, maxTable)
	return table, names, err
}

func (f *File) symbols(typ elf.SectionType) ([]Symbol, error) {
	table, data, err := f.symbolTable(typ)
	if err != nil || table == nil {
		return nil, err
	}
	names := string(data) // in one piece, which the symbols share
	list := make([]Symbol, 0, len(table)/symSize)
	for at := symSize; at+symSize <= len(table); at += symSize { // the first is none
		b := table[at : at+symSize]
		name := ""
		if from := uint64(le.Uint32(b)); from < uint64(len(names)) {
			name = names[from:]
			end := bytes.IndexByte(data[from:], 0)
			if end < 0 {
				return nil, fmt.Errorf("symbols of type %v: a name does not end: %w", typ, errELF)
			}
			name = name[:end]
		}
		list = append(list, parseSymbol(b, name))
	}
	return list, nil
}

func (f *File) symbolsNamed(typ elf.SectionType, names []string) ([]Symbol, error) {
	table, data, err := f.symbolTable(typ)
	if err != nil || table == nil {
		return nil, err
	}
	at := make(map[uint32]string) // where a name begins; a linker may have it as the end of another
	for _, name := range names {
		for from := 0; ; {
			i := bytes.Index(data[from:], []byte(name+"\x00"))
			if i < 0 {
				break
			}
			at[uint32(from+i)] = name
			from += i + 1
		}
	}
	var list []Symbol
	if len(at) == 0 {
		return nil, nil
	}
	for b := table[min(symSize, len(table)):]; len(b) >= symSize; b = b[symSize:] { // the first is none
		if name, ok := at[le.Uint32(b)]; ok {
			list = append(list, parseSymbol(b, name))
		}
	}
	return list, nil
}

// Starts returns the addresses at which functions begin, ascending, from the table for unwinding
// stacks, which stripped files have too (the Linux Standard Base's .eh_frame_hdr).
func (f *File) Starts() ([]uint64, error) {
	const (
		head     = 12 // bytes before the table
		version  = 1
		udata4   = 0x03
		tableEnc = 0x3b // relative to the table, 4 bytes, signed
	)
	i := slices.IndexFunc(f.Progs, func(p elf.ProgHeader) bool { return p.Type == elf.PT_GNU_EH_FRAME })
	if i < 0 {
		return nil, errors.New("no table of functions")
	}
	p := &f.Progs[i]
	if p.Filesz < head {
		return nil, fmt.Errorf("a table of functions of %d bytes", p.Filesz)
	}
	b, err := f.readLong(p.Off, p.Filesz, head+8*maxStarts)
	if err != nil {
		return nil, fmt.Errorf("table of functions: %w", err)
	}
	if b[0] != version || b[1]&0xf != 0xb || b[2] != udata4 || b[3] != tableEnc {
		return nil, fmt.Errorf("a table of functions of an unknown form (% x)", b[:4])
	}
	n := le.Uint32(b[8:])
	if uint64(n) > (p.Filesz-head)/8 {
		return nil, fmt.Errorf("%d functions in a table of %d bytes", n, p.Filesz)
	}
	starts := make([]uint64, n)
	for i := range starts {
		starts[i] = p.Vaddr + uint64(int64(int32(le.Uint32(b[head+8*i:]))))
	}
	if !slices.IsSorted(starts) {
		return nil, errors.New("a table of functions out of order")
	}
	return starts, nil
}
