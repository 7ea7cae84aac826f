package sass

// An Arg says what a probe's function gets as a parameter.
type Arg struct {
	kind   argKind
	value  uint64
	bank   int
	offset int
}

type argKind uint8

const (
	argImm argKind = iota
	argNumber
	argConst
	argConstWide
	argAddress
	argValue
	argActive
	argCopied
	argOwn
)

// Imm is a number, for a parameter of 32 bits.
func Imm(v uint32) Arg { return Arg{kind: argImm, value: uint64(v)} }

// Number is a number that counts from [Weaver.Base] on, for a parameter of 32 bits.
func Number(n uint32) Arg { return Arg{kind: argNumber, value: uint64(n)} }

// ConstWord is what is in a constant bank at an offset in bytes, for a parameter of 32
// bits. Bank 0 holds the kernel's parameters, from fatbin.Kernel.ParamBase on.
func ConstWord(bank, offset int) Arg { return Arg{kind: argConst, bank: bank, offset: offset} }

// ConstWide is the same for a parameter of 64 bits. The offset need be a multiple of 4
// only.
func ConstWide(bank, offset int) Arg { return Arg{kind: argConstWide, bank: bank, offset: offset} }

// SiteAddress is the address that a memory instruction accesses, for a parameter of 64
// bits. In shared and local memory it is the offset in that.
func SiteAddress() Arg { return Arg{kind: argAddress} }

// SiteValue is what a memory instruction stores, or an atomic one operates with, and in
// [Weaver.After] what it got: the first 8 bytes of it, and zeros where there is less; for a
// parameter of 64 bits. Before loads it is 0.
func SiteValue() Arg { return Arg{kind: argValue} }

// Active is 1 in threads in which the guard of the instruction holds and 0 in others,
// for a parameter of 32 bits.
func Active() Arg { return Arg{kind: argActive} }

// Copied is how many bytes a copy from global to shared memory reads of those it writes, the others
// of which are zero: 0 in threads in which its operand says that there is no source. It is for a
// parameter of 32 bits, and 0 at other instructions. [SiteAddress] is where they begin.
func Copied() Arg { return Arg{kind: argCopied} }

// wide reports whether the parameter has 64 bits.
func (a Arg) wide() bool {
	switch a.kind {
	case argConstWide, argAddress, argValue:
		return true
	}
	return false
}

// params returns the register of the body that each argument comes in; false if there
// are not enough.
func params(args []Arg) ([]uint8, bool) {
	r := firstParam
	regs := make([]uint8, len(args))
	for i, a := range args {
		n := 1
		if a.kind == argOwn {
			continue
		}
		if a.wide() {
			r, n = (r+1)&^1, 2
		}
		if r+n-1 > lastParam {
			return nil, false
		}
		regs[i] = uint8(r)
		r += n
	}
	return regs, true
}

// checkArgs says why arguments can't be had at the instruction at index i, -1 for the
// exits.
func (w *Weaver) checkArgs(i int, p *probe) error {
	regs, ok := params(p.args)
	if !ok {
		return siteError(i, "%d parameters do not fit in registers", len(p.args))
	}
	var given Set
	words := 0
	for j, a := range p.args {
		n := uint8(1)
		if a.wide() {
			n = 2
		}
		if a.kind == argOwn {
			words = int(a.value)
			continue
		}
		given.Add(GPR, regs[j], n)
		switch a.kind {
		case argConst, argConstWide:
			if a.bank < 0 || a.bank > 17 || a.offset < 0 || a.offset > 0x7ff8 || a.offset%4 != 0 {
				return siteError(i, "constant bank %d has no word at 0x%x", a.bank, a.offset)
			}
		case argAddress, argValue, argCopied:
			if i < 0 {
				return siteError(i, "exits access no memory")
			}
			if _, err := w.access(i); err != nil {
				return err
			}
		case argActive:
			if i >= 0 && w.a.Insts[i].guardKind() != Pred {
				return siteError(i, "its guard is a uniform predicate")
			}
		}
	}
	if n := p.body.own.highest(GPR) - firstVariable; n >= words {
		return siteError(i, "the probe uses %d words of the thread, and %d are reserved", n+1, words)
	}
	p.unset = p.body.live
	p.unset.Minus(&given)
	return nil
}

