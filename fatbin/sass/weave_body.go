package sass

import (
	"errors"
	"fmt"
	"slices"

	"nvtrace/fatbin"
)

// A Body is the compiled code of a probe: a PTX function with parameters, declared
// .noreturn and compiled with the option --compile-as-tools-patch, in which the
// compiler uses no uniform registers. It begins with its parameters in registers from
// R4 on, 64 bits in two of which the first is even. In the place of each EXIT the kernel's
// code goes on; PTX's trap, which nothing else in a probe stands for, ends the thread.
type Body struct {
	Arch Arch

	code []Word
	// insts are code, decoded.
	insts []Inst
	// parts says that threads that come in together may leave one by one: the code jumps
	// or ends under a condition.
	parts bool
	// ends are the instructions that end the thread, by index.
	ends map[int]bool
	// leaves are the convergence barriers of regions in which threads may end: they leave
	// these by that, but not by the jump in its place.
	leaves []uint8
	used   Set
	ops    []Operand
	groups []group
	// live are the registers that the code reads before it writes them.
	live Set
	// own are registers that stand for variables of the thread.
	own Set
	// accesses are the instructions that access them, as they were, by index.
	accesses map[int]Inst
	// frame is how many bytes of stack the code needs, onStack are the instructions that
	// access them, by index.
	frame   int
	onStack map[int]bool
	// halves are the offsets in the code at which upper halves of addresses stand; see
	// Movable.
	halves []int
	// boards are the scoreboards that it sets.
	boards uint8
	// late are the registers that an instruction, by index, overwrites although nothing
	// tells that earlier ones have read them.
	late map[int]Set
	// other are those that a guarded instruction, by index, overwrites in other threads than
	// those for which they are still to be written: of what stood in two branches, the compiler
	// makes instructions with opposite guards.
	other map[int]Set
	// early are pairs of instructions, by index, of which the compiler has the second follow
	// sooner than was seen elsewhere.
	early map[[2]int]bool
}

// ErrBody is in the chain of errors about code that can't serve as a [Body].
var ErrBody = errors.New("not usable as a probe")

// The registers that parameters are in.
const (
	firstParam = 4
	lastParam  = 15
)

