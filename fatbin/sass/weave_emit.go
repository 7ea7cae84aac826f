package sass

import (
	"errors"
	"maps"
	"math/bits"
	"slices"
)

// An emitter writes the new code.
type emitter struct {
	w     *Weaver
	out   *Woven
	loads uint8 // scoreboards of what the present arguments are loaded from
	// moved gives the index of an instruction that is run elsewhere by that of its copy.
	moved map[int]int
	// blocks are what is appended for places, the displaced instruction excluded.
	blocks []block
	// copies are the bodies in the new code, calls the jumps to shared ones, by index.
	copies []bodyCopy
	calls  map[int]*sharedCopy
	saved  int // bytes of local memory in which places save registers
	// ends are the instructions that end threads, by index. The new code has jumps to the
	// ends of their probes there until it is checked, as if these threads went on.
	ends map[int]Word
}

// A bodyCopy is a body in the new code, from the index base on.
type bodyCopy struct {
	base  int
	probe *probe
}

// A block is code that is appended for a place, by indices.
type block struct {
	site, start, end int
	displaced        int // the index of the instruction that was there
}

var errTooFar = errors.New("the code is too large for a jump")

func (e *emitter) put(w Word) { e.out.Code = append(e.out.Code, w) }

// fixed puts an instruction of fixed latency on the result of which nothing waits that
// follows soon.
func (e *emitter) fixed(w Word) { e.stall(w, 2) }

func (e *emitter) stall(w Word, cycles uint8) {
	c := w.Control()
	c.Stall = cycles
	e.put(w.WithControl(c))
}

// wait puts an instruction that waits for scoreboards, then lets cycles go by.
func (e *emitter) wait(boards, cycles uint8) {
	w := NOP()
	c := w.Control()
	c.Wait, c.Stall = boards, cycles
	e.put(w.WithControl(c))
}

// jump makes a jump from one index to another.
func (e *emitter) jump(from, to int) (Word, error) {
	w, ok := BRA(e.w.arch, int64(to-from-1)*WordSize)
	if !ok {
		return w, errTooFar
	}
	c := w.Control()
	c.Stall = branchStall
	return w.WithControl(c), nil
}

// branchStall is the stall that the compilers give a jump.
const branchStall = 5

// tellBoard is the scoreboard for what told nobody when it had read its registers.
const tellBoard = 5

func (e *emitter) emit() error {
	e.stack()
	e.awaitStackPointer()
	for i := range e.w.a.Insts {
		if e.w.tell && e.w.silentReader(i) && readsLate(&e.w.a.Insts[i]) {
			e.out.Code[i] = e.out.Code[i].WithControl(e.out.Code[i].Control().tells(tellBoard))
		}
	}
	// The exits' common code first: other blocks may jump to it.
	exit := -1
	if len(e.w.exits) > 0 {
		exit = len(e.out.Code)
		if err := e.exitBlock(); err != nil {
			return err
		}
		for i := range e.w.a.Insts {
			if e.w.a.Insts[i].Word.Opcode() != opEXIT || e.w.sites[i] != nil {
				continue
			}
			w, err := e.exitJump(e.w.a.Insts[i].Word, i, exit)
			if err != nil {
				return err
			}
			e.replace(i, w)
		}
	}
	for _, s := range e.w.shared {
		if err := e.sharedCopy(s); err != nil {
			return err
		}
	}
	for _, i := range slices.Sorted(maps.Keys(e.w.sites)) {
		if err := e.site(e.w.sites[i], exit); err != nil {
			return err
		}
	}
	for len(e.out.Code)%(sectionAlign/WordSize) != 0 {
		e.put(NOP())
	}
	return nil
}

// sectionAlign is what the size of code is a multiple of.
const sectionAlign = 128

// endThreads puts the instructions that end threads in their places.
func (e *emitter) endThreads() {
	for i, w := range e.ends {
		e.out.Code[i] = w.WithControl(e.out.Code[i].Control())
	}
}

// listExits notes the offsets of all exits.
func (e *emitter) listExits() {
	for i, w := range e.out.Code {
		if w.Opcode() == opEXIT {
			e.out.Exits = append(e.out.Exits, uint32(i*WordSize))
		}
	}
}

