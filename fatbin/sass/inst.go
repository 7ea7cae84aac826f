package sass

// Inst is a decoded instruction.
type Inst struct {
	Word Word
	Arch Arch
	op   *opInfo
	ops  []template
}

// Decode looks a word up. False means that the table lacks it: then nothing is
// known of what it does, and the word has to be carried as it is.
func Decode(a Arch, w Word) (Inst, bool) {
	t := table(a)
	if t == nil {
		return Inst{Word: w, Arch: a}, false
	}
	return t.decode(a, w)
}

func (t *archTable) decode(a Arch, w Word) (Inst, bool) {
	o := t[w.Opcode()]
	if o == nil {
		return Inst{Word: w, Arch: a}, false
	}
	ops, ok := o.shape(w)
	if !ok {
		return Inst{Word: w, Arch: a}, false
	}
	return Inst{w, a, o, ops}, true
}

// Known says whether the table has the instruction.
func (i *Inst) Known() bool { return i.op != nil }

// Name returns the name without modifiers, "LDG"; "" of an unknown word.
func (i *Inst) Name() string {
	if i.op == nil {
		return ""
	}
	return i.op.name
}

// guardAlways is PT (or UPT), not negated.
const guardAlways = 7

// Guard returns the predicate that the instruction depends on. False means that
// it always runs; a guard of !PT (never) is given as register 7.
func (i *Inst) Guard() (reg uint8, negated, ok bool) {
	g := i.Word.Bits(12, 4)
	return uint8(g & 7), g&8 != 0, g != guardAlways
}

// guardKind returns [Pred] or, of instructions of the uniform datapath, [UPred].
func (i *Inst) guardKind() RegKind {
	if i.op == nil {
		return Pred
	}
	return i.op.guard
}

// Operands appends the registers that the instruction reads and writes, its guard
// included, RZ, URZ, PT and UPT left out. It is never less than what the hardware
// does. Of an unknown word it appends nothing; see [Inst.Known].
func (i *Inst) Operands(dst []Operand) []Operand {
	if g := uint8(i.Word.Lo >> 12 & 7); g != guardAlways && i.op != nil && i.op.guard != NoReg {
		dst = append(dst, Operand{Kind: i.op.guard, Reg: g, Count: 1, Pos: 12, Len: 3, Read: true, Guard: true})
	}
	for j := range i.ops {
		t := &i.ops[j]
		reg, ok := t.reg(i.Word)
		if !ok {
			continue
		}
		dst = append(dst, Operand{
			Kind: t.kind, Reg: reg, Count: t.count, Pos: t.pos, Len: t.len,
			Read: t.flags&readFlag != 0, Write: t.flags&writeFlag != 0, Inverted: t.invert != 0,
		})
	}
	return dst
}

// Set returns the word with another register in an operand's field. The operand
// must have one.
func (i *Inst) Set(o *Operand, reg uint8) Word {
	v := uint64(reg)
	if o.Inverted {
		v = ^v
	}
	return i.Word.SetBits(uint(o.Pos), uint(o.Len), v)
}

// Uses returns the registers that the instruction reads and those that it may
// write. An unknown word reads and writes all.
func (i *Inst) Uses() (read, write Set) {
	if i.op == nil {
		return allRegs(), allRegs()
	}
	i.uses(&read, &write)
	return read, write
}

// mayWrite is what an instruction need not write, although it runs: R2P writes the
// predicates of a mask, and of predicates that no field names it is not sure that they
// are what nvdisasm had in mind.
func (i *Inst) mayWrite() uint8 {
	if i.op.class == classPredicates || i.op.unnamed {
		return 0x7f
	}
	return 0
}

func (i *Inst) uses(read, write *Set) {
	i.operandSets(read, write)
	i.addGuard(read)
}

// addGuard adds the predicate that a known instruction depends on.
func (i *Inst) addGuard(read *Set) {
	if g := uint8(i.Word.Lo >> 12 & 7); g != guardAlways {
		read.Add(i.op.guard, g, 1)
	}
}
