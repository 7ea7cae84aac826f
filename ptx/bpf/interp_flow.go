package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf/asm"
)

// stepJump runs a jump, a call or an end.
func (in *Interpreter) stepJump(pc int, ins *asm.Instruction) (int, error) {
	f := in.top()
	op, w32 := asm.JumpOp(ins.OpCode&0xf0), ins.OpCode.Class() == asm.Jump32Class
	switch op {
	case asm.Exit:
		return in.leave()
	case asm.Call:
		if ins.IsFunctionCall() {
			return in.enter(pc, ins)
		}
		if !ins.IsBuiltinCall() {
			return 0, errors.New("a call of neither helper nor function")
		}
		return pc + 1, in.help(ins)
	case asm.Ja:
		if w32 {
			return in.target(pc, ins, ins.Constant)
		}
		return in.target(pc, ins, int64(ins.Offset))
	case asm.JCOND:
		if in.steps+len(in.p.Insns) > in.limit {
			return in.target(pc, ins, int64(ins.Offset))
		}
		return pc + 1, nil
	}
	x, y := f.regs[ins.Dst], word{v: uint64(ins.Constant), set: true}
	if ins.OpCode.Source() == asm.RegSource {
		y = f.regs[ins.Src]
	}
	if !x.set || !y.set {
		return 0, errors.New("a register that was never written")
	}
	if (x.o == nil) != (y.o == nil) && (x.o != nil || x.v != 0) && (y.o != nil || y.v != 0) {
		return 0, errors.New("compares a pointer with a number")
	}
	in.looked(x.null)
	in.looked(y.null)
	a, b := x.v, y.v
	if w32 {
		a, b = uint64(uint32(a)), uint64(uint32(b))
		if op == asm.JSGT || op == asm.JSGE || op == asm.JSLT || op == asm.JSLE {
			a, b = uint64(int32(a)), uint64(int32(b))
		}
	}
	taken := false
	switch op {
	case asm.JEq:
		taken = a == b
	case asm.JNE:
		taken = a != b
	case asm.JGT:
		taken = a > b
	case asm.JGE:
		taken = a >= b
	case asm.JLT:
		taken = a < b
	case asm.JLE:
		taken = a <= b
	case asm.JSet:
		taken = a&b != 0
	case asm.JSGT:
		taken = int64(a) > int64(b)
	case asm.JSGE:
		taken = int64(a) >= int64(b)
	case asm.JSLT:
		taken = int64(a) < int64(b)
	case asm.JSLE:
		taken = int64(a) <= int64(b)
	default:
		return 0, errors.New("unknown instruction")
	}
	if !taken {
		return pc + 1, nil
	}
	return in.target(pc, ins, int64(ins.Offset))
}

// looked notes that the program has compared what a call returned that returned NULL.
func (in *Interpreter) looked(null int) {
	if null == 0 {
		return
	}
	for i := range in.frames {
		regs := &in.frames[i].regs
		for r := range regs {
			if regs[r].null == null {
				regs[r].null = 0
			}
		}
	}
}

// target finds where a jump or call goes.
func (in *Interpreter) target(pc int, ins *asm.Instruction, off int64) (int, error) {
	to, ok := 0, false
	if ref := ins.Reference(); ref != "" {
		to, ok = in.symbols[ref]
	} else {
		to, ok = in.raw[in.offsets[pc+1]+int(off)]
	}
	if !ok {
		return 0, errors.New("jumps to no instruction")
	}
	return to, nil
}

func (in *Interpreter) enter(pc int, ins *asm.Instruction) (int, error) {
	if len(in.frames) >= MaxCallDepth {
		return 0, errors.New("too many calls")
	}
	to, err := in.target(pc, ins, ins.Constant)
	if err != nil {
		return 0, err
	}
	args := in.top().regs
	f := in.push(pc + 1)
	copy(f.regs[1:6], args[1:6])
	return to, nil
}

