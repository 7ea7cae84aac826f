package sass

import (
	"fmt"
	"slices"
	"sync"
)

// Func is the code of one function: of a kernel, or of a device function that was
// not inlined. Several functions may stand in one section; a section can be given
// as a whole.
type Func struct {
	Arch Arch
	Name string
	Code []Word

	// Targets are the offsets in bytes that an indirect branch may go to, by the offset
	// of the branch (.nv.info's EIATTR_INDIRECT_BRANCH_TARGETS). One that is not there
	// may go anywhere.
	Targets map[uint32][]uint32
	// Entries are offsets in bytes at which others enter the code besides 0: the
	// functions of the section.
	Entries []uint32
	// Callable says that code outside calls functions in it: where they return to is
	// not known. Not so for kernels: what they call is in their section, or far.
	Callable bool
	// NoReturn says that calls of code which is elsewhere don't come back.
	NoReturn bool
	// Woven says of an instruction, by index, that it is not the compiler's: it has
	// to keep clear of operands that only the compiler knows when they are read.
	// Nil: all are the compiler's. Only [Analysis.Check] asks.
	Woven func(index int) bool
	// Registers is the number of registers of the kernel, 0 if unknown.
	Registers int
	// Shared are pieces of the code that jumps go to as if they were one instruction:
	// they come back to behind the jump. Calls gives, by the index of such a jump, the
	// index in Shared.
	Shared []Shared
	Calls  map[int]int
}

// Shared is a piece of code that comes back to where it is jumped to from.
type Shared struct {
	Start, End int // indices of instructions, End excluded
	// Reads are the registers that must have a value when it begins, Uses all that it
	// may change.
	Reads, Uses Set
}

// comesBack reports whether an instruction is the return of a shared piece.
func (f *Func) comesBack(i int) bool {
	return slices.ContainsFunc(f.Shared, func(s Shared) bool { return i >= s.Start && i < s.End })
}

// Block is a run of instructions that are executed one after the other, but for
// those whose threads have left.
type Block struct {
	Start, End int   // indices of instructions, End excluded
	Succ       []int // blocks
	Pred       []int
	// LeavesAnywhere says that control may go on anywhere. Entry says that it may
	// come from outside, or by a call.
	LeavesAnywhere bool
	Entry          bool

	returns []int // blocks behind the calls that come back from here
}

// Analysis is what is known of a function. Indices are of instructions.
type Analysis struct {
	Func   *Func
	Insts  []Inst // those that the table lacks are not [Inst.Known]
	Blocks []Block
	// BlockOf gives the block of each instruction.
	BlockOf []int32
	// LiveIn and LiveOut are the registers whose values may still be read, before
	// and after the instruction.
	LiveIn, LiveOut []Set
	// PendRead are registers that instructions before this one may still be
	// reading, PendWrite those that they may still write, when it issues: what is
	// not waited for by its own wait mask.
	PendRead, PendWrite []Set
	// Unknown is the number of words that the table lacks.
	Unknown int
	// MinRegisters is the smallest number that a USETMAXREG in the function sets,
	// or 0.
	MinRegisters  int
	mostRegisters int // the largest
	// Used are all registers that instructions name.
	Used Set

	names      []named
	room       *room
	pendTold   []Set  // of PendRead what a read barrier tells of
	pendOwn    []Set  // of PendWrite what a scoreboard tells of, without what callers began
	flights    []kept // at the beginning of each block
	returns    []int  // the instructions behind calls
	localCalls bool
	jumps      map[int]bool // calls that nothing comes back from
	// begun is what callers may have on their way at the beginning of each block, nil where
	// none have called.
	begun []*named
}

// named are the registers that an instruction reads and writes, without its guard: what
// most questions about it begin with. An unknown word names none.
type named struct{ read, write Set }

// room is the memory of an analysis, which is many times that of the code: those that
// come after another use it again.
type room struct {
	insts []Inst
	names []named
	sets  [6][]Set
}

var rooms = sync.Pool{New: func() any { return new(room) }}

// resize returns n elements of a slice that is kept, whatever they are.
func resize[T any](s *[]T, n int) []T {
	*s = slices.Grow((*s)[:0], n)[:n]
	return *s
}

// free gives the memory back: nothing of the analysis can be used from then on.
func (a *Analysis) free() {
	if a.room != nil {
		rooms.Put(a.room)
	}
	*a = Analysis{}
}

// Foreign reports whether the architecture is one of which no instruction is known. Before
// sm_70 they have 64 bits, so that words are no instructions then.
func (a *Analysis) Foreign() bool { return table(a.Func.Arch) == nil }

// maxFunc bounds a function: 256 MB of code.
const maxFunc = 1 << 24

