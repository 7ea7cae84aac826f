package emu

import "nvtrace/ptx"

func atomicBuilders() map[string]builder {
	return map[string]builder{"atom": buildAtomic, "red": buildAtomic}
}

// An atomicOp computes the new value of a word from the old one and the
// operands.
type atomicOp func(old, b, c uint64) uint64

// atomicOps holds the operators that do not depend on the type.
var atomicOps = map[string]atomicOp{
	".and":  func(old, b, _ uint64) uint64 { return old & b },
	".or":   func(old, b, _ uint64) uint64 { return old | b },
	".xor":  func(old, b, _ uint64) uint64 { return old ^ b },
	".exch": func(_, b, _ uint64) uint64 { return b },
	".cas": func(old, b, c uint64) uint64 {
		if old == b {
			return c
		}
		return old
	},
	".inc": func(old, b, _ uint64) uint64 {
		if uint32(old) >= uint32(b) {
			return 0
		}
		return old + 1
	},
	".dec": func(old, b, _ uint64) uint64 {
		if uint32(old) == 0 || uint32(old) > uint32(b) {
			return b
		}
		return old - 1
	},
}

// typedAtomic returns .add, .min and .max. Single-precision addition flushes
// subnormal numbers in global memory and keeps them in shared memory (PTX ISA
// §9.7.13.5), so there are two operators.
func typedAtomic(op string, t ptx.Type) (global, shared atomicOp, ok bool) {
	if it, isInt := intOf(t); isInt {
		f, ok := map[string]fn2{".add": it.add, ".min": it.min, ".max": it.max}[op]
		if !ok {
			return nil, nil, false
		}
		g := func(old, b, _ uint64) uint64 { return f(old, b) }
		return g, g, true
	}
	o := floatOp{f: formatOf(t)}
	if o.f == nil {
		return nil, nil, false
	}
	float := func(o floatOp) atomicOp {
		f, ok := map[string]fn2{".add": o.add(), ".min": o.minmax(false), ".max": o.minmax(true)}[op]
		if !ok {
			return nil
		}
		if w, two := packed(t); two {
			f = pair2(f, w)
		}
		return func(old, b, _ uint64) uint64 { return f(old, b) }
	}
	shared = float(o)
	o.ftz = t == ptx.F32 && op == ".add"
	global = float(o)
	return global, shared, global != nil
}

// An atomicInst is a compiled atom or red.
type atomicInst struct {
	addr           address
	size           int
	op, sharedOp   atomicOp
	d              []int32 // destinations, one an element; nil for red
	b, c           []int32 // operands, one an element; c only of cas
	polls, twoWord bool
	slot           uint32
}

// buildAtomic compiles atom and red.
func buildAtomic(x *insn) error {
	if x.op == "red" && x.take(".async") {
		return x.remote()
	}
	a := &atomicInst{slot: uint32(len(x.out.code))}
	x.ignore(".relaxed", ".acquire", ".release", ".acq_rel", ".noftz", ".L2::cache_hint")
	x.ignore(scopes...)
	x.ignorePrefix(".level::")
	space := x.space()
	vec := x.takeOne(".v2", ".v4", ".v8")
	t := x.lastType()
	name := x.takeOne(".and", ".or", ".xor", ".cas", ".exch", ".add", ".inc", ".dec", ".min", ".max")
	ok := name != "" && t.Size() != 0 && len(x.types) == 1
	if a.op, a.sharedOp = atomicOps[name], atomicOps[name]; a.op == nil && ok {
		a.op, a.sharedOp, ok = typedAtomic(name, t)
	}
	if !ok || t == ptx.B128 && name != ".cas" && name != ".exch" {
		return x.badType()
	}
	a.size, a.twoWord = t.Size(), t == ptx.B128
	a.polls = name == ".cas" || name == ".exch"
	args := x.args
	if x.op == "atom" {
		if len(args) < 3 {
			return x.nargs(3, 4, 5)
		}
		d, err := x.elements(&args[0], t, true)
		if err != nil {
			return err
		}
		a.d, args = d, args[1:]
	}
	return x.atomicOperands(a, args, t, space, vec, name == ".cas")
}

