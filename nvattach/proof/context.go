package proof

import (
	"fmt"

	"nvtrace/nvattach/object"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// The fields of a context, in the order of contextFields. Every context begins
// with those of a thread; include/nvtrace_gpu.bpf.h has them as C structures.
const (
	FieldGridX = iota
	FieldGridY
	FieldGridZ
	FieldBlockDimX
	FieldBlockDimY
	FieldBlockDimZ
	FieldBlockX
	FieldBlockY
	FieldBlockZ
	FieldThreadX
	FieldThreadY
	FieldThreadZ
	FieldSM
	FieldWarp
	FieldLane
	FieldSite
	FieldTime
	FieldClock
	threadFields // how many a thread has
)

// The fields behind those of a thread.
const (
	FieldAddr = threadFields + iota // mem
	FieldValue
	FieldSize
	FieldSpace
	FieldAccess
	FieldInsn // mem, insn, block
	FieldBlock
	FieldLine
	FieldFile
	FieldCount    // block
	FieldISA      // all kinds
	FieldValue2   // mem
	FieldGuarded  // insn
	FieldOperand0 // insn; the others follow
)

// MostOperands is how many operands of an instruction programs see.
const MostOperands = 4

// FieldOperandEnd is behind the last operand.
const FieldOperandEnd = FieldOperand0 + MostOperands

// A member is a field of a context with its number above.
type member struct {
	id   int
	name string
	size int
}

func threadMembers() []member {
	return []member{
		{FieldGridX, "grid.x", 4},
		{FieldGridY, "grid.y", 4},
		{FieldGridZ, "grid.z", 4},
		{FieldBlockDimX, "block_dim.x", 4},
		{FieldBlockDimY, "block_dim.y", 4},
		{FieldBlockDimZ, "block_dim.z", 4},
		{FieldBlockX, "block.x", 4},
		{FieldBlockY, "block.y", 4},
		{FieldBlockZ, "block.z", 4},
		{FieldThreadX, "thread.x", 4},
		{FieldThreadY, "thread.y", 4},
		{FieldThreadZ, "thread.z", 4},
		{FieldSM, "sm", 4},
		{FieldWarp, "warp", 4},
		{FieldLane, "lane", 4},
		{FieldSite, "site", 4},
		{FieldTime, "time", 8},
		{FieldClock, "clock", 8},
	}
}

// members returns the fields of the context of a kind of point.
func members(k object.Kind) []member {
	m := threadMembers()
	place := []member{{FieldInsn, "insn", 4}, {FieldBlock, "block_id", 4}, {FieldLine, "line", 4}, {FieldFile, "file", 4}}
	switch k {
	case object.KindMem:
		m = append(m, member{FieldAddr, "addr", 8}, member{FieldValue, "value", 8}, member{FieldSize, "size", 4}, member{FieldSpace, "space", 4}, member{FieldAccess, "kind", 4}, member{FieldInsn, "insn", 4}, member{FieldBlock, "block_id", 4}, member{FieldLine, "line", 4}, member{FieldFile, "file", 4})
	case object.KindInsn:
		m = append(m, place...)
	case object.KindBlock:
		m = append(m, append(place, member{FieldCount, "insns", 4})...)
	}
	m = append(m, member{FieldISA, "isa", 4})
	switch k {
	case object.KindMem:
		m = append(m, member{FieldValue2, "value2", 8})
	case object.KindInsn:
		m = append(m, member{FieldGuarded, "guarded", 4})
		for i := range MostOperands {
			m = append(m, member{FieldOperand0 + i, fmt.Sprintf("operand%d", i), 8})
		}
	}
	return m
}

// ContextOf returns the context of a kind of point, and the numbers of its
// fields. Fields lie one behind the other at their alignment.
func ContextOf(k object.Kind, text int) (*bpf.Context, []int) {
	if k == object.KindCapture {
		return &bpf.Context{Text: text}, nil
	}
	ctx := &bpf.Context{}
	var ids []int
	off := 0
	for _, m := range members(k) {
		off = (off + m.size - 1) / m.size * m.size
		ctx.Fields = append(ctx.Fields, bpf.Field{Name: m.name, Offset: off, Size: m.size, Uniform: uniform(m.id), Clock: m.id == FieldTime || m.id == FieldClock, Placed: knownAt(m.id), Below: below(m.id), Alike: alike(m.id)})
		ids = append(ids, m.id)
		off += m.size
	}
	// Compilers read two members of 4 bytes at once where they copy them.
	for i, n := 0, len(ids); i+1 < n; i++ {
		a, b := &ctx.Fields[i], &ctx.Fields[i+1]
		if a.Size == 4 && b.Size == 4 && a.Offset%8 == 0 && b.Offset == a.Offset+4 {
			ctx.Fields = append(ctx.Fields, bpf.Field{Name: a.Name + ", " + b.Name, Offset: a.Offset, Size: 8, Uniform: a.Uniform && b.Uniform, Placed: a.Placed && b.Placed, Alike: min(a.Alike, b.Alike)})
			ids = append(ids, FieldPair+ids[i]*FieldPair+ids[i+1])
		}
	}
	return ctx, ids
}

// below returns what a field is less than, if that is little.
func below(id int) int {
	switch id {
	case FieldLane:
		return 32
	case FieldWarp: // PTX ISA: of %nwarpid, which is 64 on all GPUs
		return 64
	case FieldSM: // of those with few enough, see HasPlaces
		return bpf.MostSlots
	}
	return 0
}

// ContextFields returns the fields of the context of a kind of point.
func ContextFields(k object.Kind) []object.ContextField {
	c, ids := ContextOf(k, 0)
	var list []object.ContextField
	for i, f := range c.Fields {
		if ids != nil && ids[i] < FieldPair {
			list = append(list, object.ContextField{Name: f.Name, Offset: f.Offset, Size: f.Size})
		}
	}
	return list
}

// uniform reports whether all threads of a warp at a place see the same in a field.
func uniform(id int) bool {
	switch id {
	case FieldThreadX, FieldThreadY, FieldThreadZ, FieldLane, FieldTime, FieldClock, FieldAddr, FieldValue, FieldValue2:
		return false
	case FieldSM, FieldWarp: // they may change between two threads' looks
		return false
	}
	return id < FieldOperand0 || id >= FieldOperandEnd
}

// FieldPair and more are the numbers of two fields of 4 bytes that are read at
// once: fieldPair + first*fieldPair + second.
const FieldPair = 64

// pair writes the code of two fields in one.
func (p *Place) pair(g *bpf.Gen, id int) (ptx.Arg, error) {
	lo, err := p.Field(g, (id-FieldPair)/FieldPair)
	if err != nil {
		return ptx.Arg{}, err
	}
	hi, err := p.Field(g, (id-FieldPair)%FieldPair)
	if err != nil {
		return ptx.Arg{}, err
	}
	// Constants come as numbers, which a shift does not take in every place.
	r, w := g.Reg(ptx.B64), g.Reg(ptx.B64)
	g.Mov(ptx.B64, w, hi)
	g.Shl(ptx.B64, w, w, ptx.Imm(32))
	g.Mov(ptx.B64, r, lo)
	g.Or(ptx.B64, r, r, w)
	return r, nil
}

// Values of a memory access's space and kind; nvtrace_gpu.bpf.h has them as enums.
const (
	SpaceGeneric = 0
	SpaceGlobal  = 1
	SpaceShared  = 2
	SpaceLocal   = 3
	SpaceConst   = 4
	SpaceParam   = 5

	AccessLoad   = 1
	AccessStore  = 2
	AccessAtomic = 3
	AccessAsync  = 4
)

// Values of the field isa; nvtrace_gpu.bpf.h has them as an enum.
const (
	ISAPTX  = 1
	ISASASS = 2
)

// Place is one place of a kernel that gets programs, with what their contexts say
// of it.
type Place struct {
	Stmt   uint32 // statement of the module
	Number uint32 // of the place in the plan, from 1 on
	Insn   uint32 // instructions of the function before it
	Block  uint32
	Insns  uint32 // of the block
	Line   uint32
	File   uint32
	Access *ptx.Access
	Addr   string // 64-bit register with the address
	Value  string // 64-bit register with the value, "" if it is not known
	Value2 string // and with the 8 bytes behind it
	// Operands are 64-bit registers with the values of the instruction's operands, "" of those that
	// have none; guarded says that it has a guard.
	Operands [MostOperands]string
	Guarded  bool
	Size     uint32
	Sites    *ptx.Sites
	Text     string // of the instruction
	Setup    string // code before the program's that puts the access's address and value into registers
	Given    *Given // of a Body: what comes as parameters
	Sums     []int64
	Slots    []int // places of the keys that the program has here, by use
}

// specials are the special registers of the fields that are one.
var specials = [threadFields]string{
	"%nctaid.x", "%nctaid.y", "%nctaid.z", "%ntid.x", "%ntid.y", "%ntid.z",
	"%ctaid.x", "%ctaid.y", "%ctaid.z", "%tid.x", "%tid.y", "%tid.z",
	"%smid", "%warpid", "%laneid", "",
	"%globaltimer", "%clock64",
}

// registerOr0 is a 64-bit register, or 0 if there is none.
func registerOr0(reg string) ptx.Arg {
	if reg == "" {
		return ptx.Imm(0)
	}
	return ptx.TypedReg(ptx.B64, reg)
}

// Field writes the code of a context's field.
func (p *Place) Field(g *bpf.Gen, id int) (ptx.Arg, error) {
	switch {
	case id >= FieldPair:
		return p.pair(g, id)
	case id == FieldTime || id == FieldClock:
		r := g.Reg(ptx.B64)
		g.Mov(ptx.U64, r, ptx.Name(specials[id]))
		return r, nil
	case id < threadFields && id != FieldSite:
		r := g.Reg(ptx.B32)
		g.Mov(ptx.U32, r, ptx.Name(specials[id]))
		w := g.Reg(ptx.B64)
		g.Cvt("", ptx.U64, ptx.U32, w, r)
		return w, nil
	case id == FieldISA && p.Given != nil:
		return ptx.Imm(ISASASS), nil
	case id == FieldISA:
		return ptx.Imm(ISAPTX), nil
	case id == FieldGuarded && p.Guarded:
		return ptx.Imm(1), nil
	case id == FieldGuarded:
		return ptx.Imm(0), nil
	case id == FieldValue2:
		return registerOr0(p.Value2), nil
	case id >= FieldOperand0 && id < FieldOperandEnd:
		return registerOr0(p.Operands[id-FieldOperand0]), nil
	case id == FieldValue && p.Value != "":
		return registerOr0(p.Value), nil
	case p.Given != nil:
		return p.Given.field(id), nil
	}
	switch id {
	case FieldAddr:
		return registerOr0(p.Addr), nil
	case FieldValue:
		return ptx.Imm(0), nil
	}
	v, ok := p.numbers()[id]
	if !ok {
		return ptx.Arg{}, fmt.Errorf("BUG: no context field %d", id)
	}
	return ptx.Imm(int64(v)), nil
}

// numbers are the fields that are numbers at a place in PTX.
func (p *Place) numbers() map[int]uint32 {
	return map[int]uint32{
		FieldSite: p.Number, FieldSize: p.Size, FieldSpace: p.space(), FieldAccess: p.kind(),
		FieldInsn: p.Insn, FieldBlock: p.Block, FieldLine: p.Line, FieldFile: p.File, FieldCount: p.Insns,
	}
}

func (p *Place) space() uint32 {
	if p.Access == nil {
		return 0
	}
	switch p.Access.Space {
	case ptx.SpaceGlobal:
		return SpaceGlobal
	case ptx.SpaceShared:
		return SpaceShared
	case ptx.SpaceLocal:
		return SpaceLocal
	case ptx.SpaceConst:
		return SpaceConst
	case ptx.SpaceParam:
		return SpaceParam
	}
	return SpaceGeneric
}

func (p *Place) kind() uint32 {
	if p.Access == nil {
		return 0
	}
	switch p.Access.Class {
	case ptx.AccessLoad:
		return AccessLoad
	case ptx.AccessStore:
		return AccessStore
	case ptx.AccessAtomic, ptx.AccessReduce:
		return AccessAtomic
	}
	return AccessAsync
}

// alike returns which threads of a launch see the same in a field.
func alike(id int) bpf.Extent {
	switch {
	case id <= FieldBlockDimZ || knownAt(id):
		return bpf.OfGrid
	case id <= FieldBlockZ:
		return bpf.OfBlock
	}
	return bpf.OfThread
}

// knownAt reports whether a field is a number that is known where a program is put.
func knownAt(id int) bool {
	switch id {
	case FieldSite, FieldSize, FieldSpace, FieldAccess, FieldInsn, FieldBlock, FieldLine, FieldFile, FieldCount, FieldISA, FieldGuarded:
		return true
	}
	return false
}

// NumberOf returns a field that is a number at a place in PTX.
func (p *Place) NumberOf(id int) uint64 {
	switch id {
	case FieldISA:
		return ISAPTX
	case FieldGuarded:
		if p.Guarded {
			return 1
		}
		return 0
	}
	return uint64(p.numbers()[id])
}
