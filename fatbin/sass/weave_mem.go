package sass

import "fmt"

// An access is where a memory instruction finds its operands.
type access struct {
	wide    bool  // the address has 64 bits
	reg     uint8 // the address, the first of two registers where it is wide; RZ for none
	uniform int   // uniform register (two where wide) to be added; -1 for none
	imm     int32 // to be added
	data    int   // first register of what is stored; -1 for none
	words   int   // registers of it
}

// Access says what a memory instruction does.
type Access struct {
	Space  Space
	Load   bool
	Store  bool
	Atomic bool // reads and writes at once; Load says whether the old value is returned
	Size   int  // bytes of a thread
}

// Space is a kind of memory.
type Space uint8

// The kinds of memory that instructions name.
const (
	Generic Space = iota
	Global
	SharedMemory
	LocalMemory
)

// accesses are what memory instructions do, by name.
var accesses = map[string]Access{
	"LD":    {Space: Generic, Load: true},
	"LDG":   {Space: Global, Load: true},
	"LDS":   {Space: SharedMemory, Load: true},
	"LDL":   {Space: LocalMemory, Load: true},
	"ST":    {Space: Generic, Store: true},
	"STG":   {Space: Global, Store: true},
	"STS":   {Space: SharedMemory, Store: true},
	"STL":   {Space: LocalMemory, Store: true},
	"ATOM":  {Space: Generic, Load: true, Store: true, Atomic: true},
	"ATOMG": {Space: Global, Load: true, Store: true, Atomic: true},
	"ATOMS": {Space: SharedMemory, Load: true, Store: true, Atomic: true},
	"RED":   {Space: Global, Store: true, Atomic: true},
	"REDG":  {Space: Global, Store: true, Atomic: true},
	// From global memory; where it goes to in shared memory is another address.
	"LDGSTS": {Space: Global, Load: true},
	// Each address is that of a row, which several threads get parts of.
	opNameLDSM: {Space: SharedMemory, Load: true},
}

// Access says what a memory instruction does; false if it is none that accesses memory
// thread by thread, at an address in a register: loads, stores, atomic operations,
// copies from global to shared memory, and loads of matrices by rows.
func (i *Inst) Access() (Access, bool) {
	a, ok := accesses[i.Name()]
	if !ok {
		return a, false
	}
	sizes := [8]int{1, 1, 2, 2, 4, 8, 16, 16}
	a.Size = sizes[i.Word.Bits(73, 3)]
	switch {
	case a.Atomic:
		a.Size = i.atomicSize()
	case i.loadsRows():
		a.Size = rowBytes
	case i.Copies() && i.Arch.trait().wideForms:
		a.Size = [4]int{4, 8, 16}[i.Word.Bits(74, 2)]
	case i.Copies():
		a.Size = [8]int{4: 4, 5: 8, 6: 16}[i.Word.Bits(73, 3)]
	}
	return a, a.Size != 0
}

// Copies reports whether the instruction copies from global to shared memory.
func (i *Inst) Copies() bool { return i.Name() == "LDGSTS" }

const opNameLDSM = "LDSM"

// rowBytes is how many bytes of shared memory a row of a matrix takes.
const rowBytes = 16

// loadsRows reports whether the instruction loads matrices from shared memory.
func (i *Inst) loadsRows() bool { return i.Name() == opNameLDSM }

// Rows reports whether the instruction loads matrices from shared memory (LDSM, PTX's ldmatrix),
// and in how many threads of a warp, the first, there is the address of a row of 16 bytes: those of others
// are not used. It is 0 of the forms that leave bytes of a row out.
func (i *Inst) Rows() (threads int, ok bool) {
	if !i.loadsRows() {
		return 0, false
	}
	const most = 32
	matrices, form := i.Word.Bits(72, 2), i.Word.Bits(78, 3)
	if !i.Arch.trait().wideForms {
		form &= 3
	}
	switch form {
	case 0, 1: // .M88, .MT88
		threads = 8 << matrices
	case 4: // .MT1616
		threads = 16 << matrices
	}
	if threads > most {
		threads = 0
	}
	return threads, true
}

// opLDGSTS is the opcode of copies from an address in registers.
const opLDGSTS = 0xfae

// Bits of such copies: a predicate, and behind it its negation, that says whether there is a source; and
// whether as many bytes are filled with zeros as the address is above a multiple of the size.
const (
	sourcePred = 87
	zeroFill   = 82
)

// fills returns the size of a copy that may read fewer bytes than it writes; false of all else.
func (i *Inst) fills() (size int, ok bool) {
	if !i.Copies() || i.Word.Bits(zeroFill, 1) == 0 {
		return 0, false
	}
	a, _ := i.Access()
	return a.Size, true
}