// atomicOperands resolves address and operands and emits the instruction.
func (x *insn) atomicOperands(a *atomicInst, args []ptx.Operand, t ptx.Type, space ptx.Space, vec string, cas bool) (err error) {
	want := 2
	if cas {
		want = 3
	}
	if len(args) < want || len(args) > want+1 { // one more for a cache policy
		return x.nargs(want, want+1)
	}
	if a.addr, err = x.address(&args[0], space); err != nil {
		return err
	}
	if a.b, err = x.elements(&args[1], t, false); err != nil {
		return err
	}
	if cas {
		if a.c, err = x.elements(&args[2], t, false); err != nil {
			return err
		}
	}
	n := map[string]int{"": 1, ".v2": 2, ".v4": 4, ".v8": 8}[vec]
	if len(a.b) != n || a.d != nil && len(a.d) != n || a.twoWord && (a.b[0] < 0 || cas && a.c[0] < 0) {
		return x.badType()
	}
	return x.step(a.run)
}

// run executes the instruction one lane after the other.
func (a *atomicInst) run(w *warp, m uint32) {
	r := w.src(a.addr.base)
	n := uint64(a.size * len(a.b))
	if a.polls {
		w.tire(32)
	}
	for ; m != 0; m &= m - 1 {
		i := firstLane(m)
		addr := a.addr.at(w, r, i)
		space := a.addr.space
		if space == ptx.SpaceGeneric {
			space, addr = splitGeneric(addr)
		}
		p := w.locate(space, addr, n, i, true, a.slot)
		if p == nil {
			return
		}
		if w.wk.race != nil {
			w.wk.race.access(w, i, space, addr, n, accessAtomic)
		}
		if a.twoWord {
			a.wide(w, p, i)
			continue
		}
		for k := range a.b {
			a.element(w, p[k*a.size:], i, k, space)
		}
	}
}

// element updates one value.
func (a *atomicInst) element(w *warp, p []byte, i, k int, space ptx.Space) {
	b, c := w.src(a.b[k])[i], uint64(0)
	if a.c != nil {
		c = w.src(a.c[k])[i]
	}
	var old uint64
	switch {
	case space != ptx.SpaceGlobal: // only this worker reaches it
		old = loadBytes(p, a.size)
		storeBytes(p, a.size, a.sharedOp(old, b, c))
	case a.size >= 4:
		old = updateWord(p, a.size, func(old uint64) uint64 { return a.op(old, b, c) })
	default:
		mu := &w.wk.launch.machine.atomicMu
		mu.Lock()
		old = loadBytes(p, a.size)
		storeBytes(p, a.size, a.op(old, b, c))
		mu.Unlock()
	}
	if a.d != nil {
		w.regs[a.d[k]][i] = old
	}
}

// wide is the exchange or compare-and-swap of 128 bits, atomic with regard to
// others of its size.
func (a *atomicInst) wide(w *warp, p []byte, i int) {
	mu := &w.wk.launch.machine.atomicMu
	mu.Lock()
	defer mu.Unlock()
	lo, hi := loadBytes(p, 8), loadBytes(p[8:], 8)
	nlo, nhi := w.regs[a.b[0]][i], w.regs[a.b[0]+1][i]
	if a.c != nil {
		if lo != nlo || hi != nhi {
			nlo, nhi = lo, hi
		} else {
			nlo, nhi = w.regs[a.c[0]][i], w.regs[a.c[0]+1][i]
		}
	}
	storeBytes(p, 8, nlo)
	storeBytes(p[8:], 8, nhi)
	if a.d != nil {
		w.regs[a.d[0]][i], w.regs[a.d[0]+1][i] = lo, hi
	}
}
