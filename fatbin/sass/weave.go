package sass

import (
	"errors"
	"fmt"
	"slices"
)

// A Weaver puts calls of probes into a kernel's machine code. Nothing that is there
// moves: an instruction at which a probe runs is replaced by a jump to a block that
// is appended, which holds
//
//	what the probe is given, put into its registers
//	the probe's instructions, in registers that are free at this place
//	the instruction that was replaced
//	a jump back
//
// Each place gets a copy of its own, so that it costs no call and saves no
// registers. Exits jump to a copy that they share, which ends the thread.
//
// Use:
//
//	body, err := sass.BodyFromCubin(cubin, "nvtrace_probe")
//	w, err := sass.NewWeaver(fn, &sass.KernelFacts{Registers: 32, Listed: listed})
//	err = w.Entry(body, sass.ConstWide(0, 0x210))
//	err = w.Exits(body, sass.Imm(7))
//	err = w.Before(0x1c0, body, sass.SiteAddress(), sass.Active())
//	res, err := w.Finish()
//
// Arguments are those of the body's function, in order; see [Arg]. Entry, Exits and
// Before return a [*SiteError] where a probe can't be put without a risk for the
// kernel; the rest of the weaving is not affected. Finish checks all of the new
// code, and an error of it says that the kernel has to stay as it is.
type Weaver struct {
	// Base is added to arguments that are a [Number], by Finish.
	Base uint32

	a     *Analysis
	facts KernelFacts
	arch  Arch

	// fresh is the first register that the kernel does not have, usable the number
	// behind the last that may be used (see registerRoom).
	fresh, usable int
	// uncertain says why not all that the code does is known, "" if it is: then only
	// registers that the kernel does not have are free, but where it begins. If all
	// instructions are known (foreseen), and only not where some jumps go to, that holds
	// for exits, too.
	uncertain string
	foreseen  bool
	// callsOut: the kernel calls functions of which the code is elsewhere.
	callsOut bool
	// never are registers that are free nowhere.
	never Set
	// late are registers that instructions read after they have issued without telling
	// when.
	late Set
	// tell has all instructions that read registers late set a scoreboard. The others are
	// registers that instructions read and write of which none can tell then, either.
	tell                    bool
	untoldRead, untoldWrite Set
	listed                  map[int]bool
	// reachable are the blocks that control comes to, reasons why instructions are no
	// sites.
	reachable []bool
	reasons   []Reason
	// stack is the index of the instruction that loads the stack pointer, -1 if that
	// can't be relied on.
	stack int
	// collective marks instructions between WARPSYNC.COLLECTIVE and ENDCOLLECTIVE.
	collective []bool
	// matrix says that there are matrix instructions of fixed latency.
	matrix bool

	// own are variables of each thread, of which slots are in local memory.
	own   []ownWord
	slots int
	one   *ownWord // holds 1, for additions to totals; nil: there is none
	// lowered is by how much the stack pointer is lower at each instruction than where it
	// is loaded, mostLowered the most; see frames.
	lowered     []int
	mostLowered int

	sites map[int]*site
	exits []probe
	// totals are how many of exits, the last ones, are of Totals: they part threads, which others may
	// find together.
	totals int
	// shared are the copies of bodies that several places jump to, those of long
	// instructions and more.
	shared []*sharedCopy
	long   int
	// atEntry: a probe is before the first instruction, where nothing is live.
	atEntry bool
	top     int // highest register in use by probes, -1 if none
}

// KernelFacts are what a file says of a kernel besides its code.
type KernelFacts struct {
	// Registers per thread, as .nv.info counts them: two more than the kernel can
	// name.
	Registers int
	// MaxRegisters is up to how many registers the kernel may be given; 0 stands for
	// as many as leave its occupancy as it is.
	MaxRegisters int
	// Listed are offsets of instructions that must stay what they are: those that
	// relocations and attributes of .nv.info name, without the exits.
	Listed []uint32
	// Special says why entry and exits of the kernel can't be probed, or is "".
	Special string
}

// SiteError says why a probe can't be put at a place.
type SiteError struct {
	Offset int // of the instruction, -1 if it is meant for all
	Reason string
}

// Error implements error.
func (e *SiteError) Error() string {
	if e.Offset < 0 {
		return e.Reason
	}
	return fmt.Sprintf("+0x%x: %s", e.Offset, e.Reason)
}