// AccessText is a load or store as PTX has them, of the names of machine code: "@!P0
// ld.global.b64 R4, [R2+16];". False of all else, and where the address is in a form of its own.
func (i *Inst) AccessText() (string, bool) {
	a, ok := i.Access()
	if !ok || a.Atomic || a.Load == a.Store || i.Copies() || i.loadsRows() {
		return "", false
	}
	m, ok := i.access()
	if !ok {
		return "", false
	}
	data := m.data
	for _, o := range i.Operands(nil) {
		if a.Load && o.Kind == GPR && o.Write {
			data = int(o.Reg)
		}
	}
	var b []byte
	if pred, negated, guarded := i.Guard(); guarded {
		b = append(b, '@')
		if negated {
			b = append(b, '!')
		}
		b = append(appendReg(b, i.guardKind(), pred, true), ' ')
	}
	name := "ld"
	if a.Store {
		name = "st"
	}
	space := [...]string{Global: ".global", SharedMemory: ".shared", LocalMemory: ".local"}[a.Space]
	b = fmt.Appendf(b, "%s%s.b%d ", name, space, 8*a.Size)
	register := func() {
		if data < 0 {
			data = RZ
		}
		b = appendReg(b, GPR, uint8(data), data == RZ)
	}
	if a.Load {
		register()
		b = append(b, ", "...)
	}
	b = append(b, '[')
	switch {
	case m.uniform < 0:
		b = appendReg(b, GPR, m.reg, m.reg == RZ)
	case m.reg != RZ:
		b = append(appendReg(b, GPR, m.reg, false), '+')
		fallthrough
	default:
		b = appendReg(b, UGPR, uint8(m.uniform), false)
	}
	if m.imm != 0 {
		b = fmt.Appendf(b, "%+d", m.imm)
	}
	b = append(b, ']')
	if a.Store {
		b = append(b, ", "...)
		register()
	}
	return string(append(b, ';')), true
}

// atomicSize takes the size from the registers of the data: its type is coded in other
// ways from operation to operation.
func (i *Inst) atomicSize() int {
	for _, o := range i.Operands(nil) {
		if o.Kind == GPR && o.Pos == 32 {
			return 4 * int(o.Count)
		}
	}
	return 4 // of RZ
}

// Loads reports whether [Weaver.After] can tell what the instruction got from memory.
func (i *Inst) Loads() bool {
	_, _, ok := i.result()
	return ok
}

// result returns the registers that a load or an atomic operation writes, RZ if it throws
// away what it gets; false of all else.
func (i *Inst) result() (reg uint8, words int, ok bool) {
	if a, ok := i.Access(); !ok || !a.Load || i.Copies() || i.loadsRows() {
		return 0, 0, false
	}
	for _, o := range i.Operands(nil) {
		if o.Kind == GPR && o.Write {
			return o.Reg, int(o.Count), true
		}
	}
	return RZ, 0, true
}

// access finds the operands of an instruction that accesses memory; false if its address is
// in a form of its own.
func (i *Inst) access() (*access, bool) {
	a, _ := i.Access()
	m := &access{reg: RZ, uniform: -1, data: -1, imm: int32(signed(i.Word.Bits(40, 24), 24))}
	m.wide = a.Space == Generic || a.Space == Global
	if i.Copies() { // behind it is what is added to the address in shared memory
		if i.Word.Opcode() != opLDGSTS {
			return nil, false
		}
		m.imm = int32(signed(i.Word.Bits(32, 12), 12))
	}
	var uniforms []Operand
	addressWords := 0
	for _, o := range i.Operands(nil) {
		switch {
		case o.Guard || !o.Read:
		case o.Kind == UGPR:
			uniforms = append(uniforms, o)
		case o.Kind == GPR && o.Pos == 24:
			m.reg, addressWords = o.Reg, int(o.Count)
		case o.Kind == GPR && o.Pos == 32 && a.Store:
			m.data, m.words = int(o.Reg), int(o.Count)
		}
	}
	switch {
	case m.wide && addressWords == 2:
		// From sm_80 on there is a descriptor in uniform registers, which is no part of
		// the address.
		if len(uniforms) > 1 || len(uniforms) == 1 && !i.Arch.trait().descriptors {
			return nil, false
		}
	case m.wide && addressWords == 0 && len(uniforms) == 0:
	case m.wide && addressWords == 0 && len(uniforms) == 1 && !i.Arch.trait().descriptors && m.imm == 0:
		m.uniform = int(uniforms[0].Reg)
	case m.wide:
		return nil, false
	default:
		// Shared and local memory: a register that may be scaled, and a uniform one.
		scaled := a.Space == SharedMemory && !a.Atomic && !i.loadsRows() && i.Word.Bits(78, 2) != 0
		if addressWords > 1 || len(uniforms) > 1 || scaled && addressWords == 1 {
			return nil, false
		}
		if len(uniforms) == 1 {
			m.uniform = int(uniforms[0].Reg)
		}
	}
	return m, true
}
