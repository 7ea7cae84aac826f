package fatbin

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sort"
	"strings"
)

// ErrNotEditable is in the chain of errors about cubins and kernels that are well
// formed but that a [CubinEditor] must not change.
var ErrNotEditable = errors.New("not editable")

// A CubinEditor replaces the code of kernels in a cubin. Code may be changed in
// place and more may be appended to it; what is there keeps its offset within its
// section, so that relocations, jump tables, line numbers and offsets in
// attributes stay right. Sections behind a grown one move to later offsets in the
// file, and nothing else is touched: a cubin without a change is written as it was
// read, byte for byte.
type CubinEditor struct {
	file    *elfFile
	cubin   *Cubin
	data    []byte
	o       CubinEditOptions
	changes map[string]*CodeChange // by kernel
	byName  map[string]int         // kernels; -1 where several have the name
	holds   map[uint32]int         // how many kernels a section holds
	relocs  map[uint32][]int       // sections of relocations, by the section that they are of
	infos   map[string]uint32      // sections of attributes, by kernel
	numbers map[symbolAttr][]uint64
}

// A symbolAttr is a number that .nv.info gives a symbol.
type symbolAttr struct {
	id     AttrID
	symbol uint32
}

// CubinEditOptions say how a cubin is edited; nil is the zero value.
type CubinEditOptions struct {
	// DropMercury removes the second form of the code that cubins for sm_100 and
	// later carry (sections .nv.capmerc.* and .nv.merc.*), from which a driver may
	// make the machine code anew for another member of the family: an edited
	// .text would then be ignored. Without that form the cubin fits exactly the
	// GPUs of its own architecture. Otherwise such cubins are [ErrNotEditable].
	DropMercury bool
}

// KernelCode is what an editor of a kernel's code has to know.
type KernelCode struct {
	*Kernel
	// Code is that of the kernel's section, all of it. It aliases the image.
	Code []byte
	// Exits are the offsets of the kernel's exits, where the file lists them.
	Exits []uint32
	// Listed are the offsets of other instructions that attributes or relocations
	// name, sorted: the driver and tools expect these instructions where they are.
	Listed []uint32
	// Targets are the offsets that jumps through tables and registers go to, by the offset
	// of the jump. The file need not list all such jumps.
	Targets map[uint32][]uint32
	// Special says why the kernel's entry or exits are not ordinary ones; "" if
	// they are.
	Special string
}

// CodeChange is new code for a kernel.
type CodeChange struct {
	// Code replaces that of the section, of which it begins with as many bytes.
	Code []byte
	// Registers per thread, as attribute REGCOUNT counts them; 0 leaves them.
	Registers int
	// Exits are the offsets of all exits in Code; nil leaves the list.
	Exits []uint32
	// Stack is how many bytes of local memory more a thread needs.
	Stack int
}

// NewCubinEditor reads a cubin for editing. [ErrFormat] is in the error's chain
// where it is malformed, [ErrNotEditable] where it can't be edited.
func NewCubinEditor(data []byte, o *CubinEditOptions) (*CubinEditor, error) {
	c, err := ParseCubin(data)
	if err != nil {
		return nil, err
	}
	f, err := parseELF("cubin", data)
	if err != nil {
		return nil, err
	}
	e := &CubinEditor{file: f, cubin: c, data: data, changes: make(map[string]*CodeChange)}
	if o != nil {
		e.o = *o
	}
	e.index()
	if c.Relocatable {
		return nil, fmt.Errorf("cubin: to be linked, and the linker may change it: %w", ErrNotEditable)
	}
	if !e.o.DropMercury {
		for i := range f.sections {
			if isMercury(&f.sections[i]) {
				return nil, fmt.Errorf("cubin: section %s holds the code in another form (Mercury), which the driver may prefer: %w", f.sections[i].Name, ErrNotEditable)
			}
		}
	}
	return e, nil
}

// Cubin returns what was read.
func (e *CubinEditor) Cubin() *Cubin { return e.cubin }