func siteError(index int, format string, args ...any) error {
	off := -1
	if index >= 0 {
		off = index * WordSize
	}
	return &SiteError{off, fmt.Sprintf(format, args...)}
}

// ErrUnsafe is in the chain of the error with which [Weaver.Finish] refuses its own
// result.
var ErrUnsafe = errors.New("the woven code failed its check")

// A probe is a body with what a place gives it, in registers.
type probe struct {
	body *Body
	args []Arg
	regs placement
	wait uint8 // scoreboards to wait for first, so that registers become free
	// unset are registers that the body reads on some way before it has set them,
	// although no argument is in them.
	unset Set
	// spill are registers that may be used although they are not free, if they are
	// saved in local memory.
	spill Set
	// shared is the copy of the body that the place jumps to; nil if it has its own.
	shared *sharedCopy
	atExit bool // the thread ends behind it
	after  bool // it runs behind the instruction, of which it is told what was loaded
}

// A site is an instruction that is replaced.
type site struct {
	index  int
	probes []probe
	after  *probe    // behind the instruction; nil: none
	begins []ownWord // variables that get their first values
	adds   []addition
}

// Woven is a kernel with probes.
type Woven struct {
	Code      []Word
	Exits     []uint32 // offsets of all exits
	Registers int      // per thread, as .nv.info counts them
	Stack     int      // bytes of local memory that a thread needs more
	Growth    int      // of the code, in bytes
	Sites     []SiteReport
	// Halves are the offsets at which upper halves of addresses of memory stand, in bodies
	// that are [Movable].
	Halves []int
}

// SiteReport is what was done at a place.
type SiteReport struct {
	Offset       int // of the instruction that was replaced
	Block        int // offset of the code that is run instead
	Instructions int // of it
	Fresh        int // registers of it that the kernel did not have
	Saved        int // predicates that are saved and restored
	Spilled      int // registers that are saved in local memory and restored
}

// NewWeaver analyzes a kernel. An error says why it can have no probe at all.
func NewWeaver(fn *Func, facts *KernelFacts) (*Weaver, error) {
	a, err := Analyze(fn)
	if err != nil {
		return nil, err
	}
	w := &Weaver{a: a, arch: fn.Arch, sites: make(map[int]*site), listed: make(map[int]bool), top: -1, long: longBody}
	if facts != nil {
		w.facts = *facts
	}
	switch {
	case len(fn.Code) == 0:
		return nil, siteError(-1, "the function has no code")
	case a.Unknown == len(fn.Code):
		return nil, siteError(-1, "the instructions of %s are not known", fn.Arch)
	case w.facts.Registers < 2 || w.facts.Registers > maxRegisterCount:
		return nil, siteError(-1, "the number of registers is %d", w.facts.Registers)
	}
	for _, off := range w.facts.Listed {
		w.listed[int(off/WordSize)] = true
	}
	w.certainty()
	w.markCollective()
	for i := range w.a.Insts {
		w.matrix = w.matrix || w.a.Insts[i].fixedMatrix()
	}
	w.reachable = w.a.reached()
	w.reasons = w.a.Sites(w.facts.Listed)
	w.stack = w.stackPointer()
	w.registerRoom()
	return w, nil
}

// certainty looks for code of which not everything is known, and for registers that
// are in use where the analysis does not see it.
func (w *Weaver) certainty() {
	doubt := func(format string, args ...any) {
		if w.uncertain == "" {
			w.uncertain = fmt.Sprintf(format, args...)
		}
	}
	w.never.Add(GPR, 1, 1) // the stack pointer
	w.foreseen = true
	for i := range w.a.Insts {
		in := &w.a.Insts[i]
		if !in.Known() {
			doubt("the instruction at +0x%x is not known", i*WordSize)
			w.foreseen = false
			continue
		}
		if in.op.unit != 0 && in.Word.Control().WriteBar >= unguarded {
			read, write := in.Uses()
			w.late.Union(&write)
			w.untoldWrite.Union(&write)
			if w.silentReader(i) {
				w.late.Union(&read)
				if !readsLate(in) {
					w.untoldRead.Union(&read)
				}
			}
		}
		switch f := in.Flow(); f.Kind {
		case FlowIndirect:
			if len(w.a.Func.Targets[uint32(i*WordSize)]) == 0 {
				doubt("the targets of the jump at +0x%x are not known", i*WordSize)
			}
		case FlowCall:
			_, ok := w.a.Target(i)
			if ok && w.listed[i] {
				doubt("a relocation changes where the call at +0x%x goes to", i*WordSize)
				w.foreseen = false
			}
			if (!ok || w.listed[i]) && !w.a.Func.NoReturn {
				// What it needs when it is called counts as all, and when it comes back
				// it may not be reading registers that its caller can use.
				w.callsOut = true
			}
		}
		// Matrix instructions go on after they have issued, and no scoreboard tells how far
		// they are: probes leave their registers alone everywhere.
		if in.op.class == classWGMMA {
			read, write := in.Uses()
			w.never.Union(&read)
			w.never.Union(&write)
		}
	}
}