func (in *Interpreter) leave() (int, error) {
	if len(in.frames) == 1 {
		return -1, nil
	}
	f := in.top()
	r0, ret := f.regs[0], f.ret
	in.frames = in.frames[:len(in.frames)-1]
	top := in.top()
	clear(top.regs[1:6])
	top.regs[0] = r0
	return ret, nil
}

// access checks the use of n bytes at off behind w.
func (in *Interpreter) access(w word, off int64, n int, write bool) (uint64, error) {
	switch {
	case !w.set:
		return 0, errors.New("a register that was never written")
	case w.o == nil && w.v == 0:
		return 0, errEarly("NULL")
	case w.o == nil:
		return 0, errors.New("follows a number")
	case write && w.o.readOnly:
		return 0, errors.New("writes what is read-only")
	case w.o.mapOf > 0:
		return 0, errors.New("follows a map")
	case w.o.given:
		return 0, errors.New("uses a record that was given back")
	}
	addr := w.v + uint64(off)
	if w.o.context && w.o.size == 0 {
		return addr, nil
	}
	if o := addr - w.o.base; o > w.o.size || w.o.size-o < uint64(n) {
		return 0, errEarly(fmt.Sprintf("%d bytes at %d of %s, which has %d", n, int64(o), w.o.what, w.o.size))
	}
	return addr, nil
}

func (in *Interpreter) stepLoad(ins *asm.Instruction, signed bool) error {
	f := in.top()
	n := ins.OpCode.Size().Sizeof()
	w := f.regs[ins.Src]
	addr, err := in.access(w, int64(ins.Offset), n, false)
	if err != nil {
		return err
	}
	if w.o.stack > 0 && n == 8 {
		if p, ok := in.frames[w.o.stack-1].spills[int(addr-w.o.base)]; ok {
			f.regs[ins.Dst] = p
			return nil
		}
	}
	var b [8]byte
	if err := in.ReadMem(addr, b[:n]); err != nil {
		return err
	}
	v := binary.LittleEndian.Uint64(b[:])
	if signed {
		v = uint64(int64(v<<(64-8*n)) >> (64 - 8*n))
	}
	f.regs[ins.Dst] = word{v: v, set: true}
	return nil
}

// store puts the low n bytes of x behind w.
func (in *Interpreter) store(w word, off int64, n int, x word) error {
	addr, err := in.access(w, off, n, true)
	if err != nil {
		return err
	}
	if !x.set {
		return errors.New("a register that was never written")
	}
	if x.o != nil && (w.o.stack == 0 || n != 8) {
		return errors.New("stores a pointer")
	}
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], x.v)
	if err := in.WriteMem(addr, b[:n]); err != nil {
		return err
	}
	if x.o != nil {
		in.frames[w.o.stack-1].spills[int(addr-w.o.base)] = x
	}
	return nil
}

func (in *Interpreter) stepAtomic(ins *asm.Instruction) error {
	f := in.top()
	n, op := ins.OpCode.Size().Sizeof(), ins.OpCode.AtomicOp()
	switch op {
	case loadAcquire:
		return in.stepLoad(ins, false)
	case storeRelease:
		return in.store(f.regs[ins.Dst], int64(ins.Offset), n, f.regs[ins.Src])
	}
	w, src := f.regs[ins.Dst], f.regs[ins.Src]
	addr, err := in.access(w, int64(ins.Offset), n, true)
	if err != nil {
		return err
	}
	if !src.set || src.o != nil {
		return errors.New("an atomic operation with a pointer")
	}
	if w.o.stack == 0 && addr%uint64(n) != 0 {
		return errEarly("an atomic operation at an address that is no multiple of its size")
	}
	fetch := &f.regs[ins.Src]
	if op == asm.CmpXchg {
		if fetch = &f.regs[0]; !fetch.set || fetch.o != nil {
			return errors.New("an atomic operation with a pointer")
		}
	}
	change, err := atomicChange(op, src.v, fetch.v&(^uint64(0)>>(64-8*n)))
	if err != nil {
		return err
	}
	atomic := in.Atomic
	if atomic == nil || w.o.stack > 0 {
		atomic = in.change
	}
	old, err := atomic(addr, n, change)
	if op&0x100 != 0 {
		*fetch = word{v: old, set: true}
	}
	return err
}

