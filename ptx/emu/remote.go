package emu

import "nvtrace/ptx"

// A remoteStore is a compiled st.async or red.async: values that go to the shared
// memory of a block of the cluster and count as bytes of an mbarrier there.
type remoteStore struct {
	dst, bar address
	values   []int32
	size     int
	op       atomicOp // red.async; nil for a store
	slot     uint32
}

// remote compiles st.async and red.async, whose .async has been taken.
func (x *insn) remote() error {
	s := &remoteStore{slot: uint32(len(x.out.code))}
	if !x.take(".mbarrier::complete_tx::bytes") {
		return x.badType()
	}
	x.ignore(".weak", ".relaxed", ".release")
	x.ignore(scopes...)
	x.space()
	vec := x.takeOne(".v2", ".v4")
	t := x.lastType()
	if s.size = t.Size(); s.size != 4 && s.size != 8 || len(x.types) != 1 {
		return x.badType()
	}
	if x.op == "red" {
		name := x.takeOne(".and", ".or", ".xor", ".add", ".inc", ".dec", ".min", ".max")
		if s.op = atomicOps[name]; s.op == nil {
			_, s.op, _ = typedAtomic(name, t)
		}
		if s.op == nil {
			return x.badType()
		}
	}
	if err := x.nargs(3); err != nil {
		return err
	}
	var err error
	if s.dst, err = x.address(&x.args[0], ptx.SpaceShared); err != nil {
		return err
	}
	if s.values, err = x.elements(&x.args[1], t, false); err != nil {
		return err
	}
	if s.bar, err = x.address(&x.args[2], ptx.SpaceShared); err != nil {
		return err
	}
	if want := map[string]int{"": 1, ".v2": 2, ".v4": 4}[vec]; len(s.values) != want {
		return errf(ErrInvalid, "%d registers for a vector of %d", len(s.values), want)
	}
	return x.step(s.run)
}

func (s *remoteStore) run(w *warp, m uint32) {
	rd, rb := w.src(s.dst.base), w.src(s.bar.base)
	n := uint64(s.size * len(s.values))
	for ; m != 0 && w.err == nil; m &= m - 1 {
		i := firstLane(m)
		p := w.locate(ptx.SpaceShared, s.dst.at(w, rd, i), n, i, true, s.slot)
		if p == nil {
			return
		}
		for k, v := range s.values {
			q, x := p[k*s.size:], w.src(v)[i]
			if s.op != nil {
				x = s.op(loadBytes(q, s.size), x, 0)
			}
			storeBytes(q, s.size, x)
		}
		w.updateMbarrier(&s.bar, rb, i, s.slot, func(b *mbarrier) error { return b.set(".complete_tx", n) })
	}
}
