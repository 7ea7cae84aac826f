package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/cilium/ebpf/asm"
)

// An Interpreter runs programs on the CPU, one instruction after the other, as
// a thread alone would. Pointers know the object they came from: an access
// outside of it ends the program, as it does in compiled code. It is for one
// goroutine at a time.
type Interpreter struct {
	Env *Env
	// Read and Write access the memory that maps and records are in.
	Read, Write func(addr uint64, buf []byte) error
	// Atomic, if not nil, changes n bytes of that memory to what change makes of them, at
	// once, and returns what was there. Others may change them meanwhile.
	Atomic func(addr uint64, n int, change func(old uint64) uint64) (old uint64, err error)
	// Field returns field i of the context.
	Field func(i int) uint64
	// Text is the context's string.
	Text []byte
	// Maps are the addresses of the values of maps that are Direct, by index.
	Maps []uint64
	// MaxSteps ends a program after so many instructions; 0 means what Env.Fuel says.
	MaxSteps int

	// before, if not nil, is called before each instruction.
	before func(pc int) error

	p       *Program
	frames  []iframe
	records []*object // that were handed out
	symbols map[string]int
	raw     map[int]int
	offsets []int
	steps   int // instructions so far
	limit   int // of them
	nulls   int // calls that returned NULL
}

// Addresses that the interpreter gives to what has none.
const (
	stackBase   = 0x7ffe_0000_0000
	contextBase = 0x7ffd_0000_0000
	mapBase     = 0x7ffb_0000_0000
	frameStride = 0x1000
)

// A Result is how a run ended.
type Result struct {
	R0    uint64 // what the program returned; 0 if that was no number
	Early bool   // it was ended: an access out of bounds, no fuel, or a RetNever helper
	Why   string // for Early
	At    int    // the last instruction, by index
	Steps int    // instructions
	// Held are the addresses of the records that the program had not given back when
	// it was ended early. Compiled code gives them back unused; see [Helper].Release.
	Held []uint64
}

// An object is what a pointer may be followed into.
type object struct {
	what       string
	base, size uint64
	stack      int // frame + 1; 0: no stack
	context    bool
	readOnly   bool
	mapOf      int  // handle of map mapOf - 1
	valueOf    int  // value of map valueOf - 1
	record     bool // from a helper that has RetRecord
	given      bool // a record that was given back
}

// A word is a register: a number, or a pointer with its object.
type word struct {
	v    uint64
	o    *object
	set  bool
	null int // not 0: what a call returned that may return NULL, and did; all copies have its number
}

// An iframe is one active function.
type iframe struct {
	regs   [11]word
	stack  [StackSize]byte
	spills map[int]word // pointers on the stack
	ret    int          // instruction to return to
	obj    *object
}

// nullPointerArithmetic is why a program is ended early by a calculation with NULL.
const nullPointerArithmetic = "arithmetic with NULL"

// errEarly ends a run.
type errEarly string

func (e errEarly) Error() string { return string(e) }

// Run runs p. An error says that the program does what [Verify] refuses, or that
// a helper or the memory failed. A program that was run must not be changed.
func (in *Interpreter) Run(p *Program) (Result, error) {
	in.frames, in.records, in.nulls = nil, nil, 0
	if in.p != p {
		in.prepare(p)
	}
	in.push(-1)
	in.frames[0].regs[1] = word{v: contextBase, set: true, o: &object{what: "context", base: contextBase, context: true, readOnly: true}}
	if c := in.Env.Context; c != nil && c.Text > 0 {
		in.frames[0].regs[1].o.size = uint64(c.Text)
	}
	limit := in.MaxSteps
	if limit <= 0 {
		limit = DefaultFuel
		if in.Env.Fuel > 0 {
			limit = int(min(in.Env.Fuel, math.MaxInt32))
		}
	}
	in.limit = limit
	pc, res := 0, Result{}
	for pc >= 0 {
		if pc >= len(p.Insns) {
			return res, fmt.Errorf("program %s: runs off its end", p.Name)
		}
		res.At, in.steps = pc, res.Steps
		if res.Steps++; res.Steps > limit {
			res.Early, res.Why, res.Held = true, "too many instructions", in.held()
			return res, nil
		}
		next, err := pc, error(nil)
		if in.before != nil {
			err = in.before(pc)
		}
		if err == nil {
			next, err = in.step(pc)
		}
		if early, ok := errors.AsType[errEarly](err); ok {
			res.Early, res.Why, res.Held = true, string(early), in.held()
			return res, nil
		}
		if err != nil {
			return res, fmt.Errorf("program %s: instruction %d (%v): %w", p.Name, pc, p.Insns[pc], err)
		}
		pc = next
	}
	if held := in.held(); len(held) > 0 {
		return res, fmt.Errorf("program %s: ends with %d records that were not given back", p.Name, len(held))
	}
	if r0 := in.frames[0].regs[0]; r0.o == nil {
		res.R0 = r0.v
	}
	return res, nil
}