// replace puts a jump at an instruction that is run elsewhere. It waits for what the
// instruction waited for, which is what its operands need. The operand cache of the
// instruction before does not outlive a jump.
func (e *emitter) replace(i int, jump Word) {
	c := jump.Control()
	c.Wait = e.out.Code[i].Control().Wait
	e.out.Code[i] = jump.WithControl(c)
	if i > 0 {
		b := e.out.Code[i-1].Control()
		b.Reuse = 0
		e.out.Code[i-1] = e.out.Code[i-1].WithControl(b)
	}
}

// exitJump makes a jump of an exit: by its guard, and by its condition, which both
// have at the same bits.
func (e *emitter) exitJump(exit Word, from, to int) (Word, error) {
	w, err := e.jump(from, to)
	if err != nil {
		return w, err
	}
	w = w.SetBits(12, 4, exit.Bits(12, 4)).SetBits(87, 4, exit.Bits(87, 4))
	// Threads that stay go on as behind the exit.
	c, old := w.Control(), exit.Control()
	c.Wait = old.Wait
	if old.Stall > c.Stall {
		c.Stall, c.Yield = old.Stall, old.Yield
	}
	return w.WithControl(c), nil
}

// exitBlock writes the probes that run at exits.
func (e *emitter) exitBlock() error {
	for k := range e.w.exits {
		p := &e.w.exits[k]
		if err := e.probe(-1, p, k == len(e.w.exits)-1); err != nil {
			return err
		}
	}
	return nil
}

// site writes a block for a place.
func (e *emitter) site(s *site, exit int) error {
	i := s.index
	start := len(e.out.Code)
	jump, err := e.jump(i, start)
	if err != nil {
		return err
	}
	report := SiteReport{Offset: i * WordSize, Block: start * WordSize}
	e.begin(s)
	e.adds(s)
	count := func(p *probe) {
		for r := e.w.fresh; r <= p.regs.high; r++ {
			if p.regs.used.Has(GPR, uint8(r)) {
				report.Fresh++
			}
		}
		report.Spilled += len(p.regs.spilled)
		report.Saved += bits.OnesCount8(p.regs.save)
	}
	for k := range s.probes {
		if err := e.probe(i, &s.probes[k], false); err != nil {
			return err
		}
		count(&s.probes[k])
	}
	if s.after != nil {
		e.enter(i, s.after)
		from := len(e.out.Code)
		e.addresses(i, s.after)
		e.settled(from)
		count(s.after)
	}
	in := e.w.a.Insts[i]
	word := e.out.Code[i]
	c := word.Control()
	c.Reuse = 0
	word = word.WithControl(c)
	here := len(e.out.Code)
	switch f := in.Flow(); {
	case f.Kind == FlowExit && exit >= 0:
		if word, err = e.exitJump(word, here, exit); err != nil {
			return err
		}
	case f.HasTarget:
		t, _ := e.w.a.Target(i)
		in.Word = word
		var ok bool
		if word, ok = in.withTarget(int64(t-here-1) * WordSize); !ok {
			return errTooFar
		}
	}
	e.moved[here] = i
	if s.after != nil {
		word = awaited(word)
	}
	e.put(word)
	if s.after != nil {
		e.wait(word.Control().boards(), settle)
		if err := e.leave(i, s.after, false); err != nil {
			return err
		}
	}
	e.blocks = append(e.blocks, block{i, start, len(e.out.Code), here})
	if f := in.Flow(); (f.Kind == FlowNext || f.Kind == FlowSet) || f.Conditional {
		back, err := e.jump(len(e.out.Code), i+1)
		if err != nil {
			return err
		}
		e.put(back)
	}
	e.replace(i, jump)
	report.Instructions = len(e.out.Code) - start
	e.out.Sites = append(e.out.Sites, report)
	return nil
}

// awaited has a load tell when it has written its registers.
func awaited(load Word) Word {
	c := load.Control()
	if c.WriteBar == NoBar {
		if c.WriteBar = tellBoard; c.ReadBar == tellBoard {
			c.WriteBar--
		}
	}
	c.Stall = max(c.Stall, boardStall)
	return load.WithControl(c)
}

// probe writes a probe before the instruction at index i, or for the exits if that is
// -1; the last of these ends the thread.
func (e *emitter) probe(i int, p *probe, last bool) error {
	e.enter(i, p)
	return e.leave(i, p, last)
}

