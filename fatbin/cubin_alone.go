package fatbin

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// Alone returns the cubin with one of its kernels alone: without the others' code, attributes,
// constants and symbols, and without what is there for debuggers. Device functions, variables and
// what all kernels share stay. What was dropped leaves an empty entry in the tables of sections and
// symbols, which are known by their places there. [ErrNotEditable] is in the error's chain where
// the kernel can't do without the others.
func (e *CubinEditor) Alone(kernel string) ([]byte, error) {
	k, err := e.kernel(kernel)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(e.file.sections, func(s Section) bool { return isMercury(&s) }) {
		return nil, fmt.Errorf("cubin: its code is there in another form (Mercury): %w", ErrNotEditable)
	}
	a := aloneWriter{e: e, drop: e.notOf(k), gone: make(map[uint32]bool), out: slices.Clone(e.data)}
	if err := a.symbols(); err != nil {
		return nil, err
	}
	for i := range e.file.sections {
		if err := a.section(uint32(i)); err != nil {
			return nil, err
		}
	}
	return a.write(k)
}

// Apart says why not all kernels can be [CubinEditor.Alone] as well as together; nil if they can: code or data
// may name what is another kernel's, or a function by its address, which is another one in another file.
func (e *CubinEditor) Apart() error {
	owner := make(map[uint32]uint32) // the section of the kernel that a section is of
	functions := make(map[uint32]bool)
	for i := range e.cubin.Kernels {
		owner[e.cubin.Kernels[i].Section] = e.cubin.Kernels[i].Section
	}
	for i := range e.cubin.Functions {
		if s := e.cubin.Functions[i].Section; owner[s] == 0 {
			functions[s] = true
		}
	}
	for i := range e.file.sections {
		if s := &e.file.sections[i]; s.Flags&infoLink != 0 && owner[s.Info] != 0 && owner[uint32(i)] == 0 {
			owner[uint32(i)] = owner[s.Info]
		}
	}
	table, err := e.ownSymbols()
	if err != nil {
		return err
	}
	symbols, _ := e.file.symbols(table)
	for of, list := range e.relocs {
		if uint64(of) < uint64(len(e.file.sections)) && strings.HasPrefix(e.file.sections[of].Name, ".debug_") {
			continue
		}
		for _, i := range list {
			for _, symbol := range e.file.relocations(uint32(i)) {
				s, ok := symbolAt(symbols, symbol)
				if !ok || s.section == 0 {
					continue
				}
				if k := owner[s.section]; functions[s.section] || k != 0 && k != owner[of] {
					return fmt.Errorf("cubin: section %s names code elsewhere: %w", e.file.sections[i].Name, ErrNotEditable)
				}
			}
		}
	}
	return nil
}

// ownSymbols returns the section of symbols, whose names must be in a table of their own.
func (e *CubinEditor) ownSymbols() (uint32, error) {
	table := e.file.symtab()
	if table < 0 || e.file.sections[table].Link == e.sectionNames() {
		return 0, fmt.Errorf("cubin: no symbols, or none with a table of names of their own: %w", ErrNotEditable)
	}
	return uint32(table), nil
}

// sectionNames is the section with the names of sections.
func (e *CubinEditor) sectionNames() uint32 { return uint32(u16(e.data[62:])) }

const infoLink = 0x40 // SHF_INFO_LINK

// notOf returns the sections that belong to other kernels, or to debuggers.
func (e *CubinEditor) notOf(k *Kernel) []bool {
	drop := make([]bool, len(e.file.sections))
	others := make(map[string]bool)
	for i := range e.cubin.Kernels {
		if o := &e.cubin.Kernels[i]; o.Section != k.Section && uint64(o.Section) < uint64(len(drop)) {
			drop[o.Section], others[o.Name] = true, true
		}
	}
	for i := range e.file.sections {
		name := e.file.sections[i].Name
		drop[i] = drop[i] || strings.HasPrefix(name, ".debug_") || strings.HasPrefix(name, ".nv_debug_")
		for _, prefix := range []string{".nv.info.", ".nv.constant0.", ".nv.constant2.", ".nv.shared.", ".nv.local."} {
			if of, ok := hasPrefixName(name, prefix); ok && others[of] {
				drop[i] = true
			}
		}
	}
	for again := true; again; {
		again = false
		for i := range e.file.sections {
			s := &e.file.sections[i]
			linked := s.Flags&infoLink != 0 || s.Type == shtRela || s.Type == shtRel
			if linked && !drop[i] && uint64(s.Info) < uint64(len(drop)) && drop[s.Info] {
				drop[i], again = true, true
			}
		}
	}
	return drop
}

// An aloneWriter writes a cubin without some sections.
type aloneWriter struct {
	e       *CubinEditor
	drop    []bool          // by section
	gone    map[uint32]bool // symbols that were in them
	out     []byte          // the file, in which what stays is changed in place
	splices []splice
	names   []uint32 // of sections, in the new table of their names; nil: it stays
}

