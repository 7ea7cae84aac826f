package bpf

import (
	"github.com/cilium/ebpf/asm"

	"nvtrace/ptx/bpf/internal/amd64"
)

// pointsInto reports whether the offset of such a pointer is kept beside it.
func (v *val) pointsInto() bool { return v.kind == kValue || v.kind == kRecord }

// comp is where the offset of the pointer in a register is kept.
func (m *assembly) comp(d int8, r uint8) amd64.Mem {
	p := m.place(m.comps[d][r])
	m.comps[d][r] = p.Off
	return p
}

// spill is where the offset of a pointer on the stack is kept.
func (m *assembly) spill(acc *access) amd64.Mem {
	key := [2]int{int(acc.depth), acc.off}
	p := m.place(m.spills[key])
	m.spills[key] = p.Off
	return p
}

// setOffset notes a pointer's offset that is known.
func (m *assembly) setOffset(d int8, r uint8, off int64) {
	if m.offsets {
		m.storeImm64(m.comp(d, r), off)
	}
}

func (m *assembly) storeImm64(at amd64.Mem, v int64) {
	if v == int64(int32(v)) {
		m.StoreImm(8, at, int32(v))
		return
	}
	m.MovImm(scratch1, uint64(v))
	m.Store(8, at, scratch1)
}

// keepOffset writes the offset of the pointer v in register r to memory.
func (m *assembly) keepOffset(at amd64.Mem, v *val, d int8, r uint8) {
	if v.n.isConst() {
		m.storeImm64(at, int64(v.n.umin))
		return
	}
	m.Load(false, 8, scratch1, m.comp(d, r))
	m.Store(8, at, scratch1)
}

// copyOffset copies the offset of a pointer that is copied.
func (m *assembly) copyOffset(fromD int8, from uint8, toD int8, to uint8) {
	if v := m.here.reg(fromD, from); m.offsets && v.pointsInto() {
		m.keepOffset(m.comp(toD, to), &v, fromD, from)
	}
}

// offset sets scratch1 to the offset of the pointer v in register r from its object.
func (m *assembly) offset(v *val, d int8, r uint8) {
	switch {
	case v.n.isConst():
		m.MovImm(scratch1, v.n.umin)
	case v.pointsInto():
		m.Load(false, 8, scratch1, m.comp(d, r))
	case v.kind == kStack:
		m.Lea(scratch2, amd64.Mem{Base: amd64.RBP, Off: m.tops[v.depth] - StackSize})
		m.Mov(true, scratch1, m.reg(d, r, scratch1))
		m.Op(amd64.Sub, true, scratch1, scratch2)
	default: // kText
		m.Mov(true, scratch1, machineRegs[r])
		m.Load(false, 8, scratch2, m.place(m.context))
		m.Op(amd64.Sub, true, scratch1, scratch2)
	}
}

// check writes the tests that an access behind register r needs.
func (m *assembly) check(r uint8, off int64, acc *access) {
	d := m.a.ops[m.at].depth
	v := m.here.reg(d, r)
	if acc.null {
		m.checkNull(r)
	}
	if !acc.bound {
		return
	}
	m.offset(&v, d, r)
	if off != 0 {
		m.OpImm(amd64.Add, true, scratch1, int32(off))
	}
	m.OpImm(amd64.Cmp, true, scratch1, int32(acc.object-acc.size))
	m.end(EndBound, m.at, amd64.Above)
}

func (m *assembly) checkNull(r uint8) {
	m.Test(true, machineRegs[r], machineRegs[r])
	m.end(EndNull, m.at, amd64.Equal)
}

// memory is the operand for an access behind register r.
func (m *assembly) memory(r uint8, off int16, acc *access) amd64.Mem {
	if acc.kind == kStack && acc.fixed {
		return amd64.Mem{Base: amd64.RBP, Off: m.tops[acc.depth] - StackSize + int32(acc.off)}
	}
	return amd64.Mem{Base: machineRegs[r], Off: int32(off)}
}

// load compiles a load; s is the state behind it.
func (m *assembly) load(s *state, o *op, fx *effect) {
	acc := &fx.acc
	m.check(o.src, int64(o.off), acc)
	after := s.reg(o.depth, o.dst)
	if m.offsets && acc.kind == kStack && acc.fixed && after.pointsInto() {
		m.Load(false, 8, scratch1, m.spill(acc))
		m.Store(8, m.comp(o.depth, o.dst), scratch1)
	}
	if after.kind == kScalar && after.n.isConst() {
		m.MovImm(machineRegs[o.dst], after.n.umin)
		return
	}
	m.Load(o.signed, acc.size, machineRegs[o.dst], m.memory(o.src, o.off, acc)) // acquires, on this machine
}

