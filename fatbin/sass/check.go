package sass

import "fmt"

// Hazard is a kind of mistake in the control codes.
type Hazard uint8

// The hazards.
const (
	HazardRead     Hazard = iota // reads a register that is still to be written
	HazardWrite                  // writes a register that is still to be written
	HazardInFlight               // writes a register that is still to be read
	HazardStall                  // too few cycles after an instruction of fixed latency
	HazardReuse                  // relies on the operand cache after a branch
	HazardRange                  // names a register that the kernel doesn't have
	HazardBoard                  // waits for a scoreboard before that is busy
)

var hazardNames = [...]string{
	"reads what is not written yet", "overwrites what is not written yet", "overwrites what is not read yet",
	"comes too early", "relies on the operand cache behind a jump", "names a register above the kernel's",
	"waits for a scoreboard too early",
}

// String says what the hazard is.
func (h Hazard) String() string {
	if int(h) < len(hazardNames) {
		return hazardNames[h]
	}
	return "hazard"
}

// Finding is a hazard at an instruction.
type Finding struct {
	Hazard Hazard
	Index  int // of the instruction
	From   int // of the instruction that it depends on, -1 if several can be meant
	Regs   Set
	Need   int // cycles that have to be between both, for [HazardStall] and [HazardBoard]
	Have   int
}

// String describes the finding with offsets.
func (f Finding) String() string {
	s := fmt.Sprintf("%#06x %s: %s", f.Index*WordSize, f.Hazard, f.Regs.String())
	if f.Hazard == HazardBoard {
		s = fmt.Sprintf("%#06x %s", f.Index*WordSize, f.Hazard)
	}
	if f.From >= 0 {
		s += fmt.Sprintf(" of %#06x", f.From*WordSize)
	}
	if f.Hazard == HazardStall || f.Hazard == HazardBoard {
		s += fmt.Sprintf(", %d cycles after it, needs %d", f.Have, f.Need)
	}
	return s
}

// Check looks for instructions that don't wait for what they depend on. Unmodified
// code of NVIDIA's compilers has no finding, up to limit of which are returned (0:
// all). The exceptions that are known are cuBLAS's and cuBLASLt's d884gemm for sm_90 and
// later, which do not wait for the last results of DMMA.
// Kernels that were written in machine code by hand, such as cuDNN's _5x_cudnn_volta_*,
// _turing_* and _ampere_* and cuBLASLt's volta_*, turing_* and ampere_*, have some: one adds
// to the result of a load that it waits for only to read its address. How soon results may be
// used is known from libraries (facts/README.md): code of others may have findings of that
// kind.
//
// Nothing is found in the code of an architecture that is not known: see
// [Analysis.Foreign].
func (a *Analysis) Check(limit int) []Finding {
	if a.Foreign() {
		return nil
	}
	c := checker{a: a, limit: limit}
	c.scoreboards()
	c.boards()
	c.stalls()
	c.reuse()
	c.ranges()
	return c.found
}

type checker struct {
	a     *Analysis
	limit int
	found []Finding
}

func (c *checker) add(f Finding) { c.found = append(c.found, f) }

func (c *checker) full() bool { return c.limit > 0 && len(c.found) >= c.limit }

// scoreboards holds each instruction against what is on its way when it issues.
func (c *checker) scoreboards() {
	for i := range c.a.Insts {
		if c.full() {
			return
		}
		in := &c.a.Insts[i]
		pr, pw := &c.a.PendRead[i], &c.a.pendOwn[i]
		if in.op == nil || pr.Empty() && pw.Empty() {
			continue
		}
		woven := c.a.Func.Woven != nil && c.a.Func.Woven(i)
		switch {
		case woven:
			pw = &c.a.PendWrite[i]
		case doubles(in.op.name):
			continue
		}
		n := c.a.uses(i)
		read, write := &n.read, &n.write
		if x := intersect(read, pw); !x.Empty() && (woven || !c.apart(i, x)) {
			c.add(Finding{Hazard: HazardRead, Index: i, From: -1, Regs: x})
		}
		_, _, guarded := in.Guard()
		// Two guarded instructions can exclude each other.
		if x := intersect(write, pw); !x.Empty() && (woven || !guarded && !c.inOrder(i, x)) {
			c.add(Finding{Hazard: HazardWrite, Index: i, From: -1, Regs: x})
		}
		if !woven {
			// The compiler knows when operands are read that no scoreboard tells of,
			// and that an instruction without a fixed latency writes later than those
			// before it read.
			pr = &c.a.pendTold[i]
			if in.op.writeBar || guarded {
				continue
			}
		}
		if x := intersect(write, pr); !x.Empty() {
			c.add(Finding{Hazard: HazardInFlight, Index: i, From: -1, Regs: x})
		}
	}
}

// apart reports whether all that registers are still to be written by is guarded by the
// opposite of an instruction's own guard: no thread runs both.
func (c *checker) apart(i int, x Set) bool {
	if _, _, guarded := c.a.Insts[i].Guard(); !guarded {
		return false
	}
	return c.begun(i, x, func(j int) bool { return c.a.exclusive(j, i) })
}

