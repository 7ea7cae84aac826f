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
// code of NVIDIA's compilers has no finding, up to max of which are returned (0:
// all).
func (a *Analysis) Check(limit int) []Finding {
	c := checker{a: a, limit: limit}
	c.scoreboards()
	c.boards()
	c.stalls()
	c.reuse()
	c.ranges()
	return c.found
}

// Check analyzes a function and returns the findings.
func Check(f *Func) ([]Finding, error) {
	a, err := Analyze(f)
	if err != nil {
		return nil, err
	}
	return a.Check(0), nil
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
		var read, write Set
		in.uses(&read, &write)
		if x := intersect(&read, pw); !x.Empty() {
			c.add(Finding{Hazard: HazardRead, Index: i, From: -1, Regs: x})
		}
		_, _, guarded := in.Guard()
		// Two guarded instructions can exclude each other.
		if x := intersect(&write, pw); !x.Empty() && (woven || !guarded) {
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
		if x := intersect(&write, pr); !x.Empty() {
			c.add(Finding{Hazard: HazardInFlight, Index: i, From: -1, Regs: x})
		}
	}
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
		if k := c.a.Insts[i].op.flow; k != FlowNext || i+1 < len(c.a.Insts) && c.a.Insts[i+1].op != nil && c.a.Insts[i+1].op.flow == FlowBranch {
			c.add(Finding{Hazard: HazardReuse, Index: i, From: -1})
		}
	}
}

// ranges looks for registers that the kernel doesn't have, or may have given away.
func (c *checker) ranges() {
	top := c.a.Func.Registers
	if top <= 0 || top >= RZ {
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
		var read, write Set
		in.uses(&read, &write)
		read.Union(&write)
		if h := read.Highest(GPR); h >= top {
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
