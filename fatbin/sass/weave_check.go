package sass

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// check analyzes the result: no instruction may come before what it needs is there,
// and at every instruction that was there the same registers must be live as before,
// so that the probes overwrite none of them.
func (w *Weaver) check(out *Woven, e *emitter) error {
	fn := *w.a.Func
	fn.Code, fn.Registers = out.Code, out.Registers
	fn.Woven = func(index int) bool {
		_, moved := e.moved[index]
		return index >= len(w.a.Insts) && !moved
	}
	e.describe(&fn)
	a, err := Analyze(&fn)
	if err != nil {
		return err
	}
	defer a.free()
	for at, s := range fn.Calls {
		busy := a.PendRead[at]
		busy.Union(&a.PendWrite[at])
		if x := intersect(&busy, &fn.Shared[s].Uses); !x.Empty() {
			return fmt.Errorf("%#06x: registers %s of a shared probe are on their way", at*WordSize, x.String())
		}
	}
	// Predicates that are saved and restored are read, whether they have a value or not.
	var kept Set
	for _, p := range w.probes() {
		kept.P |= p.regs.save
	}
	// Variables are live from where they begin to where the last is read. The kernel has none of
	// their registers, though they count as live where it is not known how it goes on.
	own := w.ownRegs()
	kept.Union(&own)
	last := len(w.a.Insts) // padding behind it goes on elsewhere than before
	for last > 0 && w.a.Insts[last-1].Word.Opcode() == opNOP {
		last--
	}
	for i := range last {
		if !w.reachable[w.a.BlockOf[i]] || i == 0 && w.atEntry {
			continue
		}
		got, want := a.LiveIn[i], w.a.LiveIn[i]
		// Bits of barriers are set and taken lane by lane, so that those of probes
		// are live everywhere. The kernel has none of these.
		got.B &= w.a.Used.B
		want.B &= w.a.Used.B
		if out.Stack > 0 {
			// The stack pointer is checked for by stackPointer.
			got.Add(GPR, 1, 1)
			want.Add(GPR, 1, 1)
		}
		lost, more := want, got
		lost.Minus(&got)
		lost.Minus(&own)
		more.Minus(&want)
		more.Minus(&kept)
		if !lost.Empty() || !more.Empty() {
			return fmt.Errorf("+0x%x: registers %s are overwritten, %s read", i*WordSize, lost.String(), more.String())
		}
	}
	for _, b := range e.blocks {
		if err := w.checkBlock(a, b); err != nil {
			return err
		}
	}
	var was []Finding // of the kernel as it was, as soon as one is asked about
	for _, f := range a.Check(0) {
		if e.ownTiming(&f) {
			continue
		}
		// What the checker says of the kernel as it was is not the probes' fault.
		at := f.Index
		if i, ok := e.moved[at]; ok {
			at = i
		}
		// Nor that it uses registers again which stores have read, for reasons that only
		// its compiler knows.
		if w.tell && f.Hazard == HazardInFlight && at < len(w.a.Insts) {
			continue
		}
		if was == nil {
			was = w.a.Check(0)
		}
		if !slices.ContainsFunc(was, func(o Finding) bool { return o.Index == at && o.Hazard == f.Hazard }) {
			return errors.New(f.String())
		}
	}
	return nil
}

// checkBlock looks for registers that are live at a place and that its block changes
// without restoring them: liveness alone says nothing of those that the block reads
// first.
func (w *Weaver) checkBlock(a *Analysis, b block) error {
	var changed Set
	slots := make(map[uint8]Word) // where registers were saved
	kept := make(map[uint8]uint8) // predicates of which a register has the values
	for i := b.start; i < b.end; i++ {
		in := &a.Insts[i]
		if i == b.displaced && i == b.end-1 {
			continue
		}
		if i == b.displaced { // a probe that began before it goes on behind it
			read, write := in.Uses()
			if x := intersect(&changed, &read); !x.Empty() {
				return fmt.Errorf("+0x%x: registers %s are overwritten", b.site*WordSize, x.String())
			}
			if _, _, guarded := in.Guard(); !guarded {
				changed.Minus(&write) // what was there before is of no use to anybody
			}
			maps.DeleteFunc(slots, func(r uint8, _ Word) bool { return write.Has(GPR, r) })
			maps.DeleteFunc(kept, func(r, _ uint8) bool { return write.Has(GPR, r) })
			continue
		}
		if !in.Known() {
			return fmt.Errorf("+0x%x: an unknown instruction, %s", i*WordSize, in.Word)
		}
		_, write := in.Uses()
		if s, ok := a.Func.Calls[i]; ok {
			write.Union(&a.Func.Shared[s].Uses)
		}
		switch in.Word.Opcode() {
		case opSTL:
			r := uint8(in.Word.Bits(32, 8))
			if _, ok := slots[r]; !ok && !changed.Has(GPR, r) {
				slots[r] = in.Word
			}
		case opLDL:
			r := uint8(in.Word.Bits(16, 8))
			if w, ok := slots[r]; ok && w.Bits(40, 24) == in.Word.Bits(40, 24) && w.Bits(24, 8) == in.Word.Bits(24, 8) {
				changed.Minus(&write)
				delete(slots, r)
				continue
			}
		case opR2P:
			r, mask := uint8(in.Word.Bits(24, 8)), uint8(in.Word.Bits(32, 7))
			if in.Word.WithControl(Control{}) == R2P(r, mask).WithControl(Control{}) {
				changed.P &^= kept[r] & mask
				write.P &^= kept[r] & mask
			}
		}
		maps.DeleteFunc(kept, func(r, _ uint8) bool { return write.Has(GPR, r) })
		if in.Word.Opcode() == opP2R {
			r, mask := uint8(in.Word.Bits(16, 8)), uint8(in.Word.Bits(32, 7))
			if in.Word.WithControl(Control{}) == P2R(r, mask).WithControl(Control{}) {
				kept[r] = mask &^ changed.P // others are not as the kernel has them
			}
		}
		changed.Union(&write)
	}
	if b.site == 0 && w.atEntry {
		return nil
	}
	live := w.a.LiveIn[b.site]
	if b.displaced < b.end-1 {
		// What the instruction loads is live behind it.
		live.Union(&w.a.LiveOut[b.site])
	}
	live.B &= w.a.Used.B
	own := w.ownRegs()
	live.Minus(&own)
	if x := intersect(&changed, &live); !x.Empty() {
		return fmt.Errorf("+0x%x: registers %s are overwritten", b.site*WordSize, x.String())
	}
	return nil
}

// ownTiming reports whether a finding is about registers of a body alone, of which its
// compiler knows when they are read or written: it has the same finding by itself.
func (e *emitter) ownTiming(f *Finding) bool {
	if f.Hazard != HazardInFlight && f.Hazard != HazardWrite && f.Hazard != HazardStall {
		return false
	}
	for i := range e.copies {
		c := &e.copies[i]
		k := f.Index - c.base
		if k < 0 || k >= len(c.probe.body.code) {
			continue
		}
		if f.Hazard == HazardStall {
			return c.probe.body.early[[2]int{f.From - c.base, k}]
		}
		var own Set
		late := c.probe.body.late[k]
		if f.Hazard == HazardWrite {
			// What the kernel still writes there would be found at the first of the two.
			late = c.probe.body.other[k]
		}
		each(&late, func(kind RegKind, r int) {
			if kind == GPR {
				own.Add(GPR, c.probe.regs.r[r], 1)
			}
		})
		left := f.Regs
		left.Minus(&own)
		return left.Empty()
	}
	return false
}
