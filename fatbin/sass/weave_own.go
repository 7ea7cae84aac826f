package sass

import "slices"

// Variables of each thread live in registers that the kernel does not have and that no
// probe is given, from the kernel's first instruction on. The compiler of a body can't be
// told of registers that are not its own; it takes the variables for words of local memory
// at addresses that no thread has. Loads from and stores to these become moves.

// Variables are words of each thread that probes of a kernel share.
type Variables struct{ first, n int } // indices of Weaver.own

// Arg lets a body use the variables; it is none of its parameters.
func (v Variables) Arg() Arg { return Arg{kind: argOwn, offset: v.first, value: uint64(v.n)} }

const (
	// variableBase is the address of the first variable, variableStride what lies between
	// two: too much for the compiler to load both at once.
	variableBase   = 0xff0000
	variableStride = 16
	// mostVariables bounds the words of a body.
	mostVariables = 32
	// firstVariable is the register of a body, which has none of so high a number, that
	// stands for the first.
	firstVariable = 200
)

// VariableAddress is the address in local memory at which the text of a body has a word of
// the variables.
func VariableAddress(word int) int { return variableBase + variableStride*word }

// variable returns the index of the variable that an instruction loads or stores, and the
// other register; false if it does nothing of that kind.
func (i *Inst) variable() (word int, reg uint8, store, ok bool) {
	w := i.Word
	at := int(w.Bits(40, 24)) - variableBase
	word = at / variableStride
	switch {
	case w.Opcode() == opLDL:
		reg = uint8(w.Bits(16, 8))
	case w.Opcode() == opSTL:
		reg, store = uint8(w.Bits(32, 8)), true
	default:
		return 0, 0, false, false
	}
	const bits32 = 4
	ok = uint8(w.Bits(24, 8)) == RZ && at >= 0 && at%variableStride == 0 && word < mostVariables && w.Bits(73, 3) == bits32 && w.Bits(91, 1) == 0
	return word, reg, store, ok
}

// moveVariables makes moves of the accesses to variables. It returns which variables there
// are, and the accesses as they were, by index.
func moveVariables(arch Arch, code []Word) (own Set, were map[int]Inst) {
	were = make(map[int]Inst)
	// The compiler takes it that waiting for a load gives time to others, and a move reads
	// its operand earlier than a store.
	delay := func(i int) {
		if i > 0 {
			c := code[i-1].Control()
			c.Stall, c.Yield = Plain.Stall, false
			code[i-1] = code[i-1].WithControl(c)
		}
	}
	var boards uint8
	for i := range code {
		in, known := Decode(arch, code[i])
		if !known {
			continue
		}
		word, reg, store, ok := in.variable()
		if !ok {
			continue
		}
		were[i] = in
		v := uint8(firstVariable + word)
		own.Add(GPR, v, 1)
		move := MOV(reg, v)
		if store {
			move = MOV(v, reg)
			delay(i)
		}
		c := code[i].Control()
		boards |= c.boards()
		c.WriteBar, c.ReadBar, c.Reuse = NoBar, NoBar, 0
		c.Stall, c.Yield = max(c.Stall, settle), false // nothing waits for the result
		code[i] = move.SetBits(12, 4, code[i].Bits(12, 4)).WithControl(c)
	}
	for i := range code {
		if code[i].Control().Wait&boards != 0 {
			delay(i)
		}
	}
	return own, were
}

// findStack finds the instructions with which a body makes a frame on the stack, which do
// nothing from then on, and those that access the frame.
func findStack(arch Arch, code []Word) (frame int, onStack map[int]bool) {
	onStack = make(map[int]bool)
	for i, w := range code {
		switch op := w.Opcode(); {
		case (op == 0x810 && w.Bits(64, 8) == RZ || op == 0x836) && w.Bits(16, 8) == stackPointer && w.Bits(24, 8) == stackPointer && w.Bits(12, 4) == guardAlways:
			frame = max(frame, -int(int32(w.Bits(32, 32))))
			code[i] = NOP().WithControl(w.Control())
		case (op == opLDL || op == opSTL) && w.Bits(24, 8) == stackPointer && w.Bits(91, 1) == 0 && int32(signed(w.Bits(40, 24), 24)) >= 0:
			onStack[i] = true
		}
	}
	return frame, onStack
}

// Reserve gives words of each thread, with what they hold when it begins, registers in all
// of the kernel or, where these are not enough, local memory. It has to be called before
// places get probes. A [*SiteError] says that there is neither.
func (w *Weaver) Reserve(words []uint32) (Variables, error) {
	v := Variables{len(w.own), len(words)}
	_, err := w.first(w.slots > 0)
	switch {
	case err != nil:
		return v, err
	case w.callsOut:
		return v, siteError(-1, "variables of the thread need registers that nothing else uses, and the kernel calls functions of which it is not known which they use")
	case len(words) > w.usable-w.fresh:
		why := w.frames()
		if slices.ContainsFunc(words, func(v uint32) bool { return v != 0 }) {
			why = "they do not begin with zeros"
		}
		if why != "" {
			return v, siteError(-1, "variables of the thread need %d registers in all of the kernel, %d are free without lowering its occupancy, and they can't be in local memory: %s", len(words), max(0, w.usable-w.fresh), why)
		}
		for range words {
			w.own = append(w.own, ownWord{slot: w.slots, local: true})
			w.slots++
		}
		return v, nil
	}
	for _, value := range words {
		w.own = append(w.own, ownWord{reg: uint8(w.fresh), value: value})
		w.never.Add(GPR, uint8(w.fresh), 1)
		w.top = max(w.top, w.fresh)
		w.fresh++
	}
	return v, nil
}