// give appends the instructions that put a probe's arguments into its registers, before the
// instruction at index i, or those but the addresses behind it.
func (e *emitter) give(i int, p *probe) {
	start := len(e.out.Code)
	if !p.after {
		e.addresses(i, p)
	}
	regs, _ := params(p.args)
	var loads uint8
	// What the compiler has read before it is written does not matter, but must not be
	// what the kernel keeps there.
	each(&p.unset, func(k RegKind, r int) {
		if k == GPR {
			e.set(p.regs.r[r], 0)
		}
	})
	for j, a := range p.args {
		to, toHi, ok := p.param(a, regs[j])
		useLo, useHi := to != RZ, toHi != RZ
		if !ok {
			continue
		}
		switch a.kind {
		case argImm:
			e.fixed(MOVImm(to, uint32(a.value)))
		case argNumber:
			e.fixed(MOVImm(to, uint32(a.value)+e.w.Base))
		case argConst, argConstWide:
			put := func(load Word) {
				c := load.Control()
				c.Stall, c.WriteBar = 2, 0
				e.put(load.WithControl(c))
				loads |= 1
			}
			switch {
			case a.kind == argConst:
				put(e.ldc(to, a, 0, 4))
			case useLo && useHi && to%2 == 0 && toHi == to+1 && a.offset%8 == 0:
				put(e.ldc(to, a, 0, 8))
			default:
				if useLo {
					put(e.ldc(to, a, 0, 4))
				}
				if useHi {
					put(e.ldc(toHi, a, 4, 4))
				}
			}
		case argValue:
			e.value(i, to, toHi, p.after)
		case argActive:
			e.active(i, to)
		case argCopied:
			e.copied(i, to)
		}
	}
	e.loads = loads
	e.settled(start)
	// Predicates last: the guard of the instruction may be one that was saved.
	each(&p.unset, func(k RegKind, r int) {
		if k == Pred {
			e.stall(setFalse(p.regs.p[r]), predicateStall)
		}
	})
}

// param returns the registers of the kernel for an argument that a body has in a register, or
// two: RZ for what it doesn't look at. False if it looks at nothing of it.
func (p *probe) param(a Arg, reg uint8) (lo, hi uint8, ok bool) {
	lo, hi = RZ, RZ
	if a.kind == argOwn {
		return lo, hi, false
	}
	if p.body.live.Has(GPR, reg) {
		lo = p.regs.r[reg]
	}
	if a.wide() && p.body.live.Has(GPR, reg+1) {
		hi = p.regs.r[reg+1]
	}
	return lo, hi, lo != RZ || hi != RZ
}

// addresses gives those arguments that are the address which the instruction at index i
// accesses.
func (e *emitter) addresses(i int, p *probe) {
	regs, _ := params(p.args)
	for j, a := range p.args {
		if lo, hi, ok := p.param(a, regs[j]); ok && a.kind == argAddress {
			e.address(i, lo, hi, p)
		}
	}
}

// settled gives the results of the instructions from an index on time.
func (e *emitter) settled(start int) {
	n := len(e.out.Code)
	if n == start {
		return
	}
	c := e.out.Code[n-1].Control()
	c.Stall = max(c.Stall, settle)
	e.out.Code[n-1] = e.out.Code[n-1].WithControl(c)
}

func (e *emitter) ldc(dst uint8, a Arg, plus, size int) Word {
	return LDC(e.w.arch, dst, uint8(a.bank), uint16(a.offset+plus), size)
}

// settle is a stall after which the results of fixed latency of the instructions used
// here are there, but for predicates, which take longer.
const settle = 8

