package ptrace

import "encoding/binary"

// abortSequence does what the kernel does with a task that was interrupted in a restartable
// sequence (rseq(2)): r, its registers, go on at the sequence's abort handler. It has to be
// done before the task executes something else, since the kernel then believes
// that it has left the sequence.
func (t *Task) abortSequence(r *Regs) {
	const atSequence, sequenceSize = 8, 32 // offset in struct rseq, size of struct rseq_cs (linux/rseq.h)
	var c rseqConfig
	if getRseq(t.TID, &c) != 0 || c.abi == 0 { // a kernel before 5.13 does not tell
		return
	}
	le := binary.LittleEndian
	var at [8]byte
	if n, _ := t.ReadMem(c.abi+atSequence, at[:]); n < len(at) || le.Uint64(at[:]) == 0 {
		return
	}
	var cs [sequenceSize]byte // version, flags, first address, length, abort handler
	if n, _ := t.ReadMem(le.Uint64(at[:]), cs[:]); n < len(cs) {
		return
	}
	if first, length := le.Uint64(cs[8:]), le.Uint64(cs[16:]); r.IP()-first < length {
		r.SetIP(le.Uint64(cs[24:]))
	}
}