// Analyze decodes a function and finds out how control flows and which registers
// are live. Only a function that is too large is an error.
func Analyze(f *Func) (*Analysis, error) {
	a, err := Outline(f)
	if err != nil {
		return nil, err
	}
	a.liveness()
	a.pending()
	return a, nil
}

// Outline decodes a function and finds its blocks, nothing else: what is live and
// what is pending is left empty.
func Outline(f *Func) (*Analysis, error) {
	if len(f.Code) > maxFunc {
		return nil, fmt.Errorf("function %s: %d instructions, at most %d are analyzed", f.Name, len(f.Code), maxFunc)
	}
	a := &Analysis{Func: f}
	a.decode()
	a.blocks()
	return a, nil
}

func (a *Analysis) decode() {
	t := table(a.Func.Arch)
	a.room = rooms.Get().(*room)
	a.Insts = resize(&a.room.insts, len(a.Func.Code))
	a.names = resize(&a.room.names, len(a.Func.Code))
	for i, w := range a.Func.Code {
		if t == nil {
			a.Insts[i], a.names[i] = Inst{Word: w, Arch: a.Func.Arch}, named{}
			a.Unknown++
			continue
		}
		in, ok := t.decode(a.Func.Arch, w)
		if !ok {
			a.Unknown++
		} else if in.op.class == classReconfig {
			n := int(w.Bits(32, 9))
			if a.mostRegisters = max(a.mostRegisters, n); a.MinRegisters == 0 || n < a.MinRegisters {
				a.MinRegisters = n
			}
		}
		a.Insts[i] = in
		in.operandSets(&a.names[i].read, &a.names[i].write)
	}
}

// uses returns what the known instruction at index i reads, its guard too, and what it may
// write.
func (a *Analysis) uses(i int) named {
	n := a.names[i]
	a.Insts[i].addGuard(&n.read)
	return n
}

// index turns the target of instruction i into an index, -1 if it is outside.
func (a *Analysis) index(i int, target int64) int {
	t := int64(i+1)*WordSize + target
	if t < 0 || t%WordSize != 0 || t/WordSize >= int64(len(a.Insts)) {
		return -1
	}
	return int(t / WordSize)
}

// Target returns the index of the instruction that the one at index i names.
func (a *Analysis) Target(i int) (int, bool) {
	f := a.Insts[i].Flow()
	if !f.HasTarget {
		return 0, false
	}
	t := a.index(i, f.Target)
	return t, t >= 0
}

func (a *Analysis) blocks() {
	n := len(a.Insts)
	if n == 0 {
		return
	}
	a.jumpingCalls()
	leader := make([]bool, n+1)
	entry := make(map[int]bool)
	leader[0], entry[0] = true, true
	for _, off := range a.Func.Entries {
		if i := int(off / WordSize); i < n {
			leader[i], entry[i] = true, true
		}
	}
	for _, list := range a.Func.Targets {
		for _, off := range list {
			if i := int(off / WordSize); i < n {
				leader[i] = true
			}
		}
	}
	for i := range a.Func.Shared {
		s := a.Func.Shared[i].Start
		leader[s], entry[s] = true, true
	}
	for i := range a.Insts {
		in := &a.Insts[i]
		if in.op != nil && in.op.flow == FlowNext {
			continue
		}
		f := in.Flow()
		if f.HasTarget {
			if t := a.index(i, f.Target); t >= 0 {
				leader[t] = true
				if f.Kind == FlowCall && !a.jumps[i] {
					entry[t] = true
				}
			}
		}
		leader[i+1] = true
	}
	a.BlockOf = make([]int32, n)
	for i := 0; i < n; {
		j := i + 1
		for j < n && !leader[j] {
			j++
		}
		for k := i; k < j; k++ {
			a.BlockOf[k] = int32(len(a.Blocks))
		}
		a.Blocks = append(a.Blocks, Block{Start: i, End: j, Entry: entry[i]})
		i = j
	}
	a.calls()
	for b := range a.Blocks {
		a.edges(b)
	}
	a.returnEdges()
	for b := range a.Blocks {
		for _, s := range a.Blocks[b].Succ {
			a.Blocks[s].Pred = append(a.Blocks[s].Pred, b)
		}
	}
}

// jumpingCalls finds calls that are jumps. ptxas leaves loops by CALL.REL.NOINC, too, with
// a guard, and sets no address to come back to then: before each other call a MOV has that
// address. So it is in all of 939,000 calls in libtorch_cuda, cuBLAS, cuRAND and NCCL, of which
// 29,000 are jumps. Taken for calls, the returns of all functions in the code seem to lead to
// behind them.
func (a *Analysis) jumpingCalls() {
	if a.Func.Callable {
		return // addresses may be set by relocations
	}
	for i := range a.Insts {
		in := &a.Insts[i]
		if in.op == nil || in.Word.Opcode() != opCALLRel {
			continue
		}
		_, _, guarded := in.Guard()
		if _, ok := a.Target(i); !ok || !guarded {
			continue
		}
		if a.jumps == nil {
			a.jumps = make(map[int]bool)
		}
		a.jumps[i] = true
	}
	if len(a.jumps) == 0 {
		return
	}
	for i := range a.Insts {
		if v, ok := a.Insts[i].Word.moved(); ok && v%WordSize == 0 {
			delete(a.jumps, int(v/WordSize)-1)
		}
	}
}