// store compiles a store.
func (m *assembly) store(o *op, acc *access) {
	v := m.a.operand(m.here, o)
	if m.offsets && acc.kind == kStack && v.pointsInto() {
		m.keepOffset(m.spill(acc), &v, o.depth, o.src)
	}
	at := m.memory(o.dst, o.off, acc)
	if !o.reg {
		m.StoreImm(acc.size, at, int32(o.imm))
		return
	}
	m.Store(acc.size, at, m.reg(o.depth, o.src, scratch1)) // releases, on this machine
}

// atomic compiles an atomic operation. What is the thread's own, the stack, needs none of
// the care, and may be at any address.
func (m *assembly) atomic(o *op, acc *access) {
	at, shared := m.memory(o.dst, o.off, acc), acc.kind != kStack
	size, src := acc.size, machineRegs[o.src]
	if shared && acc.align < size {
		m.Lea(scratch1, at)
		m.TestImm(false, scratch1, int32(size-1))
		m.end(EndAlign, m.at, amd64.NotEqual)
	}
	ops := map[asm.AtomicOp]amd64.Op{
		asm.AddAtomic: amd64.Add, asm.AndAtomic: amd64.And, asm.OrAtomic: amd64.Or, asm.XorAtomic: amd64.Xor,
		asm.FetchAnd: amd64.And, asm.FetchOr: amd64.Or, asm.FetchXor: amd64.Xor,
	}
	switch o.atomic {
	case asm.AddAtomic, asm.AndAtomic, asm.OrAtomic, asm.XorAtomic:
		m.OpMem(ops[o.atomic], shared, size, at, src)
	case asm.FetchAdd:
		m.Xadd(shared, size, at, src)
	case asm.Xchg:
		if shared {
			m.Xchg(size, at, src)
			break
		}
		m.Load(false, size, scratch1, at)
		m.Store(size, at, src)
		m.Mov(true, src, scratch1)
	case asm.CmpXchg:
		m.Cmpxchg(shared, size, at, src)
		if size == 4 { // which it leaves as it is when they are equal
			m.Mov(false, amd64.RAX, amd64.RAX)
		}
	default:
		m.fetch(ops[o.atomic], shared, size, at, src)
	}
}

// fetch computes in memory what was there before, in a loop.
func (m *assembly) fetch(op amd64.Op, shared bool, size int, at amd64.Mem, src amd64.Reg) {
	again := m.NewLabel()
	m.Lea(scratch2, at)
	at = amd64.Mem{Base: scratch2}
	m.Mov(true, scratch3, amd64.RAX)
	by := src
	if src == amd64.RAX {
		by = scratch3
	}
	m.Load(false, size, amd64.RAX, at)
	m.Bind(again)
	m.Mov(true, scratch1, amd64.RAX)
	m.Op(op, size == 8, scratch1, by)
	m.Cmpxchg(shared, size, at, scratch1)
	m.Jcc(amd64.NotEqual, again)
	if size == 4 {
		m.Mov(false, amd64.RAX, amd64.RAX)
	}
	if src != amd64.RAX {
		m.Mov(true, src, amd64.RAX)
		m.Mov(true, amd64.RAX, scratch3)
	}
}

// helper compiles a helper's call: the arguments are where a function has them.
func (m *assembly) helper(o *op, fx *effect) {
	d := o.depth
	for k := range o.helper.Args {
		a, r := &fx.args[k], uint8(k+1)
		if a.spec.Kind == ArgRecord {
			if a.acc.null {
				m.checkNull(r)
			}
			v := m.here.reg(d, r)
			m.StoreImm(8, m.place(m.records[v.id]), 0)
			continue
		}
		if a.acc.size > 0 && a.acc.kind != kText || a.acc.bound {
			m.check(r, 0, &a.acc)
		}
	}
	m.CallMem(m.slot(SlotHelper, o.id))
	switch o.helper.Ret {
	case RetValue:
		if m.a.env.Maps[fx.m].Inner > 0 {
			none := m.NewLabel()
			m.Test(true, amd64.RAX, amd64.RAX)
			m.Jcc(amd64.Equal, none)
			m.Load(false, 8, amd64.RAX, amd64.Mem{Base: amd64.RAX})
			m.Bind(none)
			break
		}
		m.setOffset(d, 0, 0)
	case RetRecord:
		m.setOffset(d, 0, 0)
		m.Store(8, m.place(m.records[int32(m.at)+1]), amd64.RAX)
	}
}