// saved are the predicates that a probe saves; nobody needs them at exits.
func (p *probe) saved(i int) uint8 {
	if i < 0 {
		return 0
	}
	return p.regs.save
}

// enter writes what comes first of a probe: it makes registers free.
func (e *emitter) enter(i int, p *probe) {
	// What instructions of fixed latency still write must be there before it is saved
	// or overwritten.
	wait := p.wait
	if e.w.tell {
		wait |= 1 << tellBoard // what was known from the order in which stores read is now told
	}
	e.wait(wait, mostStall)
	if e.w.afterMatrix(i) {
		for range maxDistance / mostStall {
			e.wait(0, mostStall)
		}
	}
	e.save(&p.regs)
	if save := p.saved(i); save != 0 {
		e.fixed(P2R(p.regs.keep, save))
	}
}

// mostStall is the highest stall count.
const mostStall = 15

// afterMatrix reports whether a matrix instruction of fixed latency may still write its results
// when the instruction at index i issues; at exits i is -1. Compilers leave 15 cycles for those of
// some shapes and 24 or more for others, which the opcode does not tell.
func (w *Weaver) afterMatrix(i int) bool {
	if i >= 0 {
		cycles := 0
		for j := i - 1; j >= w.a.Blocks[w.a.BlockOf[i]].Start; j-- {
			in := &w.a.Insts[j]
			if cycles += max(1, int(in.Word.Control().Stall)); cycles >= maxDistance {
				return false
			}
			if in.fixedMatrix() {
				return true
			}
		}
	}
	return w.matrix
}

// leave writes the rest.
func (e *emitter) leave(i int, p *probe, last bool) error {
	e.give(i, p)
	var err error
	if p.shared != nil {
		err = e.call(p)
	} else {
		err = e.body(p, e.loads, last)
	}
	if err != nil {
		return err
	}
	if save := p.saved(i); save != 0 {
		e.wait(0, 2)
		e.stall(R2P(p.regs.keep, save), predicateStall)
	}
	if !last {
		e.restore(&p.regs)
	}
	return nil
}

// body writes the instructions of a probe, the first of which waits for scoreboards.
// Unless it is the last thing that a thread does, control goes on behind them, with the
// threads together that came in together: the kernel may use uniform registers there,
// which are one for all threads of a warp.
func (e *emitter) body(p *probe, boards uint8, last bool) error {
	code, end := p.body.code, NOP()
	n := len(code)
	if in := &p.body.insts[n-1]; !last && in.Word.Opcode() == opEXIT && !in.Flow().Conditional && !p.body.ends[n-1] {
		n-- // what comes behind stands in its place
	}
	if meet := p.regs.meet; meet != noBarrier && !last {
		end = BSYNC(e.w.arch, meet)
		w, ok := BSSY(e.w.arch, meet, int64(n+len(p.body.leaves)+1)*WordSize)
		if !ok {
			return errTooFar
		}
		e.stall(w, settle)
	}
	base := len(e.out.Code)
	e.copies = append(e.copies, bodyCopy{base, p})
	for _, at := range p.body.halves {
		e.out.Halves = append(e.out.Halves, base*WordSize+at)
	}
	for k := range n {
		w := p.body.renamed(k, &p.regs)
		if in, ok := p.body.accesses[k]; ok && p.regs.local != nil {
			w = e.atVariable(in, w, &p.regs)
		}
		if p.body.onStack[k] {
			at := e.frameOffset(p.regs.lowered, p.body.frame) + int(code[k].Bits(40, 24))
			w = w.SetBits(40, 24, uint64(at))
		}
		if k == 0 {
			c := w.Control()
			c.Wait |= boards
			w = w.WithControl(c)
		}
		if w.Opcode() == opEXIT && !last {
			if p.body.ends[k] {
				e.ends[base+k] = w
			}
			var err error
			if w, err = e.exitJump(w, base+k, base+n); err != nil {
				return err
			}
		}
		e.put(w)
	}
	if !last {
		for _, r := range p.body.leaves {
			e.stall(BREAK(e.w.arch, p.regs.b[r]), branchStall)
		}
		// All is done then that the body began.
		c := end.Control()
		c.Wait, c.Stall = p.body.boards, settle
		e.put(end.WithControl(c))
	}
	return nil
}