// predicateStall is a stall after which predicates that were set are there.
const predicateStall = 15

// set puts a number into a register, RZ for none.
func (e *emitter) set(r uint8, v uint32) {
	if r != RZ {
		e.fixed(MOVImm(r, v))
	}
}

func (e *emitter) copy(r, from uint8) {
	if r != RZ {
		e.fixed(MOV(r, from))
	}
}

// active sets a register to 1 in threads in which the guard of the instruction at
// index i holds.
func (e *emitter) active(i int, r uint8) {
	if i < 0 {
		e.set(r, 1) // at exits all are
		return
	}
	pred, negated, ok := e.w.a.Insts[i].Guard()
	if !ok {
		e.set(r, 1)
		return
	}
	// SEL: the first operand if the predicate holds, so that is the negated guard.
	e.fixed(selZero(r, 1, pred, !negated))
}

// address computes the address that the instruction at index i accesses.
func (e *emitter) address(i int, lo, hi uint8, p *probe) {
	m, err := e.w.access(i)
	if err != nil {
		panic("BUG: the access was checked: " + err.Error())
	}
	if !m.wide {
		if lo != RZ {
			e.sum32(lo, m)
		}
		e.set(hi, 0)
		return
	}
	start := len(e.out.Code)
	e.sum64(lo, hi, m, p)
	if size, ok := e.w.a.Insts[i].fills(); ok && lo != RZ {
		e.settled(start) // a copy of the address is not there at once
		e.stall(andImm(lo, lo, ^uint32(size-1)), settle)
	}
}

// sum64 adds up an address of 64 bits.
func (e *emitter) sum64(lo, hi uint8, m *access, p *probe) {
	switch {
	case m.uniform >= 0:
		for k, r := range []uint8{lo, hi} {
			if r != RZ {
				e.stall(MOVUR(r, uint8(m.uniform+k)), settle)
			}
		}
	case m.reg == RZ:
		e.set(lo, uint32(m.imm))
		e.set(hi, uint32(int64(m.imm)>>32))
	case m.imm == 0:
		e.copy(lo, m.reg)
		e.copy(hi, m.reg+1)
	default:
		// The pair is needed as a whole: the body's registers for it are one, as
		// parameters of 64 bits are aligned.
		pair := p.regs.r[paramOf(p, argAddress)]
		e.stall(MOVImm(pair, 1), settle)
		// 64 bits of a product and a sum need no carry in a predicate.
		e.stall(imadWide(pair, pair, uint32(m.imm), m.reg), settle)
	}
}

// paramOf returns the body's register of the first argument of a kind.
func paramOf(p *probe, kind argKind) uint8 {
	regs, _ := params(p.args)
	for j, a := range p.args {
		if a.kind == kind {
			return regs[j]
		}
	}
	panic("BUG: no such argument")
}

// sum32 adds up an address of 32 bits.
func (e *emitter) sum32(r uint8, m *access) {
	from := m.reg
	if m.uniform >= 0 {
		e.stall(MOVUR(r, uint8(m.uniform)), settle)
		if from != RZ {
			e.stall(iadd3(r, from, r), settle)
		}
		from = r
	}
	switch {
	case from == RZ:
		e.set(r, uint32(m.imm))
	case m.imm == 0:
		if from != r {
			e.copy(r, from)
		}
	default:
		e.fixed(iadd3Imm(r, from, uint32(m.imm)))
	}
}