// isCall reports whether the instruction at index i, which is known, calls a function.
func (a *Analysis) isCall(i int) bool { return a.Insts[i].op.flow == FlowCall && !a.jumps[i] }

// calls finds out whether all calls are direct ones of functions in the code.
func (a *Analysis) calls() {
	for i := range a.Insts {
		if a.Insts[i].op == nil {
			return
		}
		if !a.isCall(i) {
			continue
		}
		f := a.Insts[i].Flow()
		if !f.HasTarget && a.Func.NoReturn {
			continue
		}
		if !f.HasTarget || a.index(i, f.Target) < 0 || i+1 >= len(a.Insts) {
			return
		}
		a.returns = append(a.returns, i+1)
	}
	a.localCalls = len(a.returns) > 0 && !a.Func.Callable
}

// returnEdges connects the ends of each function that is called with what is behind
// its calls.
func (a *Analysis) returnEdges() {
	if !a.localCalls {
		return
	}
	behind := make(map[int][]int) // by block of the callee
	for _, i := range a.returns {
		if t, ok := a.Target(i - 1); ok {
			e := int(a.BlockOf[t])
			behind[e] = append(behind[e], int(a.BlockOf[i]))
		}
	}
	found := make([]bool, len(a.Blocks))
	for e, to := range behind {
		seen := make([]bool, len(a.Blocks))
		work := []int{e}
		for len(work) > 0 {
			b := work[len(work)-1]
			work = work[:len(work)-1]
			if seen[b] {
				continue
			}
			seen[b] = true
			blk := &a.Blocks[b]
			if a.Insts[blk.End-1].op.flow != FlowReturn {
				work = append(work, a.passes(b)...)
				continue
			}
			found[b] = true
			work = append(work, blk.Succ...) // it may be conditional
			for _, t := range to {
				if !slices.Contains(blk.returns, t) {
					blk.returns = append(blk.returns, t)
				}
			}
		}
	}
	for b := range a.Blocks {
		blk := &a.Blocks[b]
		for _, t := range blk.returns {
			if !slices.Contains(blk.Succ, t) {
				blk.Succ = append(blk.Succ, t)
			}
		}
		if a.Insts[blk.End-1].op.flow == FlowReturn && !found[b] && !a.Func.comesBack(blk.End-1) {
			blk.LeavesAnywhere = true
		}
	}
}

// edges fills in where a block goes on.
func (a *Analysis) edges(b int) {
	blk := &a.Blocks[b]
	last := blk.End - 1
	in := &a.Insts[last]
	f := in.Flow()
	add := func(i int) {
		if i < 0 || i >= len(a.Insts) {
			blk.LeavesAnywhere = true
			return
		}
		if s := int(a.BlockOf[i]); !slices.Contains(blk.Succ, s) {
			blk.Succ = append(blk.Succ, s)
		}
	}
	next := true
	if _, ok := a.Func.Calls[last]; ok {
		add(blk.End)
		return
	}
	switch f.Kind {
	case FlowBranch:
		next = f.Conditional
		if !f.HasTarget {
			blk.LeavesAnywhere = true
		} else {
			add(a.index(last, f.Target))
		}
	case FlowIndirect:
		next = f.Conditional
		targets := a.Func.Targets[uint32(last*WordSize)]
		blk.LeavesAnywhere = !in.Known() || len(targets) == 0
		for _, off := range targets {
			add(int(off / WordSize))
		}
	case FlowCall:
		if a.jumps[last] {
			add(a.index(last, f.Target))
			break // it has a guard
		}
		// Where all calls stay in the code, a call goes to the callee, and the
		// returns of all callees to behind all calls.
		if !a.localCalls || !f.HasTarget {
			blk.LeavesAnywhere = true
			break
		}
		next = f.Conditional
		add(a.index(last, f.Target))
	case FlowReturn:
		next = f.Conditional
		if a.Func.comesBack(last) {
			break
		}
		if !a.localCalls {
			blk.LeavesAnywhere = true
			break
		}
		// See returnEdges.
	case FlowExit:
		next = f.Conditional
	case FlowBreak, FlowTrap, FlowSync, FlowWarp, FlowSet, FlowNext:
		if f.HasTarget && f.Kind == FlowWarp {
			add(a.index(last, f.Target))
		}
	}
	if next {
		add(blk.End)
	}
}