// prepare finds where jumps and calls of a program go.
func (in *Interpreter) prepare(p *Program) {
	in.p = p
	in.symbols, in.raw, in.offsets = map[string]int{}, map[int]int{}, nil
	at := 0
	for i := range p.Insns {
		if s := p.Insns[i].Symbol(); s != "" {
			in.symbols[s] = i
		}
		in.raw[at] = i
		in.offsets = append(in.offsets, at)
		at += int(p.Insns[i].Width())
	}
	in.offsets = append(in.offsets, at)
}

// held returns the addresses of the records that were not given back.
func (in *Interpreter) held() []uint64 {
	var list []uint64
	for _, o := range in.records {
		if !o.given {
			list = append(list, o.base)
		}
	}
	return list
}

func (in *Interpreter) push(ret int) *iframe {
	n := len(in.frames)
	base := uint64(stackBase + n*frameStride)
	in.frames = append(in.frames, iframe{ret: ret, spills: map[int]word{}, obj: &object{what: "stack", base: base, size: StackSize, stack: n + 1}})
	f := &in.frames[n]
	f.regs[10] = word{v: base + StackSize, o: f.obj, set: true}
	return f
}

func (in *Interpreter) top() *iframe { return &in.frames[len(in.frames)-1] }

// step runs instruction pc and returns the next one, -1 at the end.
func (in *Interpreter) step(pc int) (int, error) {
	ins := &in.p.Insns[pc]
	if ins.Dst > asm.R10 || ins.Src > asm.R10 {
		return 0, errors.New("no such register")
	}
	switch ins.OpCode.Class() {
	case asm.ALUClass, asm.ALU64Class:
		return pc + 1, in.stepALU(ins)
	case asm.JumpClass, asm.Jump32Class:
		return in.stepJump(pc, ins)
	case asm.LdClass:
		return pc + 1, in.stepConst(ins)
	case asm.LdXClass:
		return pc + 1, in.stepLoad(ins, ins.OpCode.Mode() == asm.MemSXMode)
	case asm.StClass:
		return pc + 1, in.store(in.top().regs[ins.Dst], int64(ins.Offset), ins.OpCode.Size().Sizeof(), word{v: uint64(ins.Constant), set: true})
	}
	if ins.OpCode.Mode() == asm.AtomicMode {
		return pc + 1, in.stepAtomic(ins)
	}
	return pc + 1, in.store(in.top().regs[ins.Dst], int64(ins.Offset), ins.OpCode.Size().Sizeof(), in.top().regs[ins.Src])
}

func (in *Interpreter) stepConst(ins *asm.Instruction) error {
	dst := &in.top().regs[ins.Dst]
	if ins.Src == asm.R0 {
		*dst = word{v: uint64(ins.Constant), set: true}
		return nil
	}
	m := int(uint32(ins.Constant))
	if ref := ins.Reference(); ref != "" {
		for i := range in.Env.Maps {
			if in.Env.Maps[i].Name == ref {
				m = i
			}
		}
	}
	if m >= len(in.Env.Maps) {
		return errors.New("no such map")
	}
	if ins.Src == asm.PseudoMapFD {
		*dst = word{v: mapBase + uint64(m), set: true, o: &object{what: "map", mapOf: m + 1}}
		return nil
	}
	if m >= len(in.Maps) {
		return errors.New("the map's address is not known")
	}
	d := &in.Env.Maps[m]
	o := &object{what: d.Name, base: in.Maps[m], size: uint64(d.ValueSize), readOnly: d.ReadOnly, valueOf: m + 1}
	*dst = word{v: in.Maps[m] + uint64(ins.Constant)>>32, set: true, o: o}
	return nil
}