// silentReader reports whether an instruction uses registers after it has issued and has
// no scoreboard that tells when.
func (w *Weaver) silentReader(i int) bool {
	in := &w.a.Insts[i]
	c := in.Word.Control()
	return in.Known() && in.op.unit != 0 && c.WriteBar >= unguarded && c.ReadBar >= unguarded
}

// beginsCollective reports whether a word is WARPSYNC.COLLECTIVE: what follows up to
// ENDCOLLECTIVE is run by the warp as a whole.
func beginsCollective(w Word) bool {
	op := w.Opcode()
	return (op == opWarpSync || op == opWarpSyncImm) && w.Bits(collectiveBit, 1) != 0
}

func (w *Weaver) markCollective() {
	w.collective = make([]bool, len(w.a.Insts))
	for i := range w.a.Insts {
		if !beginsCollective(w.a.Insts[i].Word) {
			continue
		}
		for j := i; j < len(w.a.Insts) && w.a.Insts[j].Word.Opcode() != opEndCollective; j++ {
			w.collective[j] = true
		}
	}
}

// Analysis returns what is known of the kernel without probes.
func (w *Weaver) Analysis() *Analysis { return w.a }

// Entry has a body run in each thread that begins the kernel.
func (w *Weaver) Entry(body *Body, args ...Arg) error {
	if w.facts.Special != "" {
		return siteError(0, "the kernel begins or ends in an unusual way: %s", w.facts.Special)
	}
	i, err := w.first(w.slots > 0 || body.frame > 0)
	switch {
	case err != nil:
		return err
	case i > 0:
		return w.before(i, body, args)
	}
	// Before the first instruction no register has a value yet.
	p := probe{body: body, args: args}
	if err := errors.Join(w.fits(0, body, true), w.checkArgs(0, &p)); err != nil {
		return err
	}
	busy := w.never
	if err := w.place(0, &p, &busy, 0); err != nil {
		return err
	}
	w.add(0, &p)
	w.atEntry = true
	return nil
}

// first returns the index of the first instruction that can be replaced, to which all
// threads come once; with a stack, the first behind where the stack pointer is loaded.
func (w *Weaver) first(stack bool) (int, error) {
	first := &w.a.Blocks[0]
	if len(first.Pred) > 0 {
		return 0, siteError(0, "the first instruction is the target of a jump")
	}
	begin := first.Start
	if stack {
		begin = w.stack + 1
	}
	var why error
	for i := begin; i < first.End; i++ {
		if why = w.displaceable(i); why == nil {
			return i, nil
		}
	}
	if why == nil {
		why = siteError(first.End-1, "no instruction can be replaced where the kernel begins")
	}
	return 0, why
}

// add notes a probe at a place.
func (w *Weaver) add(i int, p *probe) {
	s := w.siteAt(i)
	s.probes = append(s.probes, *p)
}

func (w *Weaver) siteAt(i int) *site {
	if w.sites[i] == nil {
		w.sites[i] = &site{index: i}
	}
	return w.sites[i]
}

// Before has a body run before the instruction at an offset, in each thread that
// comes to it. That does not depend on the guard of the instruction, of which
// [Active] tells the body.
func (w *Weaver) Before(offset int, body *Body, args ...Arg) error {
	i, err := w.index(offset)
	if err != nil {
		return err
	}
	return w.before(i, body, args)
}

// index returns that of the instruction at an offset, which must be one that can be replaced.
func (w *Weaver) index(offset int) (int, error) {
	i := offset / WordSize
	if offset < 0 || offset%WordSize != 0 || i >= len(w.a.Insts) {
		return 0, &SiteError{offset, "no instruction is there"}
	}
	return i, w.displaceable(i)
}