// Code returns a kernel's code as it was read.
func (e *CubinEditor) Code(kernel string) (*KernelCode, error) {
	k, err := e.kernel(kernel)
	if err != nil {
		return nil, err
	}
	code := e.file.bytes(k.Section)
	kc := &KernelCode{Kernel: k, Code: code}
	for i := range k.Attrs {
		a := &k.Attrs[i]
		switch a.ID {
		case AttrExitOffsets:
			kc.Exits = append(kc.Exits, a.Words()...)
		case attrIndirectTargets:
			if kc.Targets == nil {
				kc.Targets = make(map[uint32][]uint32)
			}
			jumpTargets(a.Value, kc.Targets)
		case attrErrbarAtExit, attrEntryFragments:
			kc.Special = "attribute " + a.ID.String()
		default:
			kc.Listed = a.appendOffsets(kc.Listed, len(code))
		}
	}
	for _, i := range e.relocs[k.Section] {
		for off := range e.file.relocations(uint32(i)) {
			if off < uint64(len(code)) {
				kc.Listed = append(kc.Listed, uint32(off)&^(instructionSize-1))
			}
		}
	}
	slices.Sort(kc.Listed)
	kc.Listed = slices.Compact(kc.Listed)
	return kc, nil
}

// SectionBytes returns what the file has in a section, by its index; nil if nothing is there. It
// aliases the image.
func (e *CubinEditor) SectionBytes(index uint32) []byte { return e.file.bytes(index) }

// index notes where things are, so that editing thousands of kernels stays cheap.
func (e *CubinEditor) index() {
	e.byName, e.holds = make(map[string]int), make(map[uint32]int)
	for i := range e.cubin.Kernels {
		k := &e.cubin.Kernels[i]
		if _, ok := e.byName[k.Name]; ok {
			e.byName[k.Name] = -1
		} else {
			e.byName[k.Name] = i
		}
		e.holds[k.Section]++
	}
	e.relocs, e.infos, e.numbers = make(map[uint32][]int), make(map[string]uint32), make(map[symbolAttr][]uint64)
	for i := range e.file.sections {
		s := &e.file.sections[i]
		kernel, isInfo := hasPrefixName(s.Name, ".nv.info.")
		switch {
		case s.Type == shtRela || s.Type == shtRel:
			e.relocs[s.Info] = append(e.relocs[s.Info], i)
		case s.Type == shtNVInfo && isInfo:
			e.infos[kernel] = uint32(i)
		case s.Type == shtNVInfo && s.Name == ".nv.info":
			e.indexNumbers(s.Offset, e.file.bytes(uint32(i)))
		}
	}
}

// indexNumbers notes where .nv.info, at an offset of the file, has its numbers.
func (e *CubinEditor) indexNumbers(off uint64, b []byte) {
	for p := uint64(0); p+4 <= uint64(len(b)); {
		n := uint64(4)
		if AttrFormat(b[p]) == AttrSized {
			n += uint64(u16(b[p+2:]))
			if p+n > uint64(len(b)) {
				return // ParseCubin has reported it
			}
			if n >= 12 {
				key := symbolAttr{AttrID(b[p+1]), u32(b[p+4:])}
				e.numbers[key] = append(e.numbers[key], off+p+8)
			}
		}
		p += n
	}
}

// OnlyAsserts reports whether all that a kernel can call outside of its section is
// __assertfail, which reports a failed assertion and ends the kernel.
func (e *CubinEditor) OnlyAsserts(kernel string) bool {
	i, ok := e.byName[kernel]
	if !ok || i < 0 {
		return false
	}
	own := e.cubin.Kernels[i].Section
	sections := []uint32{own}
	var others map[string]bool // functions elsewhere
	for j := range e.cubin.Functions {
		if f := &e.cubin.Functions[j]; f.Section != own {
			if others == nil {
				others = make(map[string]bool)
			}
			others[f.Name] = true
		}
	}
	// Addresses of functions may be in the file's data, which all of its kernels can read.
	const alloc, exec = 2, 4
	for j := range e.file.sections {
		if s := &e.file.sections[j]; s.Flags&(alloc|exec) == alloc || strings.HasPrefix(s.Name, ".nv.constant") {
			sections = append(sections, uint32(j))
		}
	}
	if others != nil && slices.ContainsFunc(e.named(sections, true), func(name string) bool { return others[name] }) {
		return false
	}
	return slices.Equal(e.named(sections, false), []string{"__assertfail"})
}