func (in *Interpreter) stepALU(ins *asm.Instruction) error {
	f := in.top()
	dst := &f.regs[ins.Dst]
	y := word{v: uint64(ins.Constant), set: true}
	op, w32 := ins.OpCode.ALUOp(), ins.OpCode.Class() == asm.ALUClass
	if op != asm.Swap && ins.OpCode.Source() == asm.RegSource {
		y = f.regs[ins.Src]
	}
	move := op == asm.Mov || op == asm.MovSX8 || op == asm.MovSX16 || op == asm.MovSX32
	if !y.set || !move && !dst.set {
		return errors.New("a register that was never written")
	}
	if op == asm.Mov && !w32 {
		*dst = y
		return nil
	}
	if y.o != nil || !move && dst.o != nil || y.null > 0 || !move && dst.null > 0 {
		return in.pointerALU(op, w32, dst, y)
	}
	x := dst.v
	if op == asm.Swap {
		*dst = word{v: swapBytes(x, int(ins.Constant), !w32 || ins.OpCode&8 != 0), set: true}
		return nil
	}
	r, err := compute(op, x, y.v, w32)
	*dst = word{v: r, set: true}
	return err
}

// pointerALU adds to pointers and takes their distance.
func (in *Interpreter) pointerALU(op asm.ALUOp, w32 bool, dst *word, y word) error {
	x := *dst
	if op == asm.Add && x.o == nil && x.null == 0 {
		x, y = y, x
	}
	switch {
	case x == y && (op == asm.Xor || op == asm.Sub):
		*dst = word{set: true}
		return nil
	case w32 || op != asm.Add && op != asm.Sub:
		return errors.New("arithmetic with a pointer")
	case x.null > 0 || y.null > 0:
		return errEarly(nullPointerArithmetic)
	case y.o == nil && op == asm.Add:
		*dst = word{v: x.v + y.v, o: x.o, set: true}
	case y.o == nil:
		*dst = word{v: x.v - y.v, o: x.o, set: true}
	case op == asm.Sub && x.o != nil && x.o.base == y.o.base:
		*dst = word{v: x.v - y.v, set: true}
	default:
		return errors.New("arithmetic with two pointers")
	}
	return nil
}

func swapBytes(x uint64, width int, big bool) uint64 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], x)
	n := width / 8
	if big {
		for i := range n / 2 {
			b[i], b[n-1-i] = b[n-1-i], b[i]
		}
	}
	clear(b[n:])
	return binary.LittleEndian.Uint64(b[:])
}

// compute is RFC 9669, section 4.1.
func compute(op asm.ALUOp, x, y uint64, w32 bool) (uint64, error) {
	if w32 {
		r, err := computeIn[uint32, int32](op, uint32(x), uint32(y), 31)
		return uint64(r), err
	}
	return computeIn[uint64, int64](op, x, y, 63)
}

// computeIn computes in one width; last is the number of its highest bit.
func computeIn[U uint32 | uint64, S int32 | int64](op asm.ALUOp, x, y U, last U) (U, error) {
	sx, sy := S(x), S(y)
	switch op {
	case asm.Mov:
		return y, nil
	case asm.Add:
		return x + y, nil
	case asm.Sub:
		return x - y, nil
	case asm.Mul:
		return x * y, nil
	case asm.Div:
		if y == 0 {
			return 0, nil
		}
		return x / y, nil
	case asm.Mod:
		if y == 0 {
			return x, nil
		}
		return x % y, nil
	case asm.SDiv:
		if sy == 0 {
			return 0, nil
		}
		return U(sx / sy), nil // Go defines the overflow as eBPF does
	case asm.SMod:
		if sy == 0 {
			return x, nil
		}
		return U(sx % sy), nil
	case asm.Or:
		return x | y, nil
	case asm.And:
		return x & y, nil
	case asm.Xor:
		return x ^ y, nil
	case asm.LSh:
		return x << (y & last), nil
	case asm.RSh:
		return x >> (y & last), nil
	case asm.ArSh:
		return U(sx >> (y & last)), nil
	case asm.Neg:
		return -x, nil
	case asm.MovSX8:
		return U(int8(y)), nil
	case asm.MovSX16:
		return U(int16(y)), nil
	case asm.MovSX32:
		if last == 63 {
			return U(int32(y)), nil
		}
	}
	return 0, errors.New("unknown instruction")
}
