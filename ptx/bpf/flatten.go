package bpf

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/cilium/ebpf/asm"
)

// An opKind is what an op does.
type opKind uint8

const (
	opALU    opKind = iota // dst = dst alu src
	opConst                // dst = imm
	opMap                  // dst = map m
	opDirect               // dst = address of byte imm of map m's value
	opLoad                 // dst = *(src+off)
	opStore                // *(dst+off) = src
	opAtomic               // *(dst+off) atomically
	opJump                 // conditional
	opGoto                 // to target
	opMay                  // may_goto: to target when the fuel is spent
	opHelper               // call of a helper
	opEnter                // call of a function, whose body follows
	opLeave                // return from it, to target
	opExit                 // end of the program
)

// An op is one instruction, decoded. A program is a sequence of them in which
// the body of a called function stands behind the call.
type op struct {
	kind   opKind
	alu    asm.ALUOp // opALU, with SDiv, SMod, MovSX8 … for those
	jump   asm.JumpOp
	atomic asm.AtomicOp
	depth  int8 // of the function it belongs to
	dst    uint8
	src    uint8
	reg    bool // the second operand is src, not imm
	w32    bool // ALU or comparison of 32 bits
	signed bool // a load that extends the sign
	sync   bool // a load that acquires, a store that releases
	size   uint8
	off    int16
	width  uint8 // opALU: bits of a byte swap
	big    bool  // opALU: swap to big endian or always, not to little endian
	m      int32 // map
	imm    int64
	target int // op index
	at     int // index into Program.Insns
	helper *Helper
	id     int32 // of the helper
}

// A flattener turns a Program into ops.
type flattener struct {
	p       *Program
	env     *Env
	limit   int
	symbols map[string]int
	raw     map[int]int // raw offset to instruction
	offsets []int       // raw offset of each instruction, and of the end
	starts  []int       // of functions, ascending
	ops     []op
}

// refuse returns a RefusedError for instruction i.
func (p *Program) refuse(i int, hint, format string, args ...any) *RefusedError {
	e := &RefusedError{Program: p.Name, Insn: i, Reason: fmt.Sprintf(format, args...), Hint: hint}
	if i >= 0 && i < len(p.Insns) {
		e.Text = fmt.Sprintf("%v", p.Insns[i])
		if name, ok := strings.CutPrefix(e.Text, "Call Fn"); ok {
			e.Text = "Call " + cName("Fn"+name)
		}
		e.Source, e.Position = p.source(i)
	}
	return e
}

// source returns the source line of instruction i and where it is, "" for what is not
// known. Compilers name a line at its first instruction, so the line is that of the
// nearest instruction before i that has one, in the same function.
func (p *Program) source(i int) (line, position string) {
	for ; i >= 0; i-- {
		if src := p.Insns[i].Source(); src != nil {
			at, ok := src.(interface {
				FileName() string
				LineNumber() uint32
			})
			if ok && at.FileName() != "" && at.LineNumber() != 0 {
				position = fmt.Sprintf("%s:%d", path.Base(at.FileName()), at.LineNumber())
			}
			return src.String(), position
		}
		if p.Insns[i].Symbol() != "" {
			break
		}
	}
	return "", ""
}

func flatten(p *Program, env *Env) ([]op, error) {
	f := &flattener{p: p, env: env, limit: env.MaxInsns, symbols: map[string]int{}, raw: map[int]int{}}
	if f.limit <= 0 {
		f.limit = DefaultMaxInsns
	}
	if len(p.Insns) == 0 {
		return nil, p.refuse(-1, "", "it has no instructions")
	}
	if len(p.Insns) > 64*f.limit { // the program and all that it calls, called or not
		return nil, p.refuse(-1, "", "it has %d instructions; at most %d are compiled", len(p.Insns), f.limit)
	}
	at := 0
	for i := range p.Insns {
		ins := &p.Insns[i]
		if s := ins.Symbol(); s != "" {
			if _, twice := f.symbols[s]; twice {
				return nil, p.refuse(i, "", "symbol %q is defined twice", s)
			}
			f.symbols[s] = i
		}
		f.raw[at] = i
		f.offsets = append(f.offsets, at)
		at += int(ins.Width())
	}
	f.offsets = append(f.offsets, at)
	if err := f.functions(); err != nil {
		return nil, err
	}
	if err := f.inline(0, 0, nil); err != nil {
		return nil, err
	}
	return f.ops, nil
}

// functions finds where functions start.
func (f *flattener) functions() error {
	f.starts = []int{0}
	for i := range f.p.Insns {
		if f.p.Insns[i].IsFunctionCall() {
			to, err := f.callee(i)
			if err != nil {
				return err
			}
			f.starts = append(f.starts, to)
		}
	}
	slices.Sort(f.starts)
	f.starts = slices.Compact(f.starts)
	return nil
}

