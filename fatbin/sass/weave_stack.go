package sass

import "slices"

// Where there are not enough registers, some of the kernel's are saved in local memory
// below the stack pointer, R1, while a probe runs: nobody uses that memory then, as
// functions that are called take theirs away from R1 first, and give it back.

// stackBoard is the scoreboard that tells when the stack pointer is loaded.
const stackBoard = 5

// stackPointer returns the index of the instruction that loads the stack pointer; -1 if
// that is not known to be in R1 later on.
func (w *Weaver) stackPointer() int {
	if w.uncertain != "" || len(w.a.Blocks) == 0 || len(w.a.Blocks[0].Pred) > 0 {
		return -1
	}
	at := -1
	for i := range w.a.Insts {
		in := &w.a.Insts[i]
		_, write := in.Uses()
		if !write.Has(GPR, 1) {
			continue
		}
		word := in.Word
		_, _, guarded := in.Guard()
		switch {
		case guarded:
			return -1
		case at < 0 && w.a.BlockOf[i] == 0 && i+1 < len(w.a.Insts) && w.loadsStackPointer(word):
			at = i
		case word.Opcode() == 0x810 && word.Bits(24, 8) == 1 && word.Bits(64, 8) == RZ, word.Opcode() == 0x836 && word.Bits(24, 8) == 1:
			// IADD3 and VIADD, which make and remove a frame.
		default:
			return -1
		}
	}
	return at
}

// loadsStackPointer reports whether an instruction puts the constant into R1 in which the
// driver gives the end of a thread's local memory.
func (w *Weaver) loadsStackPointer(word Word) bool {
	offset := w.arch.trait().stackEnd
	switch word.Opcode() {
	case 0xb82: // LDC, of a word, without an index
		return word.Bits(24, 8) == RZ && word.Bits(38, 21) == offset && word.Bits(73, 3) == 4
	case 0xa02: // MOV
		return word.Bits(38, 21) == offset
	case 0xa24: // IMAD.MOV.U32: RZ × RZ + constant is another form, so this is RZ × c + RZ
		return false
	case 0x624: // IMAD.MOV.U32, RZ × RZ + constant
		return word.Bits(24, 8) == RZ && word.Bits(64, 8) == RZ && word.Bits(38, 21) == offset
	}
	return false
}

// spillable returns the registers that can be saved at a place: all of the kernel's but
// the stack pointer, those that instructions on their way use although nothing tells
// when, and those that the probe's arguments come from.
func (w *Weaver) spillable(i int, p *probe, busy *Set) (Set, bool) {
	var s Set
	if w.stack < 0 || w.a.BlockOf[i] == 0 && i <= w.stack {
		return s, false
	}
	s.Add(GPR, 0, uint8(w.fresh))
	s.Minus(busy)
	if slices.ContainsFunc(p.args, func(a Arg) bool { return a.kind == argAddress || a.kind == argValue }) {
		read, _ := w.a.Insts[i].Uses()
		s.Minus(&read)
	}
	return s, true
}

// local makes a store to or a load from a word of local memory below the stack pointer.
func local(opcode uint64, reg uint8, slot int) Word { return stackWord(opcode, reg, -4*(slot+1)) }

// stackWord does that at an offset from the stack pointer.
func stackWord(opcode uint64, reg uint8, offset int) Word {
	at := uint64(24) // address; the register is at 32 in a store and at 16 in a load
	pos := uint64(32)
	if opcode == opLDL {
		pos = 16
	}
	return plain(opcode|1<<at|uint64(reg)<<pos|uint64(offset)<<40, 4<<(73-64)|1<<(84-64))
}

// save stores the registers of a probe's place.
func (e *emitter) save(pl *placement) {
	e.spill(pl, opSTL, func(c *Control) { c.ReadBar = 0 })
}

// stack finds out how many bytes of local memory a thread needs more.
func (e *emitter) stack() {
	frame := 0
	for _, p := range slices.Concat(e.w.probes(), e.w.atExits()) {
		e.saved = max(e.saved, 4*len(p.regs.spilled))
		frame = max(frame, p.body.frame)
	}
	if e.saved+e.w.slots+frame > 0 {
		e.out.Stack = (-e.frameOffset(0, frame) - e.w.mostLowered + 15) &^ 15
	}
}

// restore loads them.
func (e *emitter) restore(pl *placement) {
	e.spill(pl, opLDL, func(c *Control) { c.WriteBar = 0 })
}

// spill moves the registers of a probe's place to or from local memory, and waits until
// that is done, for scoreboard 0.
func (e *emitter) spill(pl *placement, opcode uint64, board func(*Control)) {
	if len(pl.spilled) == 0 {
		return
	}
	for k, r := range pl.spilled {
		w := local(opcode, r, k)
		c := w.Control()
		c.Stall = boardStall
		board(&c)
		e.put(w.WithControl(c))
	}
	e.wait(1, 2)
}

// awaitStackPointer has the instruction behind the load of the stack pointer wait for it,
// where places use it; compilers leave that out where a kernel has no frame.
func (e *emitter) awaitStackPointer() {
	if e.out.Stack == 0 {
		return
	}
	i := e.w.stack
	c := e.w.a.Insts[i].Word.Control()
	if e.w.a.Insts[i].Word.Opcode() != 0xb82 { // a move, which has a fixed latency
		c.Stall, c.Yield = Plain.Stall, false
		e.out.Code[i] = e.out.Code[i].WithControl(c)
		return
	}
	if c.WriteBar == NoBar {
		c.WriteBar = stackBoard
	}
	c.Stall = max(c.Stall, boardStall)
	e.out.Code[i] = e.out.Code[i].WithControl(c)
	next := e.out.Code[i+1].Control()
	next.Wait |= 1 << c.WriteBar
	e.out.Code[i+1] = e.out.Code[i+1].WithControl(next)
}

// atExits returns the probes of the exits.
func (w *Weaver) atExits() (list []*probe) {
	for k := range w.exits {
		list = append(list, &w.exits[k])
	}
	return list
}

// probes returns the probes of all places but the exits.
func (w *Weaver) probes() (list []*probe) {
	for _, s := range w.sites {
		for k := range s.probes {
			list = append(list, &s.probes[k])
		}
		if s.after != nil {
			list = append(list, s.after)
		}
	}
	return list
}