// BodyFromCubin finds a function in a cubin and makes a Body of it.
func BodyFromCubin(image []byte, name string) (*Body, error) {
	c, err := fatbin.ParseCubin(image)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(c.Functions, func(f fatbin.Function) bool { return f.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("cubin: no function %s: %w", name, ErrBody)
	}
	f := &c.Functions[i]
	if uint64(f.Section) >= uint64(len(c.Sections)) {
		return nil, fmt.Errorf("cubin: function %s has no code: %w", name, ErrBody)
	}
	s := &c.Sections[f.Section]
	size := uint64(len(image))
	if s.Type == 8 || s.Offset > size || s.Size > size-s.Offset || f.Offset > s.Size || f.Size > s.Size-f.Offset {
		return nil, fmt.Errorf("cubin: function %s has no code: %w", name, ErrBody)
	}
	const typeRela, typeRel = 4, 9
	for j := range c.Sections {
		if r := &c.Sections[j]; (r.Type == typeRela || r.Type == typeRel) && r.Info&0xffffff == f.Section && r.Size > 0 {
			return nil, fmt.Errorf("function %s has relocations: %w", name, ErrBody)
		}
	}
	return newBody(Arch(c.Arch.SM), name, Words(image[s.Offset+f.Offset:s.Offset+f.Offset+f.Size]))
}

// newBody makes a Body of a function's code. An error, with [ErrBody] in its chain,
// says what a weaver can't move elsewhere.
func newBody(arch Arch, name string, code []Word) (*Body, error) {
	compiled := code
	code = slices.Clone(code)
	openCollectives(arch, code)
	stayTogether(arch, code)
	guardSkipped(arch, code)
	dropMeetings(arch, code)
	ends := endThreads(code)
	own, accesses := moveVariables(arch, code)
	frame, onStack := findStack(arch, code)
	a, err := Analyze(&Func{Arch: arch, Name: name, Code: code})
	if err != nil {
		return nil, err
	}
	bad := func(i int, format string, args ...any) error {
		return fmt.Errorf("function %s+0x%x: %s: %w", name, i*WordSize, fmt.Sprintf(format, args...), ErrBody)
	}
	if len(a.Insts) == 0 {
		return nil, bad(0, "no code")
	}
	b := &Body{Arch: arch, own: own, accesses: accesses, frame: frame, onStack: onStack, ends: ends}
	n := reachable(a)
	b.code = slices.Clone(code[:n])
	b.insts = a.Insts[:n]
	exits := 0
	for i := range b.insts {
		in := &b.insts[i]
		if !in.Known() {
			return nil, bad(i, "an unknown instruction, %s", in.Word)
		}
		if i >= maxBody {
			return nil, bad(i, "it has more than %d instructions", maxBody)
		}
		f := in.Flow()
		b.parts = b.parts || (f.Kind == FlowBranch || f.Kind == FlowExit) && f.Conditional
		switch f.Kind {
		case FlowNext, FlowSync, FlowBreak, FlowWarp:
		case FlowBranch, FlowSet:
			if t, ok := a.Target(i); !ok || t >= n || in.Word.Opcode() != opBRA && in.Word.Opcode() != opBSSY {
				return nil, bad(i, "%s to an unknown place", in.Name())
			}
		case FlowExit:
			exits++
		default:
			return nil, bad(i, "%s leaves it", in.Name())
		}
		if beginsCollective(in.Word) || in.Word.Opcode() == opEndCollective {
			return nil, bad(i, "a collective of an unknown form")
		}
		switch in.Name() {
		case "LDL", "STL":
			a, _ := in.Access()
			switch at := int(in.Word.Bits(40, 24)); {
			case !onStack[i]:
				return nil, bad(i, "%s is of the kernel", in.Name())
			case at+a.Size > frame:
				return nil, bad(i, "%s beyond its stack of %d bytes", in.Name(), frame)
			}
		case "BAR", "BMOV", "USETMAXREG", "LEPC", "DEPBAR":
			return nil, bad(i, "%s is of the kernel", in.Name())
		}
		for _, o := range bodyOperands(in) {
			switch {
			case o.Len == 0:
				return nil, bad(i, "%s names a register that it can't be told", in.Name())
			case o.Kind == UGPR, o.Kind == UPred:
				return nil, bad(i, "a uniform register, %s", o)
			case o.Kind == GPR && o.Reg == stackPointer && onStack[i]:
				continue
			case o.Kind == GPR && o.Reg <= 1 && o.Reg+o.Count > 1:
				return nil, bad(i, "the stack, %s", o)
			case o.Kind == GPR && own.Has(GPR, o.Reg):
				if n := in.Word.Opcode(); n != 0x202 {
					return nil, bad(i, "a register that stands for a variable, %s", o)
				}
				continue // not of the probe's place
			case o.Kind == GPR && int(o.Reg)+int(o.Count) > firstVariable:
				return nil, bad(i, "more than %d registers, %s", firstVariable, o)
			}
			b.used.addOperand(&o)
			b.ops = append(b.ops, o)
		}
	}
	if exits == 0 {
		return nil, bad(0, "no EXIT")
	}
	b.findLeaves(a)
	b.live = a.LiveIn[0]
	// The stack pointer, which the body does not use, counts as live where a function
	// ends, and barriers everywhere.
	b.live.B = 0
	var stack Set
	stack.Add(GPR, 1, 1)
	b.live.Minus(&stack)
	b.live.Minus(&own)
	b.guardReads()
	b.knowLate(name)
	b.knowEarly(name, compiled[:n])
	b.groups = groupsOf(b.ops, &b.used)
	return b, nil
}

// openCollectives makes instructions as they stand in kernels of those that compilers write
// in functions from sm_90 on, as WARPSYNC.COLLECTIVE R, X; MATCH.ANY; ENDCOLLECTIVE, before X:
// threads of the warp that wait at a convergence barrier meanwhile do not meet the others
// behind that (seen on sm_90).
func openCollectives(arch Arch, code []Word) {
	for i := range code {
		if code[i].Opcode() != opWarpSync || !beginsCollective(code[i]) {
			continue
		}
		in := Inst{Word: code[i], Arch: arch}
		t, _ := in.target()
		end := i + int(t/WordSize)
		if end <= i || end >= len(code) || code[end].Opcode() != opEndCollective {
			continue // newBody refuses it
		}
		w, _ := in.withTarget(0)
		code[i] = w.SetBits(collectiveBit, 1, 0)
		code[end] = NOP().WithControl(code[end].Control())
	}
}

// stayTogether takes out of a body what gives other threads of the warp a turn: a YIELD lets
// threads go on that wait at a convergence barrier, of the kernel or of the body, without
// those that run it (seen on sm_90), and a NANOSLEEP is taken to do so, too. Compilers put
// the one into loops that may wait for another thread of the warp. In those of probes
// threads that have to try again meet the others first; see again in package nvattach.
func stayTogether(arch Arch, code []Word) {
	for i, w := range code {
		if in, ok := Decode(arch, w); ok && (in.Name() == "YIELD" || in.Name() == "NANOSLEEP") {
			code[i] = NOP().WithControl(w.Control())
		}
	}
}

// mostGuarded is how many instructions guardSkipped gives a guard at most.
const mostGuarded = 8

// guardSkipped gives instructions that a conditional jump or exit skips the guard of that, turned
// around: threads then stay together, and a place needs no convergence barrier.
func guardSkipped(arch Arch, code []Word) {
	jumps := jumpsTo(arch, code)
	for i, w := range code {
		in, ok := Decode(arch, w)
		guard, negated, guarded := in.Guard()
		if !ok || !guarded || w.Bits(87, 4) != guardAlways {
			continue
		}
		end := -1
		switch w.Opcode() {
		case opBRA:
			if t, ok := in.target(); ok && t > 0 {
				end = i + 1 + int(t/WordSize)
			}
		case opEXIT:
			isExit := func(w Word) bool { return w.WithControl(Control{}) == exit().WithControl(Control{}) }
			end = i + 1 + slices.IndexFunc(code[i+1:], isExit)
		}
		if end <= i+1 || end > min(i+1+mostGuarded, len(code)-1) || !canGuard(arch, code[i+1:end], guard) {
			continue
		}
		if slices.ContainsFunc(jumps, func(to int) bool { return to > i && to < end }) {
			continue
		}
		code[i] = NOP().WithControl(w.Control())
		for k := i + 1; k < end; k++ {
			code[k] = code[k].Guarded(guard, !negated)
		}
	}
}

// dropMeetings takes out convergence barriers at which threads meet that were not parted: what parted them
// has become guards.
func dropMeetings(arch Arch, code []Word) {
	jumps := jumpsTo(arch, code)
	for i, w := range code {
		in, ok := Decode(arch, w)
		if !ok || w.Opcode() != opBSSY {
			continue
		}
		t, ok := in.target()
		end := i + int(t/WordSize) // BSYNC is before the target
		if !ok || t <= 0 || end >= len(code) || code[end].Opcode() != opBSYNC || code[end].Bits(16, 4) != w.Bits(16, 4) ||
			!goesOn(arch, code[i+1:end]) || slices.ContainsFunc(jumps, func(to int) bool { return to > i && to <= end }) {
			continue
		}
		code[i], code[end] = NOP().WithControl(w.Control()), NOP().WithControl(code[end].Control())
	}
}

// jumpsTo returns where jumps go, by index.
func jumpsTo(arch Arch, code []Word) (list []int) {
	for i, w := range code {
		if in, ok := Decode(arch, w); ok && in.Flow().HasTarget && w.Opcode() != opBSSY {
			if t, ok := in.target(); ok {
				list = append(list, i+1+int(t/WordSize))
			}
		}
	}
	return list
}

// goesOn reports whether control goes from each of some instructions to the next.
func goesOn(arch Arch, code []Word) bool {
	return !slices.ContainsFunc(code, func(w Word) bool {
		in, ok := Decode(arch, w)
		return !ok || in.Flow().Kind != FlowNext
	})
}

// canGuard reports whether all of some instructions can have a predicate as their guard.
func canGuard(arch Arch, code []Word, guard uint8) bool {
	for _, w := range code {
		in, _ := Decode(arch, w)
		if in.guardKind() != Pred {
			return false
		}
		_, write := in.Uses()
		if _, _, has := in.Guard(); has || write.Has(Pred, guard) {
			return false
		}
	}
	return goesOn(arch, code)
}

// endThreads makes an EXIT of each trap, and returns their indices.
func endThreads(code []Word) map[int]bool {
	ends := make(map[int]bool)
	for i, w := range code {
		plain := w.WithControl(Control{}).Guarded(PT, false)
		if plain != (Word{Lo: opTrap, Hi: trapMode}) {
			continue
		}
		c := w.Control()
		c.Stall = max(c.Stall, branchStall)
		code[i] = exit().SetBits(12, 4, w.Bits(12, 4)).WithControl(c)
		ends[i] = true
	}
	return ends
}

// findLeaves fills in leaves.
func (b *Body) findLeaves(a *Analysis) {
	for i := range b.insts {
		t, ok := a.Target(i)
		if b.code[i].Opcode() != opBSSY || !ok || i+1 >= len(b.insts) {
			continue
		}
		seen := make([]bool, len(a.Blocks))
		todo := []int{int(a.BlockOf[i+1])}
		for len(todo) > 0 {
			k := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			if seen[k] || k == int(a.BlockOf[t]) {
				continue
			}
			seen[k] = true
			if last := a.Blocks[k].End - 1; last < len(b.code) && b.code[last].Opcode() == opEXIT && !b.ends[last] {
				if r := uint8(b.code[i].Bits(16, 4)); !slices.Contains(b.leaves, r) {
					b.leaves = append(b.leaves, r)
				}
			}
			todo = append(todo, a.Blocks[k].Succ...)
		}
	}
}

// maxBody bounds a body, of which each place has a copy.
const maxBody = 4096

// reachable returns how many instructions there are up to the last that control comes
// to; behind it are a jump to itself and padding.
func reachable(a *Analysis) int {
	n := 0
	for b, ok := range a.reached() {
		if ok {
			n = max(n, a.Blocks[b].End)
		}
	}
	return n
}

// bodyOperands returns the registers of an instruction.
func bodyOperands(in *Inst) []Operand {
	ops := in.Operands(nil)
	if in.Word.Opcode() == opWarpSync && !slices.ContainsFunc(ops, func(o Operand) bool { return o.Pos == 24 }) {
		// The mask of lanes, which the disassembler doesn't count.
		if r := uint8(in.Word.Bits(24, 8)); r != RZ {
			ops = append(ops, Operand{Kind: GPR, Reg: r, Count: 1, Pos: 24, Len: 8, Read: true})
		}
	}
	return ops
}

// guardReads lets each instruction that may read its registers late, and says so to
// nobody because no code followed it, set a scoreboard; what comes behind the body
// then can wait for that. It also notes all scoreboards in use.
func (b *Body) guardReads() {
	var inUse [6]int
	for _, w := range b.code {
		c := w.Control()
		for _, bar := range []uint8{c.WriteBar, c.ReadBar} {
			if bar < 6 {
				inUse[bar]++
				b.boards |= 1 << bar
			}
		}
	}
	free := uint8(0)
	for i := range uint8(6) {
		if inUse[i] <= inUse[free] {
			free = i
		}
	}
	for i, in := range b.accesses {
		c := in.Word.Control()
		if c.WriteBar == NoBar && c.ReadBar == NoBar {
			in.Word = in.Word.WithControl(c.tells(free))
			b.accesses[i] = in
		}
		b.boards |= in.Word.Control().boards()
	}
	for i := range b.insts {
		in := &b.insts[i]
		c := b.code[i].Control()
		if !readsLate(in) || c.WriteBar != NoBar || c.ReadBar != NoBar {
			continue
		}
		b.code[i] = b.code[i].WithControl(c.tells(free))
		b.boards |= 1 << free
	}
	// A load writes later than what comes before it reads; a move in its place has to wait.
	var before uint8
	for i, w := range b.code {
		if in, ok := b.accesses[i]; ok && in.Word.Opcode() == opLDL {
			c := w.Control()
			c.Wait |= before
			b.code[i] = w.WithControl(c)
		}
		before |= b.code[i].Control().boards()
	}
}

// knowLate fills in late and other. The registers that the body uses are its own.
func (b *Body) knowLate(name string) {
	b.late, b.other = make(map[int]Set), make(map[int]Set)
	a, err := Analyze(&Func{Arch: b.Arch, Name: name, Code: b.code, Woven: func(int) bool { return true }})
	if err != nil {
		return // nothing is known then, which is safe
	}
	for _, f := range a.Check(0) {
		if _, moved := b.accesses[f.Index]; moved {
			continue
		}
		known := b.late
		switch _, _, guarded := b.insts[f.Index].Guard(); {
		case f.Hazard == HazardInFlight:
		case f.Hazard == HazardWrite && guarded:
			known = b.other
		default:
			continue
		}
		regs := known[f.Index]
		regs.Union(&f.Regs)
		known[f.Index] = regs
	}
}

// knowEarly fills in early, from the code as it was compiled.
func (b *Body) knowEarly(name string, code []Word) {
	b.early = make(map[[2]int]bool)
	a, err := Analyze(&Func{Arch: b.Arch, Name: name, Code: code, Woven: func(int) bool { return true }})
	if err != nil {
		return
	}
	for _, f := range a.Check(0) {
		if f.Hazard == HazardStall {
			b.early[[2]int{f.From, f.Index}] = true
		}
	}
}

// readsLate reports whether an instruction reads registers after it has issued.
func readsLate(in *Inst) bool {
	switch in.op.class {
	case classStore, classAtomic, classLoad:
		return true
	}
	return false
}

// renamed returns an instruction of the body with the registers of a placement.
func (b *Body) renamed(i int, pl *placement) Word {
	in := b.insts[i]
	in.Word = b.code[i]
	for _, o := range bodyOperands(&b.insts[i]) {
		to := o.Reg
		switch o.Kind {
		case GPR:
			to = pl.r[o.Reg]
		case Pred:
			to = pl.p[o.Reg]
		case Barrier:
			to = pl.b[o.Reg]
		}
		in.Word = in.Set(&o, to)
	}
	return in.Word
}