// callee returns the instruction that call i goes to.
func (f *flattener) callee(i int) (int, error) {
	ins := &f.p.Insns[i]
	if ref := ins.Reference(); ref != "" {
		to, ok := f.symbols[ref]
		if !ok {
			return 0, f.p.refuse(i, "the headers declare all that can be called", "calls %s, which the object does not define", ref)
		}
		return to, nil
	}
	to, ok := f.jumpTo(i, ins.Constant)
	if !ok {
		return 0, f.p.refuse(i, "", "calls what is no instruction of the program")
	}
	return to, nil
}

// jumpTo returns the instruction at a raw offset behind instruction i.
func (f *flattener) jumpTo(i int, off int64) (int, bool) {
	if off < math.MinInt32 || off > math.MaxInt32 {
		return 0, false
	}
	to, ok := f.raw[f.offsets[i+1]+int(off)]
	return to, ok
}

// inline appends the function that starts at instruction start.
func (f *flattener) inline(start, depth int, chain []int) error {
	p := f.p
	if slices.Contains(chain, start) {
		return p.refuse(start, "write it as a loop", "the function calls itself")
	}
	chain = append(chain, start)
	n, _ := slices.BinarySearch(f.starts, start)
	end := len(p.Insns)
	if n+1 < len(f.starts) {
		end = f.starts[n+1]
	}
	index := make([]int, end-start) // instruction to op
	first := len(f.ops)
	for i := start; i < end; i++ {
		index[i-start] = len(f.ops)
		if len(f.ops) >= f.limit {
			return p.refuse(-1, "raise the limit, or make it smaller", "it has more than %d instructions with the functions that it calls", f.limit)
		}
		o, err := f.decode(i)
		if err != nil {
			return err
		}
		o.at, o.depth = i, int8(depth)
		call := o.kind == opEnter
		f.ops = append(f.ops, o)
		if !call {
			continue
		}
		if depth+1 >= MaxCallDepth {
			return p.refuse(i, "", "more than %d functions are active at once", MaxCallDepth)
		}
		body := len(f.ops)
		to, err := f.callee(i)
		if err != nil {
			return err
		}
		if err := f.inline(to, depth+1, chain); err != nil {
			return err
		}
		for k := body; k < len(f.ops); k++ {
			if f.ops[k].kind == opExit && f.ops[k].depth == int8(depth+1) {
				f.ops[k].kind, f.ops[k].target = opLeave, len(f.ops)
			}
		}
	}
	return f.link(start, end, first, depth, index)
}

// link turns the jump targets of one function's own ops from instructions into
// ops, and checks that control cannot fall out of the function.
func (f *flattener) link(start, end, first, depth int, index []int) error {
	last := 0
	for k := first; k < len(f.ops); k++ {
		o := &f.ops[k]
		if o.depth != int8(depth) {
			continue
		}
		last = k
		switch o.kind {
		case opJump, opGoto, opMay:
			if o.target < start || o.target >= end {
				return f.p.refuse(o.at, "", "jumps out of its function")
			}
			o.target = index[o.target-start]
		}
	}
	switch o := &f.ops[last]; o.kind {
	case opExit, opGoto:
	default:
		return f.p.refuse(o.at, "", "the function does not end with this instruction, but there is none behind it")
	}
	return nil
}

// decode decodes instruction i; jump targets are instructions still.
func (f *flattener) decode(i int) (op, error) {
	ins := &f.p.Insns[i]
	if ins.Dst > asm.R10 || ins.Src > asm.R10 {
		return op{}, f.p.refuse(i, "", "there is no register above r10")
	}
	o := op{dst: uint8(ins.Dst), src: uint8(ins.Src), off: ins.Offset, imm: ins.Constant}
	var err error
	switch ins.OpCode.Class() {
	case asm.ALUClass, asm.ALU64Class:
		err = f.decodeALU(i, &o)
	case asm.JumpClass, asm.Jump32Class:
		err = f.decodeJump(i, &o)
	case asm.LdClass:
		err = f.decodeConst(i, &o)
	default:
		err = f.decodeMemory(i, &o)
	}
	if err != nil {
		return op{}, err
	}
	switch o.kind {
	case opALU, opConst, opMap, opDirect, opLoad:
		if o.dst == 10 {
			return op{}, f.p.refuse(i, "", "r10 is read-only")
		}
	}
	return o, nil
}

func (f *flattener) unknown(i int) error {
	return f.p.refuse(i, "", "opcode %#x is not an instruction of the ISA, version 4", uint32(f.p.Insns[i].OpCode))
}