// After has a body run behind the load or atomic operation at an offset, in each thread that
// comes to it: for it, [SiteValue] is what was loaded, or what the memory held before. A place
// takes one such body, which runs behind those of [Weaver.Before].
func (w *Weaver) After(offset int, body *Body, args ...Arg) error {
	i, err := w.index(offset)
	if err != nil {
		return err
	}
	in := &w.a.Insts[i]
	if _, _, ok := in.result(); !ok {
		return siteError(i, "%s loads nothing into registers", in.Name())
	}
	p := probe{body: body, args: args, after: true}
	_, write := in.Uses()
	switch s := w.sites[i]; {
	case s != nil && s.after != nil:
		return siteError(i, "another probe runs behind it")
	case write.P|write.UP != 0 || write.UR != [4]uint64{}:
		return siteError(i, "%s writes more than registers", in.Name())
	}
	if err := w.put(i, &p); err != nil {
		return err
	}
	w.siteAt(i).after = &p
	return nil
}

func (w *Weaver) before(i int, body *Body, args []Arg) error {
	p := probe{body: body, args: args}
	if err := w.put(i, &p); err != nil {
		return err
	}
	w.add(i, &p)
	return nil
}

// put finds registers for a probe at the instruction at index i.
func (w *Weaver) put(i int, p *probe) error {
	if err := w.fits(i, p.body, true); err != nil {
		return err
	}
	if err := w.checkArgs(i, p); err != nil {
		return err
	}
	var err error
	for _, copies := range []int{mostCopies, maxBody} {
		if err = w.placeBefore(i, p, copies); err == nil {
			break
		}
	}
	return err
}

// busy are the registers that earlier instructions may still read or write when the
// one at index i issues, and those that are never free.
func (w *Weaver) busy(i int) Set {
	busy := w.never
	busy.Union(&w.a.PendRead[i])
	busy.Union(&w.a.PendWrite[i])
	return busy
}

// allBoards is a mask of all scoreboards.
const allBoards = 0x3f

// lowest is the first register that probes may use.
func (w *Weaver) lowest() int {
	if w.uncertain != "" {
		return w.fresh
	}
	return 0
}

// silent are the registers that are busy when nothing more is on its way on
// scoreboards, and the scoreboards that have to be waited for.
func (w *Weaver) silent(i int) (busy Set, boards uint8) {
	blk := w.a.BlockOf[i]
	var f flight
	f.set(&w.a.flights[blk])
	var read, write, told, named Set
	for j := w.a.Blocks[blk].Start; j <= i; j++ {
		in := &w.a.Insts[j]
		c := in.Word.Control()
		f.wait(c.Wait)
		if j < i {
			n := w.a.names[j]
			f.issue(in, c, &n.read, &n.write)
		}
	}
	boards = uint8(f.used & allBoards)
	f.wait(boards)
	f.totals(&read, &told, &write, &named)
	busy = w.never
	begun := w.a.begunBefore(int(blk), i) // of which no wait here tells
	busy.Union(&begun.read)
	busy.Union(&begun.write)
	busy.Union(&read)
	busy.Union(&write)
	return busy, boards
}

// untoldAt are the registers that are busy when the instruction at index i issues if all tell
// what can, and that is waited for.
func (w *Weaver) untoldAt(i int) Set {
	busy := intersect(&w.a.PendRead[i], &w.untoldRead)
	writes := intersect(&w.a.PendWrite[i], &w.untoldWrite)
	busy.Union(&writes)
	return busy
}

