package sass

// FlowKind says how an instruction changes where a warp goes on.
type FlowKind uint8

// The kinds of flow.
const (
	FlowNext     FlowKind = iota // to the next instruction
	FlowBranch                   // to Target
	FlowIndirect                 // to an address in a register, or a table
	FlowCall                     // to Target, or indirect; the callee may come back
	FlowReturn
	FlowExit  // the thread ends; what doesn't take part goes on
	FlowSet   // BSSY: names the place (Target) where threads meet again
	FlowSync  // BSYNC: waits there for the others
	FlowBreak // BREAK: takes threads out of the set that will meet
	FlowWarp  // WARPSYNC, ENDCOLLECTIVE: makes lanes of a warp meet here
	FlowTrap  // BPT, KILL
)

// Flow is where control goes.
type Flow struct {
	Kind FlowKind
	// Target is the place that a field names, in bytes from the next instruction
	// on. HasTarget says whether there is one; it also has to be re-encoded when
	// the instruction is moved.
	Target    int64
	HasTarget bool
	// Conditional says that the next instruction may run too: there is a guard or
	// a condition.
	Conditional bool
}

// Opcodes that the package itself knows.
const (
	opBRA, opBRAU   = 0x947, 0x547
	opEXIT          = 0x94d
	opCALLRel       = 0x944
	opRET           = 0x950 // RET.REL
	opBSSY          = 0x945
	opBSYNC         = 0x941
	opBREAK         = 0x942
	opNOP           = 0x918
	opWarpSync      = 0x348
	opWarpSyncImm   = 0x948
	opDEPBAR        = 0x91a
	opEndCollective = 0x91b
	opR2P           = 0x804 // with the mask of predicates at bits 32 to 38
	opLEPC          = 0x94e
	opMOVImm        = 0x802
	opIMADImm       = 0x424        // IMAD with an immediate addend, which copies it if a factor is RZ
	opTrap          = 0x040000795c // BPT.TRAP 0x1: all of its low half, with the guard PT
	trapMode        = 0x300000     // and what it has in its high half
)

// collectiveBit of a WARPSYNC says that it names a place: WARPSYNC.COLLECTIVE.
const collectiveBit = 86

// flowOf classifies an opcode.
func flowOf(_ uint16, name string) FlowKind {
	switch name {
	case "BRA":
		return FlowBranch
	case "BRX", "BRXU", "JMP", "JMX", "JMXU":
		return FlowIndirect
	case "CALL", "PRET":
		return FlowCall
	case "RET", "RTT":
		return FlowReturn
	case "EXIT":
		return FlowExit
	case "BSSY":
		return FlowSet
	case "BSYNC":
		return FlowSync
	case "BREAK":
		return FlowBreak
	case "WARPSYNC", "ENDCOLLECTIVE":
		return FlowWarp
	case "BPT", "KILL":
		return FlowTrap
	}
	return FlowNext
}

// signed returns the low n bits of v as a number with a sign.
func signed(v uint64, n uint) int64 { return int64(v<<(64-n)) >> (64 - n) }

// target reads the relative target of a branch: instructions of 4 bytes as its
// unit, from the next instruction on.
func (i *Inst) target() (int64, bool) {
	w := i.Word
	switch w.Opcode() {
	case opWarpSync, opWarpSyncImm:
		if w.Bits(collectiveBit, 1) == 0 {
			return 0, false
		}
		fallthrough
	case opBRA, opBRAU, opCALLRel:
		if i.Arch.trait().farTargets {
			return signed(w.Bits(16, 8)|w.Bits(34, 48)<<8, 56) * 4, true
		}
		return signed(w.Bits(34, 48), 48) * 4, true
	case opBSSY:
		return signed(w.Bits(34, 30), 30) * 4, true
	}
	return 0, false
}

// withTarget returns the word with another relative target, in bytes from the
// next instruction on; false if it has none, or the distance does not fit.
func (i *Inst) withTarget(t int64) (Word, bool) {
	w := i.Word
	if t%4 != 0 {
		return w, false
	}
	t /= 4
	switch w.Opcode() {
	case opWarpSync, opWarpSyncImm:
		if w.Bits(collectiveBit, 1) == 0 {
			return w, false
		}
		fallthrough
	case opBRA, opBRAU, opCALLRel, opRET:
		if i.Arch.trait().farTargets {
			return w.SetBits(16, 8, uint64(t)).SetBits(34, 48, uint64(t>>8)), signed(uint64(t), 56) == t
		}
		return w.SetBits(34, 48, uint64(t)), signed(uint64(t), 48) == t
	case opBSSY:
		return w.SetBits(34, 30, uint64(t)), signed(uint64(t), 30) == t
	}
	return w, false
}

// Flow returns where control goes after the instruction. An unknown word is
// [FlowIndirect]: it may go anywhere.
func (i *Inst) Flow() Flow {
	if i.op == nil {
		return Flow{Kind: FlowIndirect, Conditional: true}
	}
	f := Flow{Kind: i.op.flow}
	if f.Kind == FlowNext {
		return f
	}
	f.Target, f.HasTarget = i.target()
	_, _, guarded := i.Guard()
	f.Conditional = guarded
	switch f.Kind {
	case FlowBranch, FlowExit, FlowReturn, FlowIndirect:
		// They have a second condition of their own, at bits 87 to 90; BRA can
		// have a uniform predicate at 24 to 27 or diverge (.DIV, .CONV).
		if i.Word.Bits(87, 4) != guardAlways {
			f.Conditional = true
		}
		// BRA.DIV, BRA.CONV, BRA.U.ANY depend on what other threads do.
		if f.Kind == FlowBranch && (i.Word.Bits(84, 3) != 0 || i.Word.Bits(91, 1) != 0) {
			f.Conditional = true
		}
		for j := range i.ops {
			if k := i.ops[j].kind; (k == UPred || k == Pred) && i.ops[j].len != 0 {
				if _, named := i.ops[j].reg(i.Word); named {
					f.Conditional = true
				}
			}
		}
	}
	return f
}

// moved returns the number that a word copies to a general register, as an address to come
// back to is; false if it copies none.
func (w Word) moved() (uint32, bool) {
	switch w.Opcode() {
	case opMOVImm:
	case opIMADImm:
		if w.Bits(24, 8) != RZ {
			return 0, false
		}
	default:
		return 0, false
	}
	return uint32(w.Bits(32, 32)), true
}

// pcRelative says whether the word names a place relative to itself, so that it
// has to be re-encoded when it is moved. If Inst.withTarget can't do that, it
// must not be moved.
func (i *Inst) pcRelative() bool {
	if i.op == nil {
		return true
	}
	switch i.Word.Opcode() {
	case opBRA, opBRAU, opCALLRel, opBSSY, opLEPC:
		return true
	case opWarpSync, opWarpSyncImm:
		return i.Word.Bits(collectiveBit, 1) != 0
	}
	return i.op.flow == FlowIndirect
}