// Externs names what a kernel, and the device functions and constants of its file, refer
// to and the file does not define: functions of the driver such as vprintf, whose addresses
// are constants that all kernels have.
func (e *CubinEditor) Externs(kernel string) []string { return e.referred(kernel, false) }

// Refers names what a kernel, and the device functions and constants of its file, refer to
// and the file defines.
func (e *CubinEditor) Refers(kernel string) []string { return e.referred(kernel, true) }

func (e *CubinEditor) referred(kernel string, defined bool) []string {
	i, ok := e.byName[kernel]
	if !ok || i < 0 {
		return nil
	}
	sections := []uint32{e.cubin.Kernels[i].Section}
	for j := range e.cubin.Functions {
		sections = append(sections, e.cubin.Functions[j].Section)
	}
	for j := range e.file.sections {
		if strings.HasPrefix(e.file.sections[j].Name, ".nv.constant") {
			sections = append(sections, uint32(j))
		}
	}
	return e.named(sections, defined)
}

// named names the symbols that relocations of sections refer to, which the file defines or not.
func (e *CubinEditor) named(sections []uint32, defined bool) []string {
	slices.Sort(sections)
	table := e.file.symtab()
	if table < 0 {
		return nil
	}
	symbols, strs := e.file.symbols(uint32(table))
	found := make(map[string]bool)
	for _, section := range slices.Compact(sections) {
		for _, i := range e.relocs[section] {
			for _, symbol := range e.file.relocations(uint32(i)) {
				s, ok := symbolAt(symbols, symbol)
				if !ok || (s.section != 0) != defined {
					continue
				}
				if name, ok := cstring(strs, uint64(s.name)); ok && len(name) > 0 {
					found[string(name)] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// jumpTargets reads INDIRECT_BRANCH_TARGETS: for each jump its offset, two half words,
// the number of targets and the targets.
func jumpTargets(b []byte, targets map[uint32][]uint32) {
	for len(b) >= 12 {
		n := uint64(u32(b[8:]))
		if n > uint64(len(b)-12)/4 {
			return
		}
		jump := u32(b)
		for i := range n {
			targets[jump] = append(targets[jump], u32(b[12+4*i:]))
		}
		b = b[12+4*n:]
	}
}

// kernel finds a kernel that can be edited.
func (e *CubinEditor) kernel(name string) (*Kernel, error) {
	i, ok := e.byName[name]
	if !ok {
		return nil, fmt.Errorf("cubin: no kernel %s", name)
	}
	if i < 0 {
		return nil, fmt.Errorf("cubin: several kernels are called %s: %w", name, ErrFormat)
	}
	k := &e.cubin.Kernels[i]
	code := e.file.bytes(k.Section)
	switch {
	case len(code) == 0:
		return nil, fmt.Errorf("cubin: kernel %s has no code: %w", name, ErrFormat)
	case len(code)%instructionSize != 0 || len(code) > math.MaxInt32/2:
		return nil, fmt.Errorf("cubin: kernel %s: %d bytes of code: %w", name, len(code), ErrFormat)
	case k.Offset != 0 || k.Size != uint64(len(code)):
		return nil, fmt.Errorf("cubin: kernel %s is 0x%x bytes at 0x%x of a section of 0x%x: %w", name, k.Size, k.Offset, len(code), ErrNotEditable)
	case e.cubin.Sections[k.Section].Addr != 0:
		return nil, fmt.Errorf("cubin: kernel %s has an address already: %w", name, ErrNotEditable)
	}
	if e.holds[k.Section] > 1 {
		return nil, fmt.Errorf("cubin: kernel %s shares its section with another: %w", name, ErrNotEditable)
	}
	return k, nil
}

// Set replaces a kernel's code. The change is kept, not copied.
func (e *CubinEditor) Set(kernel string, ch *CodeChange) error {
	k, err := e.kernel(kernel)
	if err != nil {
		return err
	}
	switch n := e.cubin.Sections[k.Section].Size; {
	case uint64(len(ch.Code)) < n || len(ch.Code)%instructionSize != 0 || len(ch.Code) > math.MaxInt32:
		return fmt.Errorf("cubin: kernel %s: %d bytes of new code for %d", kernel, len(ch.Code), n)
	case ch.Registers < 0 || ch.Registers > maxRegisters:
		return fmt.Errorf("cubin: kernel %s: %d registers", kernel, ch.Registers)
	case ch.Stack < 0 || ch.Stack > math.MaxInt16 || ch.Stack%4 != 0:
		return fmt.Errorf("cubin: kernel %s: %d bytes of stack more", kernel, ch.Stack)
	}
	for _, x := range ch.Exits {
		if uint64(x) >= uint64(len(ch.Code)) || x%instructionSize != 0 {
			return fmt.Errorf("cubin: kernel %s: an exit at 0x%x of 0x%x", kernel, x, len(ch.Code))
		}
	}
	e.changes[kernel] = ch
	return nil
}

// instructionSize is that of one machine instruction since sm_70.
const instructionSize = 16

// maxRegisters is the largest REGCOUNT.
const maxRegisters = 255

// growAlign is what moved sections move by a multiple of: the largest alignment
// that the tools give one.
const growAlign = 128

// A splice is new content for a section.
type splice struct {
	section   uint32
	off, size uint64 // in the file as it was read
	data      []byte
	grown     int64 // by how much what follows moves
}

// Bytes returns the cubin with its changes. It is the slice that was read where
// there are none. The result is checked by reading it.
func (e *CubinEditor) Bytes() ([]byte, error) {
	if len(e.changes) == 0 {
		return e.data, nil
	}
	out := slices.Clone(e.data)
	var list []splice
	for name, ch := range e.changes {
		k, err := e.kernel(name)
		if err != nil {
			return nil, err
		}
		list = append(list, e.splice(k.Section, ch.Code))
		if s := e.exits(k, ch); s != nil {
			list = append(list, *s)
		}
		if err := e.patch(out, k, ch); err != nil {
			return nil, fmt.Errorf("cubin: kernel %s: %w", name, err)
		}
	}
	if e.o.DropMercury {
		e.dropMercury(out)
	}
	w, err := e.move(out, list)
	if err != nil {
		return nil, err
	}
	if err := e.check(w); err != nil {
		// Of a file whose parts overlap, some change with others.
		return nil, fmt.Errorf("cubin: parts of it overlap: %w: %w", ErrFormat, err)
	}
	return w, nil
}

func (e *CubinEditor) splice(section uint32, data []byte) splice {
	s := &e.file.sections[section]
	sp := splice{section: section, off: s.Offset, size: s.Size, data: data}
	if n := uint64(len(data)); n > s.Size {
		sp.grown = int64((n - s.Size + growAlign - 1) &^ (growAlign - 1))
	}
	return sp
}

// exits returns the kernel's attributes with another list of exits; nil if that
// changes nothing.
func (e *CubinEditor) exits(k *Kernel, ch *CodeChange) *splice {
	index, ok := e.infos[k.Name]
	if !ok || ch.Exits == nil {
		return nil
	}
	var out []byte
	found := false
	b := e.file.bytes(index)
	attrs, err := parseAttrs(b)
	if err != nil {
		return nil // ParseCubin has reported it
	}
	for i := range attrs {
		a := &attrs[i]
		n := 4
		if a.Format == AttrSized {
			n += len(a.Value)
		}
		record := b[:n]
		b = b[n:]
		if a.ID != AttrExitOffsets || a.Format != AttrSized {
			out = append(out, record...)
			continue
		}
		if found {
			continue // the list is whole already
		}
		found = true
		sorted := slices.Sorted(slices.Values(ch.Exits))
		// A record holds less than 64 KiB.
		for part := range slices.Chunk(sorted, 0x3fff) {
			out = append(out, byte(AttrSized), byte(AttrExitOffsets))
			out = binary.LittleEndian.AppendUint16(out, uint16(4*len(part)))
			for _, x := range part {
				out = binary.LittleEndian.AppendUint32(out, x)
			}
		}
	}
	if !found {
		return nil
	}
	s := e.splice(index, append(out, b...))
	return &s
}

// patch changes the kernel's numbers in headers, symbols and attributes, where
// they are in the file as it was read.
func (e *CubinEditor) patch(out []byte, k *Kernel, ch *CodeChange) error {
	le := binary.LittleEndian
	sym := e.file.symtab()
	table := e.file.sections[sym].Offset
	le.PutUint64(out[table+uint64(k.Symbol)*elfSymSize+16:], uint64(len(ch.Code)))
	if ch.Registers != 0 && ch.Registers != k.Registers {
		if !e.setAttr(out, AttrRegCount, k.Symbol, func(uint32) uint32 { return uint32(ch.Registers) }) {
			return fmt.Errorf("no %s: %w", AttrRegCount, ErrNotEditable)
		}
		// Tools up to CUDA 11 repeat it in the section's header.
		header := u64(e.data[40:]) + uint64(k.Section)*elfSectionSize + 44
		if info := u32(out[header:]); info>>24 != 0 {
			le.PutUint32(out[header:], info&0xffffff|uint32(ch.Registers)<<24)
		}
	}
	if ch.Stack != 0 {
		add := func(v uint32) uint32 {
			if v == math.MaxUint32 { // not known
				return v
			}
			return v + uint32(ch.Stack)
		}
		for _, id := range []AttrID{AttrFrameSize, AttrMinStackSize} {
			if !e.setAttr(out, id, k.Symbol, add) {
				return fmt.Errorf("no %s: %w", id, ErrNotEditable)
			}
		}
		e.setAttr(out, AttrMaxStackSize, k.Symbol, add) // not in all files
	}
	return nil
}

// setAttr changes the number that attributes of .nv.info give a symbol, and
// reports whether there is one.
func (e *CubinEditor) setAttr(out []byte, id AttrID, symbol uint32, value func(uint32) uint32) bool {
	places := e.numbers[symbolAttr{id, symbol}]
	for _, at := range places {
		b := out[at:]
		binary.LittleEndian.PutUint32(b, value(u32(b)))
	}
	return len(places) > 0
}

// move writes the file with spliced sections.
func (e *CubinEditor) move(out []byte, list []splice) ([]byte, error) {
	le := binary.LittleEndian
	slices.SortFunc(list, func(a, b splice) int {
		if a.off < b.off {
			return -1
		}
		return 1
	})
	total := int64(len(out))
	for i, s := range list {
		if s.off < elfHeader || i > 0 && s.off < list[i-1].off+list[i-1].size {
			return nil, formatError("cubin", s.off, "section %s overlaps another or the header", e.file.sections[s.section].Name)
		}
		total += s.grown
	}
	if total > math.MaxInt32 {
		return nil, fmt.Errorf("cubin: %d bytes: %w", total, ErrTooLarge)
	}
	// before returns how many spliced sections end at or before an offset; moved[n] is
	// by how much n of them move what follows.
	before := func(x uint64) int {
		return sort.Search(len(list), func(i int) bool { return list[i].off+list[i].size > x })
	}
	moved := make([]int64, len(list)+1)
	for i, s := range list {
		moved[i+1] = moved[i] + s.grown
	}
	// to returns where an offset lies now. What begins where a spliced section ends
	// begins behind the growth.
	to := func(x uint64) uint64 { return x + uint64(moved[before(x)]) }
	// within reports whether an offset is inside of a spliced section, not at its ends.
	within := func(x uint64) bool {
		i := before(x)
		return i < len(list) && list[i].off < x
	}
	// cutBy reports whether a spliced section lies partly within something, overlaps
	// whether it shares bytes with it.
	cutBy := func(off, size uint64) bool { return within(off) || within(off+size) }
	overlaps := func(off, size uint64) bool {
		i := before(off)
		return size > 0 && i < len(list) && list[i].off < off+size && list[i].size > 0
	}
	phoff, shoff, phes, phn := u64(e.data[32:]), u64(e.data[40:]), uint64(u16(e.data[54:])), uint64(u16(e.data[56:]))
	spliced := make(map[uint32]*splice, len(list))
	for i := range list {
		spliced[list[i].section] = &list[i]
	}
	for i := range e.file.sections {
		s := &e.file.sections[i]
		h := out[shoff+uint64(i)*elfSectionSize:]
		if e.o.DropMercury && isMercury(s) {
			continue
		}
		if sp := spliced[uint32(i)]; sp != nil {
			le.PutUint64(h[24:], to(s.Offset))
			le.PutUint64(h[32:], uint64(len(sp.data)))
			continue
		}
		size := s.Size
		if s.Type == shtNobits {
			size = 0
		}
		if s.Offset+size < s.Offset || overlaps(s.Offset, size) {
			return nil, formatError("cubin", s.Offset, "section %s overlaps one with code or attributes", s.Name)
		}
		le.PutUint64(h[24:], to(s.Offset))
	}
	if phn > 0 {
		if phes != elfProgSize {
			return nil, formatError("cubin", 54, "program headers of %d bytes, want %d", phes, elfProgSize)
		}
		if _, ok := cut(e.data, phoff, phn*phes); !ok || overlaps(phoff, phn*phes) {
			return nil, formatError("cubin", 32, "program headers at 0x%x", phoff)
		}
	}
	if overlaps(shoff, uint64(len(e.file.sections))*elfSectionSize) {
		return nil, formatError("cubin", 40, "section headers at 0x%x", shoff)
	}
	for i := range phn {
		p := out[phoff+i*phes:]
		off, fileSize, memSize := u64(p[8:]), u64(p[32:]), u64(p[40:])
		if off+fileSize < off || off+fileSize > uint64(len(e.data)) || cutBy(off, fileSize) {
			return nil, formatError("cubin", phoff+i*phes, "a segment at 0x%x of 0x%x bytes", off, fileSize)
		}
		start := to(off)
		if fileSize == 0 {
			le.PutUint64(p[8:], start)
			continue
		}
		// An end is where what lies before it ends, with the growth of its last
		// section.
		size := to(off+fileSize) - start
		le.PutUint64(p[8:], start)
		le.PutUint64(p[32:], size)
		le.PutUint64(p[40:], memSize+size-fileSize)
	}
	le.PutUint64(out[32:], to(phoff))
	le.PutUint64(out[40:], to(shoff))

	w := make([]byte, 0, total)
	last := uint64(0)
	for i := range list {
		s := &list[i]
		w = append(w, out[last:s.off]...)
		w = append(w, s.data...)
		w = append(w, make([]byte, s.size+uint64(s.grown)-uint64(len(s.data)))...)
		last = s.off + s.size
	}
	return append(w, out[last:]...), nil
}

// check reads what was written.
func (e *CubinEditor) check(w []byte) error {
	c, err := ParseCubin(w)
	if err != nil {
		return err
	}
	if len(c.Kernels) != len(e.cubin.Kernels) || len(c.Sections) != len(e.cubin.Sections) {
		return errors.New("the edited cubin has other kernels or sections")
	}
	for i := range c.Kernels {
		k, old := &c.Kernels[i], &e.cubin.Kernels[i]
		size, registers := old.Size, old.Registers
		if ch := e.changes[k.Name]; ch != nil {
			size = uint64(len(ch.Code))
			if ch.Registers != 0 {
				registers = ch.Registers
			}
		}
		if k.Name != old.Name || k.Size != size || k.Registers != registers {
			return fmt.Errorf("the edited cubin's kernel %s has 0x%x bytes and %d registers, want 0x%x and %d", k.Name, k.Size, k.Registers, size, registers)
		}
	}
	return nil
}

// Of sections and attributes that only editing looks at.
const (
	shtRel     = 9
	elfRelSize = 16

	attrErrbarAtExit    AttrID = 0x53
	attrEntryFragments  AttrID = 0x4f
	attrIndirectTargets AttrID = 0x34

	shtMercuryUserConst = 0x7000007c
	shtMercuryPicConst  = 0x7000007d
	shtMercuryShared    = 0x70000015
	shtMercuryText      = 0x70000016
	shtMercuryRela      = 0x70000082
	shtMercuryInfo      = 0x70000083
	shtMercurySymtab    = 0x70000085
)

// isMercury reports whether a section belongs to the second form of the code.
func isMercury(s *Section) bool {
	switch s.Type {
	case shtMercuryUserConst, shtMercuryPicConst, shtMercuryShared, shtMercuryText, shtMercuryRela, shtMercuryInfo, shtMercurySymtab:
		return true
	}
	return strings.HasPrefix(s.Name, ".nv.merc.") || strings.HasPrefix(s.Name, ".nv.capmerc.")
}

// dropMercury makes the sections of the second form inactive ones; their place in
// the table stays, as other sections and symbols are known by theirs. The file's
// promise that a driver can make other code of it is taken back.
func (e *CubinEditor) dropMercury(out []byte) {
	shoff := u64(e.data[40:])
	dropped := false
	for i := range e.file.sections {
		if isMercury(&e.file.sections[i]) {
			clear(out[shoff+uint64(i)*elfSectionSize : shoff+uint64(i+1)*elfSectionSize])
			dropped = true
		}
	}
	if !dropped {
		return
	}
	const opportunisticFinalization = 0x06 // EICOMPAT_ATTR_ENABLE_OPPORTUNISTIC_FINALIZATION
	index, ok := e.file.section(".nv.compat")
	if !ok {
		return
	}
	s := &e.file.sections[index]
	b, ok := cut(out, s.Offset, s.Size)
	for ok && len(b) >= 4 {
		n := 4
		switch AttrFormat(b[0]) {
		case AttrByte:
			if b[1] == opportunisticFinalization {
				b[2] = 0
			}
		case AttrSized:
			n += int(u16(b[2:]))
		}
		b = b[min(n, len(b)):]
	}
}

// plainAttrs are the attributes that name no instruction that must stay where it
// is. The others, also those that nobody has a name for, may: each of their words
// that could be the offset of one counts as that.
var plainAttrs = map[AttrID]bool{
	AttrMaxThreads: true, AttrParamCBank: true, AttrExterns: true, AttrReqThreads: true, AttrFrameSize: true,
	AttrMinStackSize: true, AttrKParamInfo: true, AttrParamSize: true, AttrMaxRegisters: true, AttrMaxStackSize: true,
	AttrRegCount: true, AttrToolkit: true, AttrCluster: true, AttrMaxClusterRank: true, AttrKParamInfoV2: true,
	AttrNumBarriers: true,
	0x01:            true, // PAD
	0x04:            true, // CTAIDZ_USED
	0x0c:            true, // CBANK_PARAM_OFFSETS
	0x18:            true, // SMEM_PARAM_SIZE
	0x1e:            true, // CRS_STACK_SIZE
	0x29:            true, // COOP_GROUP_MASK_REGIDS
	0x2b:            true, // WMMA_USED
	0x33:            true, // STATISTICS
	0x36:            true, // SW_WAR
	0x38:            true, // NUM_MBARRIERS
	0x3e:            true, // EXPLICIT_CLUSTER
	0x41:            true, // RESERVED_SMEM_USED
	0x42:            true, // RESERVED_SMEM_0_SIZE
	0x4a:            true, // VRC_CTA_INIT_COUNT
	0x4e:            true, // PERF_STATISTICS
	0x50:            true, // SPARSE_MMA_MASK
	0x51:            true, // TCGEN05_1CTA_USED
	0x52:            true, // TCGEN05_2CTA_USED
	0x54:            true, // REG_RECONFIG
	0x56:            true, // SANITIZE
	0x66:            true, // the source's language
	0x68:            true, // properties of the grid
}

// appendOffsets appends the offsets of instructions that an attribute may name.
func (a *Attr) appendOffsets(list []uint32, code int) []uint32 {
	if plainAttrs[a.ID] || a.Format != AttrSized {
		return list
	}
	known := int(a.ID) < len(attrNames) && attrNames[a.ID] != ""
	for i, w := range a.Words() {
		if uint64(w) >= uint64(code) || w%instructionSize != 0 {
			continue
		}
		// A zero may be the first instruction only where a list of offsets begins.
		if w == 0 && (i != 0 || !known) {
			continue
		}
		list = append(list, w)
	}
	return list
}