// atomicChange returns what an atomic operation makes of what is in memory; expected is
// what a compare and exchange wants to find.
func atomicChange(op asm.AtomicOp, v, expected uint64) (func(old uint64) uint64, error) {
	switch op {
	case asm.AddAtomic, asm.FetchAdd:
		return func(old uint64) uint64 { return old + v }, nil
	case asm.AndAtomic, asm.FetchAnd:
		return func(old uint64) uint64 { return old & v }, nil
	case asm.OrAtomic, asm.FetchOr:
		return func(old uint64) uint64 { return old | v }, nil
	case asm.XorAtomic, asm.FetchXor:
		return func(old uint64) uint64 { return old ^ v }, nil
	case asm.Xchg:
		return func(uint64) uint64 { return v }, nil
	case asm.CmpXchg:
		return func(old uint64) uint64 {
			if old == expected {
				return v
			}
			return old
		}, nil
	}
	return nil, errors.New("unknown instruction")
}

// change is Interpreter.Atomic of memory that nobody else changes meanwhile.
func (in *Interpreter) change(addr uint64, n int, change func(old uint64) uint64) (uint64, error) {
	var b [8]byte
	if err := in.ReadMem(addr, b[:n]); err != nil {
		return 0, err
	}
	old := binary.LittleEndian.Uint64(b[:])
	binary.LittleEndian.PutUint64(b[:], change(old))
	return old, in.WriteMem(addr, b[:n])
}

// threadEnded is why a program is ended early by a helper that has RetNever.
const threadEnded = "the thread ended"

// help runs a helper.
func (in *Interpreter) help(ins *asm.Instruction) error {
	h := in.Env.Helpers[int32(ins.Constant)]
	if h == nil || h.Interpret == nil {
		return fmt.Errorf("helper %d is not known", ins.Constant)
	}
	f := in.top()
	var args [5]uint64
	m, size := -1, uint64(0)
	for k := range h.Args {
		w := f.regs[k+1]
		args[k] = w.v
		if h.Args[k].Kind == ArgMap {
			if w.o == nil || w.o.mapOf == 0 {
				return fmt.Errorf("argument %d is no map", k+1)
			}
			m = w.o.mapOf - 1
		}
		if h.Args[k].Kind == ArgConst && size == 0 {
			size = w.v
		}
	}
	for k := range h.Args {
		if err := in.checkArg(h, k, m, f); err != nil {
			return err
		}
	}
	r, err := h.Interpret(in, args)
	if err != nil {
		return err
	}
	clear(f.regs[1:6])
	f.regs[0] = word{v: r, set: h.Ret != RetVoid}
	switch h.Ret {
	case RetNever:
		if len(in.held()) > 0 {
			return errors.New("the thread ends with a record that was not given back")
		}
		return errEarly(threadEnded)
	case RetValue, RetRecord:
		if h.Ret == RetValue {
			size = uint64(in.Env.Maps[m].ValueSize)
		}
		if r == 0 {
			in.nulls++
			f.regs[0].null = in.nulls
			break
		}
		o := &object{what: h.Name, base: r, size: size}
		if h.Ret == RetValue && in.Env.Maps[m].Inner > 0 {
			i, ok := in.Map(r)
			if !ok {
				return fmt.Errorf("%s returned %#x, which is no map", h.Name, r)
			}
			f.regs[0].o = &object{what: "map", mapOf: i + 1}
			break
		}
		if h.Ret == RetRecord {
			o.record, in.records = true, append(in.records, o)
		} else {
			o.valueOf = m + 1
		}
		f.regs[0].o = o
	}
	return nil
}