// Exits has a body run in each thread that ends at one of the kernel's exits. The
// copy is one for all of them, so that no argument can be of a place.
func (w *Weaver) Exits(body *Body, args ...Arg) error {
	if w.facts.Special != "" {
		return siteError(-1, "the kernel begins or ends in an unusual way: %s", w.facts.Special)
	}
	p := probe{body: body, args: args, atExit: true}
	var busy, silent, untold Set
	var boards uint8
	n, first := 0, -1
	for i := range w.a.Insts {
		if w.a.Insts[i].Word.Opcode() != opEXIT {
			continue
		}
		if err := w.exitable(i); err != nil {
			return err
		}
		if err := w.fits(i, body, false); err != nil {
			return err
		}
		if n == 0 {
			first = i
		}
		if (w.slots > 0 || body.frame > 0) && w.frames() == "" && w.lowered[i] != w.lowered[first] {
			return siteError(i, "the stack pointer is not the same at all exits")
		}
		n++
		// Of a thread that ends here nothing is live.
		b := w.busy(i)
		busy.Union(&b)
		b, m := w.silent(i)
		silent.Union(&b)
		boards |= m
		b = w.untoldAt(i)
		untold.Union(&b)
	}
	if n == 0 {
		return siteError(-1, "the kernel has no exit")
	}
	if err := w.checkArgs(-1, &p); err != nil {
		return err
	}
	from := w.lowest()
	if w.uncertain != "" && w.foreseen {
		// Wherever control comes from: what tells when it is done can be waited for, and
		// the registers of what does not are known.
		busy, from, p.wait = w.never, 0, allBoards
		busy.Union(&w.late)
		silent, boards = busy, allBoards
	}
	if err := w.place(first, &p, &busy, from); err != nil {
		if p.wait = boards; w.place(first, &p, &silent, from) != nil {
			if from > 0 {
				return err
			}
			// Stores before an exit tell nobody when they have read their registers, as
			// nothing comes behind them. They can be made to.
			p.wait, busy = allBoards, w.never
			busy.Union(&untold)
			if w.place(first, &p, &busy, from) != nil {
				return err
			}
			w.tell = true
		}
	}
	w.exits = slices.Insert(w.exits, len(w.exits)-w.totals, p)
	return nil
}

// exitable says why the EXIT at index i can't become a jump.
func (w *Weaver) exitable(i int) error {
	word := w.a.Insts[i].Word
	// Everything but guard, condition and control half is as the compilers write it.
	const control = ^(uint64(1)<<(stallPos-64) - 1)
	plain := Word{word.Lo &^ (0xf << 12), word.Hi &^ control &^ (0xf << (87 - 64))}
	switch {
	case plain != Word{Lo: opEXIT}:
		return siteError(i, "an exit with unknown modifiers, %s", word)
	case w.collective[i]:
		return siteError(i, "an exit within a collective")
	}
	return nil
}

// fits says why a body can't run at a place for what it is.
func (w *Weaver) fits(i int, body *Body, goesOn bool) error {
	barriers := body.used.B != 0 || goesOn && body.parts
	switch {
	case body.Arch != w.arch:
		return siteError(i, "the probe is for %s, the kernel for %s", body.Arch, w.arch)
	case !barriers:
	case w.callsOut:
		// Threads of a warp may be there while others are here.
		return siteError(i, "the probe needs a convergence barrier, and the kernel calls functions of which it is not known which they use")
	case !w.foreseen:
		return siteError(i, "the probe needs a convergence barrier, and which ones the kernel uses is not known: %s", w.uncertain)
	}
	return nil
}

// displaceable says why an instruction can't run elsewhere. To what [Analysis.Sites]
// takes for a site it adds jumps, and exits, which can be written anew.
func (w *Weaver) displaceable(i int) error {
	in := &w.a.Insts[i]
	switch reason := w.reasons[i]; {
	case w.collective[i]:
		return siteError(i, "it is within a collective")
	case reason == "":
		return nil
	case reason != ReasonFlow || !w.rewritable(in):
		return siteError(i, "%s: %s", in.Name(), reason)
	case !w.reachable[w.a.BlockOf[i]]:
		return siteError(i, "%s: %s", in.Name(), ReasonUnreached)
	case w.listed[i]:
		return siteError(i, "%s: %s", in.Name(), ReasonListed)
	case in.Word.Opcode() == opEXIT:
		return w.exitable(i)
	}
	if _, ok := w.a.Target(i); !ok {
		return siteError(i, "%s: %s", in.Name(), ReasonRelative)
	}
	return nil
}

func (w *Weaver) rewritable(in *Inst) bool {
	switch in.Word.Opcode() {
	case opBRA, opBSSY, opEXIT:
		return true
	}
	return false
}

// Free gives the memory of the analysis to later ones. Nothing of the weaver can be used
// from then on.
func (w *Weaver) Free() { w.a.free() }

// access finds the operands of the memory instruction at index i.
func (w *Weaver) access(i int) (*access, error) {
	in := &w.a.Insts[i]
	if _, ok := in.Access(); !ok {
		return nil, siteError(i, "%s accesses no memory at an address in a register", in.Name())
	}
	m, ok := in.access()
	if !ok {
		return nil, siteError(i, "an address of %s that is not handled", in.Name())
	}
	return m, nil
}