func (f *flattener) decodeALU(i int, o *op) error {
	ins := &f.p.Insns[i]
	o.kind, o.alu, o.w32 = opALU, ins.OpCode.ALUOp(), ins.OpCode.Class() == asm.ALUClass
	o.reg = ins.OpCode&8 != 0
	if !o.reg && ins.Constant != int64(int32(ins.Constant)) {
		return f.p.refuse(i, "", "the constant does not fit 32 bits")
	}
	switch o.alu {
	case asm.Add, asm.Sub, asm.Mul, asm.Div, asm.Mod, asm.SDiv, asm.SMod, asm.Or, asm.And, asm.Xor, asm.LSh, asm.RSh, asm.ArSh, asm.Mov:
	case asm.Neg:
		if o.reg {
			return f.unknown(i)
		}
	case asm.MovSX8, asm.MovSX16, asm.MovSX32:
		if !o.reg || o.w32 && o.alu == asm.MovSX32 {
			return f.unknown(i)
		}
	case asm.Swap:
		if o.imm != 16 && o.imm != 32 && o.imm != 64 || !o.w32 && o.reg {
			return f.unknown(i)
		}
		o.width, o.big, o.w32 = uint8(o.imm), o.reg || !o.w32, false
		o.reg = false
	default:
		return f.unknown(i)
	}
	if o.off != 0 {
		return f.unknown(i)
	}
	return nil
}

func (f *flattener) decodeJump(i int, o *op) error {
	p, ins := f.p, &f.p.Insns[i]
	o.w32, o.reg = ins.OpCode.Class() == asm.Jump32Class, ins.OpCode&8 != 0
	o.jump = asm.JumpOp(ins.OpCode & 0xf0)
	if ins.OpCode&^0xff != 0 {
		return f.unknown(i)
	}
	off := int64(ins.Offset)
	switch o.jump {
	case asm.Call:
		return f.decodeCall(i, o)
	case asm.Exit:
		if o.w32 || o.reg {
			return f.unknown(i)
		}
		o.kind = opExit
		return nil
	case asm.Ja:
		if o.reg {
			return f.unknown(i)
		}
		if o.w32 {
			off = ins.Constant
		}
		o.kind = opGoto
	case asm.JCOND:
		if o.w32 || o.reg || ins.Src != asm.PseudoMayGoto {
			return f.unknown(i)
		}
		o.kind = opMay
	case asm.JEq, asm.JNE, asm.JGT, asm.JGE, asm.JLT, asm.JLE, asm.JSGT, asm.JSGE, asm.JSLT, asm.JSLE, asm.JSet:
		o.kind = opJump
	default:
		return f.unknown(i)
	}
	if !o.reg && ins.Constant != int64(int32(ins.Constant)) {
		return p.refuse(i, "", "the constant does not fit 32 bits")
	}
	var ok bool
	if ref := ins.Reference(); ref != "" {
		o.target, ok = f.symbols[ref]
	} else {
		o.target, ok = f.jumpTo(i, off)
	}
	if !ok {
		return p.refuse(i, "", "jumps to what is no instruction of the program")
	}
	return nil
}

func (f *flattener) decodeCall(i int, o *op) error {
	p, ins := f.p, &f.p.Insns[i]
	switch {
	case o.w32 || o.reg:
		return p.refuse(i, "call functions by name", "an indirect call")
	case ins.IsFunctionCall():
		o.kind = opEnter
		return nil
	case ins.IsKfuncCall():
		return p.refuse(i, "use helpers", "calls a function of the Linux kernel")
	case !ins.IsBuiltinCall():
		return f.unknown(i)
	case ins.Constant == 12:
		return p.refuse(i, "call a function instead; it is put in place", "a tail call")
	case ins.Constant < 0 || ins.Constant > math.MaxInt32:
		return p.refuse(i, "", "helper number %d does not exist", ins.Constant)
	}
	o.kind, o.id = opHelper, int32(ins.Constant)
	h, ok := f.env.Helpers[o.id]
	if !ok || h == nil {
		return p.refuse(i, "nvtrace help probes lists the helpers, and where each can be called", "helper %d (%s) is not known here", o.id, helperName(ins.Constant))
	}
	if h.Refuse != "" {
		return p.refuse(i, h.Hint, "helper %d (%s): %s", o.id, h.Name, h.Refuse)
	}
	if len(h.Args) > 5 {
		return fmt.Errorf("helper %d (%s) has %d arguments; at most 5 are possible", o.id, h.Name, len(h.Args))
	}
	o.helper = h
	return nil
}