// checkArg checks that the memory of an argument is there, and that a record is
// given back by the pointer that it came with.
func (in *Interpreter) checkArg(h *Helper, k, m int, f *iframe) error {
	spec, n := &h.Args[k], 0
	switch spec.Kind {
	case ArgScalar, ArgConst:
		if w := f.regs[k+1]; !w.set || w.o != nil {
			return fmt.Errorf("argument %d is no number", k+1)
		}
	case ArgRecord:
		return giveBack(f.regs[k+1], k)
	case ArgKey:
		n = int(in.Env.Maps[m].KeySize)
	case ArgValue:
		n = int(in.Env.Maps[m].ValueSize)
	case ArgRead, ArgWrite, ArgShared:
		switch n = spec.Size; n {
		case ValueBytes:
			n = int(in.Env.Maps[m].ValueSize)
		case 0:
			n = int(min(f.regs[spec.SizeArg+1].v, in.Env.helperBytes()))
		}
	}
	if n == 0 {
		return nil
	}
	_, err := in.access(f.regs[k+1], 0, n, spec.Kind == ArgWrite || spec.Kind == ArgShared)
	return err
}

// giveBack takes the record that argument k of a call points to from the program.
func giveBack(w word, k int) error {
	switch {
	case w.o == nil && w.v == 0:
		return errEarly("NULL")
	case w.o == nil || !w.o.record:
		return fmt.Errorf("argument %d is no record", k+1)
	case w.v != w.o.base:
		return fmt.Errorf("argument %d points to byte %d of a record, not to its first", k+1, int64(w.v-w.o.base))
	case w.o.given:
		return fmt.Errorf("argument %d is a record that was given back", k+1)
	}
	w.o.given = true
	return nil
}

// Map returns the index of the map that a helper's argument stands for.
func (in *Interpreter) Map(arg uint64) (int, bool) {
	i := arg - mapBase
	return int(i), i < uint64(len(in.Env.Maps))
}

// MapArg is the argument that stands for a map: what a helper returns whose values are maps.
func (in *Interpreter) MapArg(index int) uint64 { return mapBase + uint64(index) }

// stackAt returns the stack bytes at addr.
func (in *Interpreter) stackAt(addr uint64, n int) (*iframe, int, bool) {
	i := (addr - stackBase) / frameStride
	off := (addr - stackBase) % frameStride
	if addr < stackBase || i >= uint64(len(in.frames)) || off > StackSize || StackSize-off < uint64(n) {
		return nil, 0, false
	}
	return &in.frames[i], int(off), true
}

// ReadMem copies memory that the program can read, stack and context included,
// for helpers.
func (in *Interpreter) ReadMem(addr uint64, buf []byte) error {
	if len(buf) == 0 { // wherever that is
		return nil
	}
	if f, off, ok := in.stackAt(addr, len(buf)); ok {
		copy(buf, f.stack[off:])
		return nil
	}
	if addr >= contextBase && addr < stackBase {
		return in.readContext(int(addr-contextBase), buf)
	}
	if in.Read == nil {
		return errors.New("there is no memory")
	}
	return in.Read(addr, buf)
}

func (in *Interpreter) readContext(off int, buf []byte) error {
	c := in.Env.Context
	if c == nil {
		return errors.New("there is no context")
	}
	if c.Text > 0 {
		clear(buf)
		if off < len(in.Text) {
			copy(buf, in.Text[off:])
		}
		return nil
	}
	for i := range c.Fields {
		if fd := &c.Fields[i]; off >= fd.Offset && off+len(buf) <= fd.Offset+fd.Size && in.Field != nil {
			var b [8]byte
			binary.LittleEndian.PutUint64(b[:], in.Field(i))
			copy(buf, b[off-fd.Offset:])
			return nil
		}
	}
	return fmt.Errorf("the context has no field at %d", off)
}

// WriteMem copies buf to memory that the program can write, for helpers.
func (in *Interpreter) WriteMem(addr uint64, buf []byte) error {
	if len(buf) == 0 {
		return nil
	}
	if f, off, ok := in.stackAt(addr, len(buf)); ok {
		copy(f.stack[off:], buf)
		for at := off - 7; at < off+len(buf); at++ {
			delete(f.spills, at)
		}
		return nil
	}
	if in.Write == nil {
		return errors.New("there is no memory")
	}
	return in.Write(addr, buf)
}
