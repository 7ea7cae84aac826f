package sass

// Encoders of what has to be written into code. Each word has the control half of
// [Plain]; a caller sets waits, stalls and barriers with [Word.WithControl].
// TestEncoders holds them against nvdisasm on each architecture.

// Plain is a control half that waits for nothing and leaves time for any
// instruction of fixed latency: stall 15, no barrier.
var Plain = Control{Stall: 15, WriteBar: NoBar, ReadBar: NoBar}

// RZ, PT are the numbers of the registers that are always zero and true.
const (
	RZ = 255
	PT = 7
)

// URZ returns the number of the uniform register that is always zero.
func URZ(a Arch) uint8 {
	if a >= 100 {
		return 255
	}
	return 63
}

func plain(lo, hi uint64) Word { return Word{lo | PT<<12, hi}.WithControl(Plain) }

// Guarded returns the word with a guard.
func (w Word) Guarded(pred uint8, negated bool) Word {
	g := uint64(pred & 7)
	if negated {
		g |= 8
	}
	return w.SetBits(12, 4, g)
}

// NOP does nothing.
func NOP() Word { return plain(opNOP, 0) }

// exit ends the thread.
func exit() Word { return plain(opEXIT, guardAlways<<(87-64)) }

// BRA jumps, distance in bytes from the next instruction on. False if it does not
// fit.
func BRA(a Arch, distance int64) (Word, bool) {
	i := Inst{Word: plain(opBRA, guardAlways<<(87-64)), Arch: a}
	return i.withTarget(distance)
}

// RETRel is RET.REL.NODEC: it jumps to a place whose offset from the one at distance, in
// bytes from the next instruction on, is in a pair of registers.
func RETRel(a Arch, pair uint8, distance int64) (Word, bool) {
	i := Inst{Word: plain(opRET|uint64(pair)<<24, guardAlways<<(87-64)|1<<(86-64)), Arch: a}
	return i.withTarget(distance)
}

// BSSY has the threads that run it meet again at the BSYNC that names the same convergence
// barrier, distance in bytes from the next instruction on. False if it does not fit.
func BSSY(a Arch, barrier uint8, distance int64) (Word, bool) {
	i := Inst{Word: onBarrier(a, opBSSY, barrier), Arch: a}
	return i.withTarget(distance)
}

// BSYNC waits for the threads that ran the BSSY.
func BSYNC(a Arch, barrier uint8) Word { return onBarrier(a, opBSYNC, barrier) }

// BREAK takes the threads that run it out of those for which a BSYNC waits.
func BREAK(a Arch, barrier uint8) Word {
	w := plain(opBREAK|uint64(barrier&15)<<16, guardAlways<<(87-64))
	if a >= 100 {
		w = w.SetBits(72, 1, 1) // .RELIABLE
	}
	return w
}

func onBarrier(a Arch, op uint64, barrier uint8) Word {
	w := plain(op|uint64(barrier&15)<<16, guardAlways<<(87-64))
	if a >= 100 {
		w = w.SetBits(73, 1, 1) // .RECONVERGENT
	}
	return w
}

// MOV copies a register.
func MOV(dst, src uint8) Word {
	return plain(0x202|uint64(dst)<<16|uint64(src)<<32, 0xf<<(72-64))
}

// MOVImm sets a register.
func MOVImm(dst uint8, v uint32) Word {
	return plain(0x802|uint64(dst)<<16|uint64(v)<<32, 0xf<<(72-64))
}

// MOVUR copies a uniform register into a register.
func MOVUR(dst, src uint8) Word {
	return plain(0xc02|uint64(dst)<<16|uint64(src)<<32, 0xf<<(72-64)|1<<(91-64))
}

// P2R copies the predicates of mask into the low bits of a register, and clears
// its others.
func P2R(dst, mask uint8) Word {
	return plain(0x803|uint64(dst)<<16|RZ<<24|uint64(mask&0x7f)<<32, 0)
}

// R2P sets the predicates of mask from the low bits of a register.
func R2P(src, mask uint8) Word {
	return plain(0x804|uint64(src)<<24|uint64(mask&0x7f)<<32, 0)
}

// LDC loads size (4 or 8) bytes of a constant bank, at an offset below 0x8000, into a
// register, or a pair.
func LDC(_ Arch, dst, bank uint8, offset uint16, size int) Word {
	kind := uint64(4)
	if size == 8 {
		kind = 5
	}
	return plain(0xb82|uint64(dst)<<16|RZ<<24|uint64(offset)<<38|uint64(bank&0x1f)<<54, kind<<(73-64))
}
