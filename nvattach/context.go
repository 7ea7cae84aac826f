package nvattach

import (
	"fmt"

	"nvtrace/nvattach/object"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// The fields of a context, in the order of contextFields. Every context begins
// with those of a thread; include/nvtrace_gpu.bpf.h has them as C structures.
const (
	fieldGridX = iota
	fieldGridY
	fieldGridZ
	fieldBlockDimX
	fieldBlockDimY
	fieldBlockDimZ
	fieldBlockX
	fieldBlockY
	fieldBlockZ
	fieldThreadX
	fieldThreadY
	fieldThreadZ
	fieldSM
	fieldWarp
	fieldLane
	fieldSite
	fieldTime
	fieldClock
	threadFields // how many a thread has
)

// The fields behind those of a thread.
const (
	fieldAddr = threadFields + iota // mem
	fieldValue
	fieldSize
	fieldSpace
	fieldAccess
	fieldInsn // mem, insn, block
	fieldBlock
	fieldLine
	fieldFile
	fieldCount    // block
	fieldISA      // all kinds
	fieldValue2   // mem
	fieldGuarded  // insn
	fieldOperand0 // insn; the others follow
)

// mostOperands is how many operands of an instruction programs see.
const mostOperands = 4

const (
	fieldOperandEnd = fieldOperand0 + mostOperands
)

// A member is a field of a context with its number above.
type member struct {
	id   int
	name string
	size int
}

func threadMembers() []member {
	return []member{
		{fieldGridX, "grid.x", 4},
		{fieldGridY, "grid.y", 4},
		{fieldGridZ, "grid.z", 4},
		{fieldBlockDimX, "block_dim.x", 4},
		{fieldBlockDimY, "block_dim.y", 4},
		{fieldBlockDimZ, "block_dim.z", 4},
		{fieldBlockX, "block.x", 4},
		{fieldBlockY, "block.y", 4},
		{fieldBlockZ, "block.z", 4},
		{fieldThreadX, "thread.x", 4},
		{fieldThreadY, "thread.y", 4},
		{fieldThreadZ, "thread.z", 4},
		{fieldSM, "sm", 4},
		{fieldWarp, "warp", 4},
		{fieldLane, "lane", 4},
		{fieldSite, "site", 4},
		{fieldTime, "time", 8},
		{fieldClock, "clock", 8},
	}
}

// members returns the fields of the context of a kind of point.
func members(k object.Kind) []member {
	m := threadMembers()
	place := []member{{fieldInsn, "insn", 4}, {fieldBlock, "block_id", 4}, {fieldLine, "line", 4}, {fieldFile, "file", 4}}
	switch k {
	case object.KindMem:
		m = append(m, member{fieldAddr, "addr", 8}, member{fieldValue, "value", 8}, member{fieldSize, "size", 4}, member{fieldSpace, "space", 4}, member{fieldAccess, "kind", 4}, member{fieldInsn, "insn", 4}, member{fieldBlock, "block_id", 4}, member{fieldLine, "line", 4}, member{fieldFile, "file", 4})
	case object.KindInsn:
		m = append(m, place...)
	case object.KindBlock:
		m = append(m, append(place, member{fieldCount, "insns", 4})...)
	}
	m = append(m, member{fieldISA, "isa", 4})
	switch k {
	case object.KindMem:
		m = append(m, member{fieldValue2, "value2", 8})
	case object.KindInsn:
		m = append(m, member{fieldGuarded, "guarded", 4})
		for i := range mostOperands {
			m = append(m, member{fieldOperand0 + i, fmt.Sprintf("operand%d", i), 8})
		}
	}
	return m
}

// contextOf returns the context of a kind of point, and the numbers of its
// fields. Fields lie one behind the other at their alignment.
func contextOf(k object.Kind, text int) (*bpf.Context, []int) {
	if k == object.KindCapture {
		return &bpf.Context{Text: text}, nil
	}
	ctx := &bpf.Context{}
	var ids []int
	off := 0
	for _, m := range members(k) {
		off = (off + m.size - 1) / m.size * m.size
		ctx.Fields = append(ctx.Fields, bpf.Field{Name: m.name, Offset: off, Size: m.size, Uniform: uniform(m.id), Clock: m.id == fieldTime || m.id == fieldClock, Placed: knownAt(m.id), Alike: alike(m.id)})
		ids = append(ids, m.id)
		off += m.size
	}
	// Compilers read two members of 4 bytes at once where they copy them.
	for i, n := 0, len(ids); i+1 < n; i++ {
		a, b := &ctx.Fields[i], &ctx.Fields[i+1]
		if a.Size == 4 && b.Size == 4 && a.Offset%8 == 0 && b.Offset == a.Offset+4 {
			ctx.Fields = append(ctx.Fields, bpf.Field{Name: a.Name + ", " + b.Name, Offset: a.Offset, Size: 8, Uniform: a.Uniform && b.Uniform, Placed: a.Placed && b.Placed, Alike: min(a.Alike, b.Alike)})
			ids = append(ids, fieldPair+ids[i]*fieldPair+ids[i+1])
		}
	}
	return ctx, ids
}

// ContextFields returns the fields of the context of a kind of point.
func ContextFields(k object.Kind) []object.ContextField {
	c, ids := contextOf(k, 0)
	var list []object.ContextField
	for i, f := range c.Fields {
		if ids != nil && ids[i] < fieldPair {
			list = append(list, object.ContextField{Name: f.Name, Offset: f.Offset, Size: f.Size})
		}
	}
	return list
}

// uniform reports whether all threads of a warp at a place see the same in a field.
func uniform(id int) bool {
	switch id {
	case fieldThreadX, fieldThreadY, fieldThreadZ, fieldLane, fieldTime, fieldClock, fieldAddr, fieldValue, fieldValue2:
		return false
	case fieldSM, fieldWarp: // they may change between two threads' looks
		return false
	}
	return id < fieldOperand0 || id >= fieldOperandEnd
}

// fieldPair and more are the numbers of two fields of 4 bytes that are read at
// once: fieldPair + first*fieldPair + second.
const fieldPair = 64

// pair writes the code of two fields in one.
func (p *place) pair(g *bpf.Gen, id int) (ptx.Arg, error) {
	lo, err := p.field(g, (id-fieldPair)/fieldPair)
	if err != nil {
		return ptx.Arg{}, err
	}
	hi, err := p.field(g, (id-fieldPair)%fieldPair)
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
	spaceGeneric = 0
	spaceGlobal  = 1
	spaceShared  = 2
	spaceLocal   = 3
	spaceConst   = 4
	spaceParam   = 5

	accessLoad   = 1
	accessStore  = 2
	accessAtomic = 3
	accessAsync  = 4
)

// Values of the field isa; nvtrace_gpu.bpf.h has them as an enum.
const (
	isaPTX  = 1
	isaSASS = 2
)

// place is one place of a kernel that gets programs, with what their contexts say
// of it.
type place struct {
	stmt   uint32 // statement of the module
	number uint32 // of the place in the plan, from 1 on
	insn   uint32 // instructions of the function before it
	block  uint32
	insns  uint32 // of the block
	line   uint32
	file   uint32
	access *ptx.Access
	addr   string // 64-bit register with the address
	value  string // 64-bit register with the value, "" if it is not known
	value2 string // and with the 8 bytes behind it
	// operands are 64-bit registers with the values of the instruction's operands, "" of those that
	// have none; guarded says that it has a guard.
	operands [mostOperands]string
	guarded  bool
	size     uint32
	sites    *ptx.Sites
	text     string // of the instruction
	setup    string // code before the program's that puts the access's address and value into registers
	given    *given // of a Body: what comes as parameters
	sums     []int64
	slots    []int // places of the keys that the program has here, by use
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

// field writes the code of a context's field.
func (p *place) field(g *bpf.Gen, id int) (ptx.Arg, error) {
	switch {
	case id >= fieldPair:
		return p.pair(g, id)
	case id == fieldTime || id == fieldClock:
		r := g.Reg(ptx.B64)
		g.Mov(ptx.U64, r, ptx.Name(specials[id]))
		return r, nil
	case id < threadFields && id != fieldSite:
		r := g.Reg(ptx.B32)
		g.Mov(ptx.U32, r, ptx.Name(specials[id]))
		w := g.Reg(ptx.B64)
		g.Cvt("", ptx.U64, ptx.U32, w, r)
		return w, nil
	case id == fieldISA && p.given != nil:
		return ptx.Imm(isaSASS), nil
	case id == fieldISA:
		return ptx.Imm(isaPTX), nil
	case id == fieldGuarded && p.guarded:
		return ptx.Imm(1), nil
	case id == fieldGuarded:
		return ptx.Imm(0), nil
	case id == fieldValue2:
		return registerOr0(p.value2), nil
	case id >= fieldOperand0 && id < fieldOperandEnd:
		return registerOr0(p.operands[id-fieldOperand0]), nil
	case id == fieldValue && p.value != "":
		return registerOr0(p.value), nil
	case p.given != nil:
		return p.given.field(id), nil
	}
	switch id {
	case fieldAddr:
		return registerOr0(p.addr), nil
	case fieldValue:
		return ptx.Imm(0), nil
	}
	v, ok := p.numbers()[id]
	if !ok {
		return ptx.Arg{}, fmt.Errorf("BUG: no context field %d", id)
	}
	return ptx.Imm(int64(v)), nil
}

// numbers are the fields that are numbers at a place in PTX.
func (p *place) numbers() map[int]uint32 {
	return map[int]uint32{
		fieldSite: p.number, fieldSize: p.size, fieldSpace: p.space(), fieldAccess: p.kind(),
		fieldInsn: p.insn, fieldBlock: p.block, fieldLine: p.line, fieldFile: p.file, fieldCount: p.insns,
	}
}

func (p *place) space() uint32 {
	if p.access == nil {
		return 0
	}
	switch p.access.Space {
	case ptx.SpaceGlobal:
		return spaceGlobal
	case ptx.SpaceShared:
		return spaceShared
	case ptx.SpaceLocal:
		return spaceLocal
	case ptx.SpaceConst:
		return spaceConst
	case ptx.SpaceParam:
		return spaceParam
	}
	return spaceGeneric
}

func (p *place) kind() uint32 {
	if p.access == nil {
		return 0
	}
	switch p.access.Class {
	case ptx.AccessLoad:
		return accessLoad
	case ptx.AccessStore:
		return accessStore
	case ptx.AccessAtomic, ptx.AccessReduce:
		return accessAtomic
	}
	return accessAsync
}

// alike returns which threads of a launch see the same in a field.
func alike(id int) bpf.Extent {
	switch {
	case id <= fieldBlockDimZ || knownAt(id):
		return bpf.OfGrid
	case id <= fieldBlockZ:
		return bpf.OfBlock
	}
	return bpf.OfThread
}

// knownAt reports whether a field is a number that is known where a program is put.
func knownAt(id int) bool {
	switch id {
	case fieldSite, fieldSize, fieldSpace, fieldAccess, fieldInsn, fieldBlock, fieldLine, fieldFile, fieldCount, fieldISA, fieldGuarded:
		return true
	}
	return false
}

// number returns a field that is a number at a place in PTX.
func (p *place) numberOf(id int) uint64 {
	switch id {
	case fieldISA:
		return isaPTX
	case fieldGuarded:
		if p.guarded {
			return 1
		}
		return 0
	}
	return uint64(p.numbers()[id])
}