// inOrder reports whether all that registers are still to be written by went to the unit
// that an instruction goes to, which writes in order.
func (c *checker) inOrder(i int, x Set) bool {
	op := c.a.Insts[i].op
	return op.unit != 0 && c.begun(i, x, func(j int) bool { return c.a.Insts[j].op.unit == op.unit })
}

// begun reports whether the instructions that are on their way to write registers are all
// on the straight way to the one at index i, and fit.
func (c *checker) begun(i int, x Set, fit func(j int) bool) bool {
	a := c.a
	waited := a.Insts[i].Word.Control().Wait // behind the instruction
	for j, first := i-1, a.straight(i); j >= first; j-- {
		if a.Insts[j].op == nil {
			return false
		}
		c := a.Insts[j].Word.Control()
		late := c.WriteBar >= unguarded && a.Insts[j].op.unit != 0 || c.WriteBar < unguarded && waited>>c.WriteBar&1 == 0
		if y := intersect(&a.names[j].write, &x); late && !y.Empty() && !fit(j) {
			return false
		}
		if y := intersect(&x, &a.pendOwn[j]); y.Empty() {
			return true // what is on its way has begun behind it
		}
		waited |= c.Wait
	}
	return false
}

// straight returns where the straight way to the instruction at index i begins: nothing
// jumps to an instruction behind that, though some threads may leave on the way.
func (a *Analysis) straight(i int) int {
	b := int(a.BlockOf[i])
	for b > 0 && !a.Blocks[b].Entry && len(a.Blocks[b].Pred) == 1 && a.Blocks[b].Pred[0] == b-1 {
		if i := a.Blocks[b].Start - 1; a.Insts[i].op == nil || a.isCall(i) {
			break
		}
		b--
	}
	return a.Blocks[b].Start
}

// exclusive reports whether of two instructions, of which j comes first on a straight way,
// no thread runs both, since their guards are opposite.
func (a *Analysis) exclusive(j, i int) bool {
	p, neg, ok := a.Insts[i].Guard()
	q, other, ok2 := a.Insts[j].Guard()
	kind := a.Insts[i].guardKind()
	if !ok || !ok2 || p != q || neg == other || kind != a.Insts[j].guardKind() || j >= i || j < a.straight(i) {
		return false
	}
	var guard Set
	guard.Add(kind, p, 1)
	for k := j; k < i; k++ {
		if a.Insts[k].op == nil {
			return false
		}
		if y := intersect(&a.names[k].write, &guard); !y.Empty() {
			return false
		}
	}
	return true
}

// boardStall is how many cycles after an instruction its scoreboards are busy: one that
// issues before does not wait for them.
const boardStall = 2

// boards looks for instructions that would not wait for the one before them.
func (c *checker) boards() {
	for i := range max(0, len(c.a.Insts)-1) {
		if c.full() {
			return
		}
		from, to := c.a.Insts[i].Word.Control(), c.a.Insts[i+1].Word.Control()
		if op := c.a.Insts[i].op; op != nil && op.class == classReconfig {
			continue // nothing issues before the registers are there
		}
		if from.Stall < boardStall && from.boards()&to.Wait != 0 {
			c.add(Finding{Hazard: HazardBoard, Index: i + 1, From: i, Need: boardStall, Have: int(from.Stall)})
		}
	}
}

// reuse looks for operands that are kept for an instruction that doesn't come
// next.
func (c *checker) reuse() {
	for i := range c.a.Insts {
		if c.full() {
			return
		}
		if c.a.Insts[i].Word.Control().Reuse == 0 || c.a.Insts[i].op == nil {
			continue
		}
		if c.a.names[i].read.R == [4]uint64{} {
			continue // jumps of older compilers have the bits, too
		}
		if k := c.a.Insts[i].op.flow; k != FlowNext || i+1 < len(c.a.Insts) && c.a.Insts[i+1].op != nil && c.a.Insts[i+1].op.flow == FlowBranch {
			c.add(Finding{Hazard: HazardReuse, Index: i, From: -1})
		}
	}
}

// ranges looks for registers that the kernel doesn't have, or may have given away.
func (c *checker) ranges() {
	top := c.a.Func.Registers
	if top <= 0 {
		return
	}
	if top = max(top, c.a.mostRegisters); top >= RZ {
		return
	}
	for i := range c.a.Insts {
		if c.full() {
			return
		}
		in := &c.a.Insts[i]
		if in.op == nil {
			continue
		}
		n := &c.a.names[i]
		if h := max(n.read.highest(GPR), n.write.highest(GPR)); h >= top {
			f := Finding{Hazard: HazardRange, Index: i, From: -1}
			f.Regs.Add(GPR, uint8(h), 1)
			c.add(f)
		}
	}
}

func intersect(a, b *Set) Set {
	s := *a
	for i := range s.R {
		s.R[i] &= b.R[i]
		s.UR[i] &= b.UR[i]
	}
	s.P &= b.P
	s.UP &= b.UP
	s.B &= b.B
	return s
}

// tells returns the control half with a read barrier, which the next instruction can
// wait for.
func (c Control) tells(board uint8) Control {
	c.ReadBar, c.Stall = board, max(c.Stall, boardStall)
	return c
}