// symbols empties the entries of symbols in dropped sections, and leaves out their names.
func (a *aloneWriter) symbols() error {
	f := a.e.file
	index, err := a.e.ownSymbols()
	if err != nil {
		return err
	}
	table, strs := f.symbols(index)
	at := f.sections[index].Offset
	var names stringTable
	for i := uint64(0); ; i++ {
		s, ok := symbolAt(table, i)
		if !ok {
			break
		}
		entry := a.out[at+i*elfSymSize:][:elfSymSize]
		if uint64(s.section) < uint64(len(a.drop)) && a.drop[s.section] {
			a.gone[uint32(i)] = true
			clear(entry)
			continue
		}
		name, ok := cstring(strs, uint64(s.name))
		if !ok {
			return formatError("cubin", at+i*elfSymSize, "symbol %d has no name in the string table", i)
		}
		binary.LittleEndian.PutUint32(entry, names.add(name))
	}
	return a.splice(f.sections[index].Link, names.bytes())
}

// section drops a section, or what it says of dropped symbols.
func (a *aloneWriter) section(i uint32) error {
	f := a.e.file
	s, b := &f.sections[i], f.bytes(i)
	switch {
	case a.drop[i]:
		return a.splice(i, nil)
	case s.Type == shtRela || s.Type == shtRel:
		for _, symbol := range f.relocations(i) {
			if a.gone[uint32(symbol)] {
				return fmt.Errorf("cubin: section %s names what is another kernel's: %w", s.Name, ErrNotEditable)
			}
		}
	case s.Type == shtCallGraph:
		var kept []byte
		for ; len(b) >= 8; b = b[8:] {
			if !a.gone[u32(b)] && !a.gone[u32(b[4:])] {
				kept = append(kept, b[:8]...)
			}
		}
		return a.splice(i, append(kept, b...))
	case s.Type == shtNVInfo && s.Name == ".nv.info":
		attrs, err := parseAttrs(b)
		if err != nil {
			return err
		}
		var kept []byte
		for j := range attrs {
			n := 4
			if attrs[j].Format == AttrSized {
				n += len(attrs[j].Value)
			}
			if symbol, _, ok := attrs[j].symbolValue(); !ok || !a.gone[symbol] || !ofSymbols[attrs[j].ID] {
				kept = append(kept, b[:n]...)
			}
			b = b[n:]
		}
		return a.splice(i, kept)
	case i == a.e.sectionNames():
		var names stringTable
		for j := range f.sections {
			name := ""
			if !a.drop[j] {
				name = f.sections[j].Name
			}
			a.names = append(a.names, names.add([]byte(name)))
		}
		return a.splice(i, names.bytes())
	}
	return nil
}

// ofSymbols are the attributes of .nv.info whose first word is a symbol.
var ofSymbols = map[AttrID]bool{AttrRegCount: true, AttrFrameSize: true, AttrMinStackSize: true, AttrMaxStackSize: true}

const shtCallGraph = 0x70000001

// splice gives a section less content. What follows moves by a multiple of growAlign.
func (a *aloneWriter) splice(section uint32, data []byte) error {
	size := len(a.e.file.bytes(section))
	if size < len(data) {
		return fmt.Errorf("cubin: section %d has %d bytes, and %d without what is not needed: %w", section, size, len(data), ErrFormat)
	}
	if size == 0 {
		return nil // wherever it is
	}
	less := int64(size-len(data)) &^ (growAlign - 1)
	a.splices = append(a.splices, splice{section: section, off: a.e.file.sections[section].Offset, size: uint64(size), data: data, grown: -less})
	return nil
}

// write writes the file, and reads it again.
func (a *aloneWriter) write(k *Kernel) ([]byte, error) {
	w, err := a.e.move(a.out, a.splices)
	if err != nil {
		return nil, err
	}
	headers := w[u64(w[40:]):]
	for i, dropped := range a.drop {
		h := headers[i*elfSectionSize:][:elfSectionSize]
		if dropped {
			clear(h)
		}
		if a.names != nil {
			binary.LittleEndian.PutUint32(h, a.names[i])
		}
	}
	got, err := NewCubinEditor(w, nil)
	if err != nil {
		return nil, fmt.Errorf("cubin: parts of it overlap: %w: %w", ErrFormat, err)
	}
	c, err := got.Code(k.Name)
	if err != nil || !bytes.Equal(c.Code, a.e.file.bytes(k.Section)) || c.Registers != k.Registers {
		return nil, fmt.Errorf("cubin: kernel %s alone is another: %w", k.Name, ErrFormat)
	}
	return w, nil
}

// A stringTable is the content of a section of names.
type stringTable struct {
	text []byte
	at   map[string]uint32
}

// add returns where a name is in the table.
func (t *stringTable) add(name []byte) uint32 {
	if len(name) == 0 {
		return 0
	}
	if at, ok := t.at[string(name)]; ok {
		return at
	}
	if t.at == nil {
		t.at = make(map[string]uint32)
	}
	at := uint32(len(t.bytes()))
	t.at[string(name)] = at
	t.text = append(append(t.text, name...), 0)
	return at
}

// bytes is the table, which begins with the empty name.
func (t *stringTable) bytes() []byte {
	if len(t.text) == 0 {
		t.text = []byte{0}
	}
	return t.text
}
