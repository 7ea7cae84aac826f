package emu

import (
	"math/bits"

	"nvtrace/ptx"
)

func memoryBuilders() map[string]builder {
	return map[string]builder{
		"ld": buildLd, "ldu": buildLd, "st": buildSt,
		"prefetch": buildHint, "prefetchu": buildHint, "applypriority": buildHint, "discard": buildHint,
		"createpolicy": buildPolicy,
		"membar":       buildFence, "fence": buildFence,
		"alloca": buildAlloca, "stacksave": buildStack, "stackrestore": buildStack,
	}
}

// cacheHints are modifiers of memory instructions that change nothing that a
// program can observe here.
var cacheHints = []string{
	".ca", ".cg", ".cs", ".lu", ".cv", ".wb", ".wt", ".nc",
	".L1::evict_normal", ".L1::evict_unchanged", ".L1::evict_first", ".L1::evict_last", ".L1::no_allocate",
	".L2::evict_normal", ".L2::evict_first", ".L2::evict_last", ".L2::cache_hint",
	".L2::64B", ".L2::128B", ".L2::256B",
	".weak", ".unified",
}

// scopes are the modifiers that say whom a strong operation is ordered with.
// The machine is sequentially consistent for all of them.
var scopes = []string{".cta", ".cluster", ".gpu", ".sys", ".gl"}

// transfer reads the modifiers and address of ld or st; the operand of the
// registers is value, written when load is set.
func (x *insn) transfer(addr, value *ptx.Operand, load bool) (*transfer, error) {
	t := &transfer{slot: uint32(len(x.out.code))}
	t.strong = x.takeOne(".volatile", ".relaxed", ".acquire", ".release") != ""
	x.take(".mmio")
	space := x.space()
	vec := x.takeOne(".v2", ".v4", ".v8")
	x.ignore(cacheHints...)
	x.ignore(scopes...)
	x.ignorePrefix(".level::")
	typ := x.lastType()
	if t.size = typ.Size(); t.size == 0 || len(x.types) != 1 {
		return nil, x.badType()
	}
	if typ.Signed() && load {
		t.width = uint(t.size) * 8
	}
	var err error
	if t.addr, err = x.address(addr, space); err != nil {
		return nil, err
	}
	slots, err := x.elements(value, typ, load)
	if err != nil {
		return nil, err
	}
	if want := map[string]int{"": 1, ".v2": 2, ".v4": 4, ".v8": 8}[vec]; len(slots) != want {
		return nil, errf(ErrInvalid, "%d registers for a vector of %d", len(slots), want)
	}
	for _, s := range slots {
		t.elems = append(t.elems, element{s, ^uint64(0)})
	}
	if load {
		x.registerMasks(t, value)
	}
	return t, x.checkParam(t)
}

// registerMasks fills in the widths of the destination registers.
func (x *insn) registerMasks(t *transfer, value *ptx.Operand) {
	list := []ptx.Operand{*value}
	if value.Kind == ptx.OperandVector {
		list = x.file.Kids(value)
	}
	for i := range t.elems {
		if i < len(list) {
			if _, mask, err := x.dst(&list[i]); err == nil {
				t.elems[i].mask = mask
			}
		} else {
			t.elems[i].mask = t.elems[0].mask
		}
	}
}

// checkParam checks an access to a kernel parameter by name, and makes it a
// uniform one.
func (x *insn) checkParam(t *transfer) error {
	if t.addr.space != ptx.SpaceParam || t.addr.base >= 0 {
		return nil
	}
	n := t.bytes()
	if t.addr.disp > x.prog.paramLen || n > x.prog.paramLen-t.addr.disp {
		return errf(ErrInvalid, "offset %d of the parameters, which have %d bytes", int64(t.addr.disp), x.prog.paramLen)
	}
	if t.addr.disp&(alignOf(n)-1) != 0 {
		return errf(ErrMisaligned, "offset %d of the parameters", t.addr.disp)
	}
	t.zero = t.size <= 8
	return nil
}

func buildLd(x *insn) error {
	if len(x.args) < 2 || len(x.args) > 3 {
		return x.nargs(2, 3)
	}
	t, err := x.transfer(&x.args[1], &x.args[0], true)
	if err != nil {
		return err
	}
	return x.step(t.load)
}

