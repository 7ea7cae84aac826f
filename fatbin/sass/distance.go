package sass

import "math/bits"

// maxDistance bounds the cycles that a result of fixed latency can take.
const maxDistance = 48

// lastWrite is where each register was written last, and when.
type lastWrite struct {
	at  [2*256 + 2*8]int32 // index of the instruction + 1
	now [2*256 + 2*8]int32
}

// slot gives a register its place in lastWrite.
func slot(k RegKind, reg int) int {
	switch k {
	case GPR:
		return reg
	case UGPR:
		return 256 + reg
	case Pred:
		return 512 + reg&7
	}
	return 520 + reg&7
}

// clock follows one path through the code.
type clock struct {
	lastWrite
	time int32
}

// Dependence is an instruction that uses a register which one of fixed latency
// has written on the way to it.
type Dependence struct {
	From, To int // indices of instructions
	Kind     RegKind
	Reg      uint8
	Cycles   int  // between both issuing, by stall counts
	Guard    bool // it is the guard of To
	Write    bool // To writes it too
}

// Dependences calls fn for each register that an instruction uses at most 48
// cycles after one without a write barrier has written it. Paths are followed
// through the code as it stands, and along jumps to places that nothing else
// reaches; calls and indirect branches begin anew.
func (a *Analysis) Dependences(fn func(Dependence)) { a.dependences(maxDistance, fn) }

// dependences is Dependences with another distance, in cycles.
func (a *Analysis) dependences(most int32, fn func(Dependence)) {
	saved := make(map[int]*clock)
	var c clock
	fresh := true
	for b := range a.Blocks {
		if s := saved[b]; s != nil && fresh {
			c = *s
		} else if fresh {
			c = clock{}
		}
		delete(saved, b)
		fresh = a.walk(b, most, &c, saved, fn)
	}
	// Jumps back to code that was walked without knowing what comes before it.
	for len(saved) > 0 {
		for b, s := range saved {
			delete(saved, b)
			rest := make(map[int]*clock)
			a.walk(b, most, s, rest, fn)
			break
		}
	}
}

// walk follows a block. It says whether the path ends there.
func (a *Analysis) walk(b int, most int32, c *clock, saved map[int]*clock, fn func(Dependence)) bool {
	blk := &a.Blocks[b]
	for i := blk.Start; i < blk.End; i++ {
		in := &a.Insts[i]
		ctl := in.Word.Control()
		if in.op == nil {
			*c = clock{}
			continue
		}
		use := func(k RegKind, reg int, guard, write bool) {
			s := slot(k, reg)
			if from := c.at[s]; from > 0 {
				if d := c.time - c.now[s]; d <= most && !a.exclusive(int(from)-1, i) {
					fn(Dependence{int(from) - 1, i, k, uint8(reg), int(d), guard, write})
				}
			}
		}
		if g := int(in.Word.Lo >> 12 & 7); g != guardAlways && in.op.guard != NoReg {
			use(in.op.guard, g, true, false)
		}
		read, write := &a.names[i].read, &a.names[i].write
		each(read, func(k RegKind, reg int) { use(k, reg, false, false) })
		fixed := ctl.WriteBar >= unguarded && in.op.class != classWGMMA
		each(write, func(k RegKind, reg int) {
			// What reads a result as well gets it before it writes another.
			if !read.Has(k, uint8(reg)) {
				use(k, reg, false, true)
			}
			s := slot(k, reg)
			if fixed {
				c.at[s], c.now[s] = int32(i+1), c.time
			} else {
				c.at[s] = 0
			}
		})
		c.time += int32(ctl.Stall)
	}
	last := &a.Insts[blk.End-1]
	f := last.Flow()
	switch f.Kind {
	case FlowNext, FlowSet, FlowSync, FlowBreak, FlowWarp, FlowTrap:
		return false
	case FlowBranch:
		if f.Conditional {
			return false
		}
		if t := a.index(blk.End-1, f.Target); f.HasTarget && t >= 0 {
			if to := int(a.BlockOf[t]); len(a.Blocks[to].Pred) == 1 && !a.Blocks[to].Entry {
				s := *c
				saved[to] = &s
			}
		}
		return true
	case FlowExit:
		return !f.Conditional
	case FlowCall:
		return !a.jumps[blk.End-1]
	}
	return true
}

// each calls fn for the registers of a set, barriers left out.
func each(s *Set, fn func(k RegKind, reg int)) {
	for i := range s.R {
		for m := s.R[i]; m != 0; m &= m - 1 {
			fn(GPR, i*64+bits.TrailingZeros64(m))
		}
		for m := s.UR[i]; m != 0; m &= m - 1 {
			fn(UGPR, i*64+bits.TrailingZeros64(m))
		}
	}
	for m := s.P; m != 0; m &= m - 1 {
		fn(Pred, bits.TrailingZeros8(m))
	}
	for m := s.UP; m != 0; m &= m - 1 {
		fn(UPred, bits.TrailingZeros8(m))
	}
}