// decodeConst decodes LD_IMM64, the only instruction left of its class.
func (f *flattener) decodeConst(i int, o *op) error {
	p, ins := f.p, &f.p.Insns[i]
	if !ins.OpCode.IsDWordLoad() {
		if m := ins.OpCode.Mode(); m == asm.AbsMode || m == asm.IndMode {
			return p.refuse(i, "", "a load from a network packet")
		}
		return f.unknown(i)
	}
	switch ins.Src {
	case asm.R0:
		o.kind = opConst
		return nil
	case asm.PseudoMapFD, asm.PseudoMapValue:
		o.kind = opMap
	case asm.PseudoFunc:
		return p.refuse(i, "write the loop out", "takes the address of a function, as callbacks need it")
	default:
		return p.refuse(i, "", "loads a kind of address (%d) that does not exist here", ins.Src)
	}
	o.m = int32(uint32(ins.Constant))
	if ref := ins.Reference(); ref != "" {
		o.m = int32(slices.IndexFunc(f.env.Maps, func(m Map) bool { return m.Name == ref }))
	}
	if o.m < 0 || int(o.m) >= len(f.env.Maps) {
		return p.refuse(i, "", "map %q is not defined", ins.Reference())
	}
	o.imm = 0
	if ins.Src == asm.PseudoMapValue {
		m := &f.env.Maps[o.m]
		o.kind, o.imm = opDirect, int64(uint64(ins.Constant)>>32)
		if !m.Direct {
			return p.refuse(i, "look the value up", "takes the address of a value of map %s", m.Name)
		}
		if o.imm > int64(m.ValueSize) {
			return p.refuse(i, "", "byte %d of %s, which has %d", o.imm, m.Name, m.ValueSize)
		}
	}
	return nil
}

func (f *flattener) decodeMemory(i int, o *op) error {
	ins := &f.p.Insns[i]
	class, mode := ins.OpCode.Class(), ins.OpCode.Mode()
	o.size = uint8(ins.OpCode.Size().Sizeof())
	switch {
	case mode == asm.MemMode && ins.OpCode&^0xff == 0:
		o.kind = opStore
		if class == asm.LdXClass {
			o.kind = opLoad
		}
		o.reg = class == asm.StXClass
		if class == asm.StClass && o.imm != int64(int32(o.imm)) {
			return f.p.refuse(i, "", "the constant does not fit 32 bits")
		}
	case mode == asm.MemSXMode && class == asm.LdXClass && o.size < 8 && ins.OpCode&^0xff == 0:
		o.kind, o.signed = opLoad, true
	case mode == asm.AtomicMode && class == asm.StXClass:
		o.kind, o.atomic, o.reg = opAtomic, ins.OpCode.AtomicOp(), true
		switch o.atomic {
		case asm.AddAtomic, asm.FetchAdd, asm.AndAtomic, asm.FetchAnd, asm.OrAtomic, asm.FetchOr,
			asm.XorAtomic, asm.FetchXor, asm.Xchg, asm.CmpXchg:
			if _, fetch := o.fetches(); o.size < 4 && (fetch || !f.env.Narrow) {
				return f.p.refuse(i, "use a field of 4 or 8 bytes", "an atomic operation on %d bytes", o.size)
			}
			if r, ok := o.fetches(); ok && r == 10 {
				return f.p.refuse(i, "", "r10 is read-only")
			}
		case loadAcquire:
			o.kind, o.sync = opLoad, true
		case storeRelease:
			o.kind, o.sync = opStore, true
		default:
			return f.unknown(i)
		}
	default:
		return f.unknown(i)
	}
	return nil
}

// Atomic operations that asm has without a name (RFC 9669 did not have them
// yet; Linux: BPF_LOAD_ACQ and BPF_STORE_REL).
const (
	loadAcquire  asm.AtomicOp = 0x0001_0000
	storeRelease asm.AtomicOp = 0x0001_1000
	cmpXchg                   = asm.CmpXchg
)

// fetches reports whether the operation returns what was there before, and in
// which register.
func (o *op) fetches() (reg uint8, ok bool) {
	switch o.atomic {
	case asm.CmpXchg:
		return 0, true
	case asm.FetchAdd, asm.FetchAnd, asm.FetchOr, asm.FetchXor, asm.Xchg:
		return o.src, true
	}
	return 0, false
}

// helperName is what bpf.h calls a helper: bpf_get_current_comm.
func helperName(n int64) string { return cName(asm.BuiltinFunc(n).String()) }

// cName turns "FnGetCurrentComm", as package asm prints a helper, into bpf.h's name.
func cName(name string) string {
	name, ok := strings.CutPrefix(name, "Fn")
	if !ok {
		return "no known name"
	}
	b := []byte("bpf")
	for _, c := range []byte(name) {
		if c >= 'A' && c <= 'Z' {
			b = append(b, '_', c+'a'-'A')
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}