// value copies what is stored, or after the instruction what was loaded.
func (e *emitter) value(i int, lo, hi uint8, after bool) {
	m, err := e.w.access(i)
	if err != nil {
		panic("BUG: the access was checked: " + err.Error())
	}
	data, words := uint8(RZ), 0
	switch {
	case after:
		data, words, _ = e.w.a.Insts[i].result()
	case m.data >= 0:
		data, words = uint8(m.data), m.words
	}
	if words == 0 {
		e.set(lo, 0)
		e.set(hi, 0)
		return
	}
	switch a, _ := e.w.a.Insts[i].Access(); {
	case a.Size < 4 && lo != RZ: // what is above is no part of it
		e.fixed(andImm(lo, data, 1<<(8*a.Size)-1))
	default:
		e.copy(lo, data)
	}
	if words > 1 {
		e.copy(hi, data+1)
	} else {
		e.set(hi, 0)
	}
}

// copied sets a register to how many bytes the copy at index i reads, or in how many threads the
// load of matrices there uses addresses.
func (e *emitter) copied(i int, r uint8) {
	in := &e.w.a.Insts[i]
	if threads, ok := in.Rows(); ok {
		e.set(r, uint32(threads))
		return
	}
	a, _ := in.Access()
	m, ok := in.access()
	if !in.Copies() || !ok {
		e.set(r, 0)
		return
	}
	if _, fills := in.fills(); !fills {
		e.set(r, uint32(a.Size))
	} else {
		// The address is higher by as many bytes as are filled with zeros.
		from := m.reg
		if m.imm != 0 || from == RZ {
			e.stall(iadd3Imm(r, from, uint32(m.imm)), settle)
			from = r
		}
		e.stall(andNot(r, from, uint32(a.Size-1)), settle)
		e.stall(iadd3Imm(r, r, 1), settle)
	}
	for _, o := range in.Operands(nil) {
		if o.Kind == Pred && !o.Guard && o.Read && o.Pos == sourcePred {
			e.fixed(MOVImm(r, 0).Guarded(o.Reg, in.Word.Bits(sourcePred+3, 1) == 0))
			return
		}
	}
	if in.Word.Bits(sourcePred, 3) == PT && in.Word.Bits(sourcePred+3, 1) != 0 {
		e.set(r, 0) // !PT
	}
}

// Words that only weaving needs.

// selZero sets a register to 0 if a predicate holds, else to v.
func selZero(dst uint8, v uint32, pred uint8, negated bool) Word {
	w := plain(0x807|uint64(dst)<<16|RZ<<24|uint64(v)<<32, uint64(pred&7)<<(87-64))
	if negated {
		w.Hi |= 1 << (90 - 64)
	}
	return w
}

// setFalse is ISETP.NE.AND pred, PT, RZ, RZ, PT.
func setFalse(pred uint8) Word {
	return plain(0x20c|RZ<<24|RZ<<32, 0x03f05270|uint64(pred&7)<<(81-64))
}

// aluPreds are the predicates of an arithmetic instruction that uses none.
const aluPreds = 0x07ffe000

func iadd3(dst, a, b uint8) Word {
	return plain(0x210|uint64(dst)<<16|uint64(a)<<24|uint64(b)<<32, aluPreds|RZ)
}

func iadd3Imm(dst, a uint8, v uint32) Word {
	return plain(0x810|uint64(dst)<<16|uint64(a)<<24|uint64(v)<<32, aluPreds|RZ)
}

// andImm is LOP3.LUT dst, a, v, RZ, 0xc0, !PT: the bits of a that v has, too.
func andImm(dst, a uint8, v uint32) Word {
	return plain(0x812|uint64(dst)<<16|uint64(a)<<24|uint64(v)<<32, 0x078ec000|RZ)
}

// andNot is LOP3.LUT dst, a, v, RZ, 0xc, !PT: the bits of v that a lacks.
func andNot(dst, a uint8, v uint32) Word {
	return plain(0x812|uint64(dst)<<16|uint64(a)<<24|uint64(v)<<32, 0x078e0c00|RZ)
}

// imadWide is the pair dst = a × v + pair c, where a and v have a sign.
func imadWide(dst, a uint8, v uint32, c uint8) Word {
	return plain(0x825|uint64(dst)<<16|uint64(a)<<24|uint64(v)<<32, 0x078e0200|uint64(c))
}