func buildSt(x *insn) error {
	if x.take(".async") {
		return x.remote()
	}
	if len(x.args) < 2 || len(x.args) > 3 {
		return x.nargs(2, 3)
	}
	t, err := x.transfer(&x.args[0], &x.args[1], false)
	if err != nil {
		return err
	}
	if t.addr.space == ptx.SpaceParam || t.addr.space == ptx.SpaceConst {
		return errf(ErrInvalid, "store to %v memory", t.addr.space)
	}
	return x.step(t.store)
}

// buildHint compiles what only warms caches.
func buildHint(x *insn) error {
	x.space()
	x.ignore(".L1", ".L2", ".tensormap")
	x.ignorePrefix(".L1::", ".L2::")
	return x.step(func(*warp, uint32) {})
}

// buildPolicy compiles createpolicy: a policy is a value that nothing reads.
func buildPolicy(x *insn) error {
	x.space()
	x.ignore(".fractional", ".range", ".cvt", ".L2")
	x.ignorePrefix(".L2::")
	if len(x.args) == 0 {
		return x.nargs(1)
	}
	d, _, err := x.dst(&x.args[0])
	if err != nil {
		return err
	}
	return x.step(func(w *warp, m uint32) {
		var zero lanes
		copyLanes(&w.regs[d], &zero, m)
	})
}

// buildFence compiles memory barriers, which do nothing: blocks see one another's
// accesses in program order. Waiting threads often poll between fences, so a
// fence also gives other warps their turn sooner.
func buildFence(x *insn) error {
	x.ignore(".sc", ".acq_rel", ".acquire", ".release", ".async", ".async.global", ".alias", ".generic", ".global", ".mbarrier_init",
		".shared::cta", ".shared::cluster", ".tensormap::generic", ".sync_restrict::shared::cta", ".sync_restrict::shared::cluster", ".to_proxy::async", ".from::generic")
	x.ignorePrefix(".proxy")
	x.ignorePrefix(".sync_restrict", ".tensormap", ".op_restrict")
	x.ignore(".shared")
	x.ignore(scopes...)
	return x.step(func(w *warp, _ uint32) {
		w.tire(4)
		if w.wk.race != nil {
			w.wk.race.fence(w)
		}
	})
}

// buildAlloca compiles alloca: memory at the end of the frame, the same offset
// for all lanes, freed when the function returns.
func buildAlloca(x *insn) error {
	if err := x.nargs(2, 3); err != nil {
		return err
	}
	d, _, err := x.dst(&x.args[0])
	if err != nil {
		return err
	}
	s, err := x.src(&x.args[1], ptx.B64)
	if err != nil {
		return err
	}
	align := uint64(8)
	if len(x.args) == 3 {
		if align, err = x.immediate(2, 4096); err != nil {
			return err
		}
	}
	if align == 0 || align&(align-1) != 0 {
		return errf(ErrInvalid, "alignment %d", align)
	}
	align = max(align, 16)
	return x.step(func(w *warp, m uint32) {
		var size uint64
		a := w.src(s)
		for l := m; l != 0; l &= l - 1 {
			size = max(size, a[firstLane(l)])
		}
		base := (w.frame.top + align - 1) &^ (align - 1)
		top := base + size
		if size > 1<<40 {
			top = 1 << 40
		}
		if err := w.growLocal(top); err != nil {
			w.fail(firstLane(m), err)
			return
		}
		w.frame.top = (top + 15) &^ 15
		if err := w.growLocal(w.frame.top); err != nil {
			w.fail(firstLane(m), err)
			return
		}
		r := &w.regs[d]
		for ; m != 0; m &= m - 1 {
			r[firstLane(m)] = base
		}
	})
}

// buildStack compiles stacksave and stackrestore. Restoring frees memory when all
// lanes of the frame do it together; otherwise it stays until the function
// returns, as lanes elsewhere may still use theirs.
func buildStack(x *insn) error {
	if err := x.nargs(1); err != nil {
		return err
	}
	if x.op == "stackrestore" {
		s, err := x.src(&x.args[0], ptx.B64)
		if err != nil {
			return err
		}
		return x.step(func(w *warp, m uint32) {
			f, top := w.frame, w.src(s)[firstLane(m)]
			if bits.OnesCount32(m) == f.lanes && top >= f.local+f.fn.localSize && top <= f.top {
				f.top = top
			}
		})
	}
	d, _, err := x.dst(&x.args[0])
	if err != nil {
		return err
	}
	return x.step(func(w *warp, m uint32) {
		r := &w.regs[d]
		for ; m != 0; m &= m - 1 {
			r[firstLane(m)] = w.frame.top
		}
	})
}