// An ownWord is a variable of each thread.
type ownWord struct {
	reg   uint8
	value uint32 // at first
	// local: it is in local memory, in a slot of 4 bytes, below what functions and probes
	// may use there.
	local bool
	slot  int
}

// frames finds out by how much the stack pointer is lower at each instruction than where
// it is loaded. It says why that can't be told, or is not enough to tell what memory below
// is free; "" if it is.
func (w *Weaver) frames() string {
	switch {
	case w.lowered != nil:
		return ""
	case w.stack < 0:
		return "the stack pointer is not known"
	case w.callsOut || !w.followsCalls():
		return "the kernel calls functions of which it is not known how much of that they use"
	}
	const unknown = -1
	lowered := make([]int, len(w.a.Insts))
	for i := range lowered {
		lowered[i] = unknown
	}
	work := []int{w.stack + 1}
	lowered[w.stack+1] = 0
	for len(work) > 0 {
		i := work[len(work)-1]
		work = work[:len(work)-1]
		blk := &w.a.Blocks[w.a.BlockOf[i]]
		for ; ; i++ {
			now := lowered[i]
			if word := w.a.Insts[i].Word; (word.Opcode() == 0x810 || word.Opcode() == 0x836) && word.Bits(16, 8) == 1 {
				now -= int(int32(word.Bits(32, 32)))
			}
			if now < 0 || now > 1<<20 {
				return "its stack pointer is not below where it began"
			}
			w.mostLowered = max(w.mostLowered, now)
			next := []int{i + 1}
			if i+1 == blk.End {
				if blk.LeavesAnywhere && w.a.Insts[i].Flow().Kind != FlowCall {
					return "it is not known where the kernel goes on"
				}
				next = nil
				for _, s := range blk.Succ {
					next = append(next, w.a.Blocks[s].Start)
				}
			}
			for _, n := range next {
				if lowered[n] != unknown && lowered[n] != now {
					return "its stack pointer differs from way to way"
				}
				if lowered[n] == unknown && i+1 == blk.End {
					work = append(work, n)
				}
				lowered[n] = now
			}
			if i+1 == blk.End {
				break
			}
		}
	}
	w.lowered = lowered
	return ""
}

// followsCalls reports whether what is called is in the code, which goes on behind the call
// then, or never comes back.
func (w *Weaver) followsCalls() bool {
	if w.a.localCalls {
		return true
	}
	for i := range w.a.Insts {
		if !w.a.Insts[i].Known() || !w.a.isCall(i) {
			continue
		}
		if _, ok := w.a.Target(i); ok && !w.listed[i] {
			return false // there are others besides, so that returns are not known
		}
	}
	return true
}

// variables notes where a body's variables are before the instruction at index i, at exits
// the one of any of them.
func (w *Weaver) variables(i int, p *probe, pl *placement) error {
	pl.local, pl.lowered = nil, 0
	if p.body.frame > 0 {
		if why := w.frames(); why != "" {
			return siteError(i, "the probe needs %d bytes of stack: %s", p.body.frame, why)
		}
		if w.lowered[i] < 0 {
			return siteError(i, "the probe needs a stack, and the stack pointer has no value there")
		}
		pl.lowered = w.lowered[i]
	}
	for _, a := range p.args {
		if a.kind != argOwn {
			continue
		}
		for k := range int(a.value) {
			o := w.own[a.offset+k]
			if !o.local {
				pl.r[firstVariable+k] = o.reg
				continue
			}
			if w.lowered[i] < 0 {
				return siteError(i, "the stack pointer has no value there, and variables of the thread are in local memory")
			}
			pl.local, pl.lowered = append(pl.local, o.slot), w.lowered[i]
		}
	}
	return nil
}

// localOffset is where a slot is, from the stack pointer at a place on: below what the
// kernel has there at most, and what probes save.
func (e *emitter) localOffset(lowered, slot int) int {
	return -(e.w.mostLowered - lowered) - e.saved - 4*(slot+1)
}

// frameOffset is where the frame of a body is: below the variables, and aligned.
func (e *emitter) frameOffset(lowered, frame int) int {
	return lowered - (e.w.mostLowered+e.saved+4*e.w.slots+frame+15)&^15
}

// begin gives variables their first values.
func (e *emitter) begin(s *site) {
	start := len(e.out.Code)
	for _, o := range s.begins {
		if !o.local {
			e.fixed(MOVImm(o.reg, o.value))
			continue
		}
		e.stall(stackWord(opSTL, RZ, e.localOffset(e.w.lowered[s.index], o.slot)), 2)
	}
	e.settled(start)
}

// atVariable returns an instruction that accesses a variable in local memory, under the
// guard of the renamed one.
func (e *emitter) atVariable(in Inst, renamed Word, pl *placement) Word {
	word, reg, store, _ := in.variable()
	opcode := uint64(opLDL)
	if store {
		opcode = opSTL
	}
	to := stackWord(opcode, pl.r[reg], e.localOffset(pl.lowered, pl.local[word]))
	return to.SetBits(12, 4, renamed.Bits(12, 4)).WithControl(in.Word.Control())
}

// ownRegs are the registers of all variables.
func (w *Weaver) ownRegs() (s Set) {
	for _, o := range w.own {
		if !o.local {
			s.Add(GPR, o.reg, 1)
		}
	}
	return s
}
