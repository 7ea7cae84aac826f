package ptrace

import (
	"encoding/binary"
	"slices"

	"golang.org/x/arch/x86/x86asm"
	"golang.org/x/sys/unix"

	"nvtrace/ptrace/proc"
)

// returnAddress is where the function returns to at whose entry t is.
func (t *Task) returnAddress(r *Regs) (uint64, error) {
	var b [retSize]byte
	if _, err := t.ReadMem(r.Rsp, b[:]); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}

// decode finds out how st's instruction can be executed. What the decoder does
// not know is executed in place.
func (st *site) decode() error {
	code := st.code[:st.n]
	st.plan, st.how = planInPlace, details{}
	switch {
	case code[0] == breakInsn:
		return breakError(st.addr, "the program has one of its own there")
	case len(code) >= 4 && [4]byte(code) == [4]byte{0xf3, 0x0f, 0x1e, 0xfa}: // endbr64
		st.plan, st.how.n = planSkip, 4
		return nil
	case newEncoding(code):
		return nil
	}
	inst, err := x86asm.Decode(code, 64)
	if err != nil {
		return nil
	}
	st.how.n = inst.Len
	next := st.addr + uint64(inst.Len)
	rel, relative := inst.Args[0].(x86asm.Rel)
	switch op := inst.Op; {
	case slices.Contains(kernelEntries, op):
		return breakError(st.addr, "the instruction enters the kernel: "+op.String())
	case relative && inst.PCRel == 2: // Intel's machines and AMD's differ
	case op == x86asm.JMP && relative:
		st.plan, st.how.target = planJump, next+uint64(int64(rel))
	case op == x86asm.CALL && relative:
		st.plan, st.how.target = planCall, next+uint64(int64(rel))
	case relative && inst.Opcode>>28 == 7, relative && inst.Opcode>>20 == 0x0f8: // jcc
		st.plan, st.how.target = planBranch, next+uint64(int64(rel))
		st.how.opposite = byte(inst.Opcode >> 24)
		if inst.Opcode>>28 != 7 {
			st.how.opposite = 0x70 | byte(inst.Opcode>>16)&0xf
		}
	case relative, op == x86asm.CALL, slices.Contains(oddOps, op):
		// in place
	case inst.PCRel == 4:
		st.plan, st.how.rel = planCopy, inst.PCRelOff
	case inst.PCRel == 0:
		st.plan = planCopy
	}
	return nil
}

// kernelEntries can't be stepped over by a tracer as others can.
var kernelEntries = []x86asm.Op{
	x86asm.SYSCALL, x86asm.SYSENTER, x86asm.SYSEXIT, x86asm.SYSRET, x86asm.INT, x86asm.INTO,
	x86asm.IRET, x86asm.IRETD, x86asm.IRETQ, x86asm.HLT,
}

// oddOps depend on where they are, or on the flag that steps.
var oddOps = []x86asm.Op{
	x86asm.LCALL, x86asm.LJMP, x86asm.LRET, x86asm.XBEGIN, x86asm.LOOP, x86asm.LOOPE, x86asm.LOOPNE,
	x86asm.JCXZ, x86asm.JECXZ, x86asm.JRCXZ,
}

// newEncoding says whether an instruction is encoded with a VEX, EVEX or XOP
// prefix, which the decoder knows in part only.
func newEncoding(code []byte) bool {
	for i, c := range code {
		switch c {
		case 0x66, 0x67, 0xf0, 0xf2, 0xf3, 0x2e, 0x36, 0x3e, 0x26, 0x64, 0x65:
			continue
		case 0xc4, 0xc5, 0x62, 0xd5:
			return true
		case 0x8f:
			return i+1 < len(code) && code[i+1]&0x38 != 0
		}
		return false
	}
	return false
}

// pass lets t, which is at st, execute the instruction there. r are its
// registers. It returns false if t has died.
func (tr *tracer) pass(t *Task, st *site, r *Regs) bool {
	if st.plan == planUnknown && st.decode() != nil {
		st.plan = planInPlace
	}
	next := st.addr + uint64(st.how.n)
	switch st.plan {
	case planSkip:
		r.Rip = next
		return t.setRegs(r) == 0
	case planJump:
		r.Rip = st.how.target
		return t.setRegs(r) == 0
	case planCall:
		b := binary.LittleEndian.AppendUint64(nil, next)
		if n, _ := t.WriteMem(r.Rsp-retSize, b); n == len(b) {
			r.Rsp -= retSize
			r.Rip = st.how.target
			return t.setRegs(r) == 0
		}
	case planCopy, planBranch:
		if slot := tr.copyOf(t, st); slot != 0 {
			r.Rip = slot
			return t.setRegs(r) == 0
		}
		if t.dead { // its id may be that of the thread by whose execve it died
			return false
		}
	}
	return tr.passInPlace(t, st, r)
}

// resumeAt returns where a thread at st goes on without the breakpoint, 0 if that
// is not known yet.
func (st *site) resumeAt() uint64 {
	switch st.plan {
	case planUnknown:
		if st.jump != nil {
			return st.jump.Orig
		}
	case planSkip:
		return st.addr + uint64(st.how.n)
	case planJump:
		return st.how.target
	case planCopy, planBranch:
		return st.slot
	}
	return 0
}

// pushesFlags says whether st's instruction is pushf.
func (st *site) pushesFlags() bool {
	return st.code[0] == 0x9c || st.code[0] == 0x66 && st.code[1] == 0x9c
}

// hideTrapFlag clears the flag with which t was stepped in what it has pushed.
func (t *Task) hideTrapFlag() {
	var r Regs
	var b [1]byte
	if t.getRegs(&r) != 0 {
		return
	}
	if n, _ := t.ReadMem(r.Rsp+1, b[:]); n == 1 {
		b[0] &^= 1 // X86_EFLAGS_TF, bit 8
		_, _ = t.WriteMem(r.Rsp+1, b[:])
	}
}

// appendJump appends a jump to any address: jmp *0(%rip), and the address.
func appendJump(b []byte, to uint64) []byte {
	return binary.LittleEndian.AppendUint64(append(b, 0xff, 0x25, 0, 0, 0, 0), to)
}

// copyOf returns the copy of st's instruction, which it makes first if there is
// none; 0 if there can't be one.
func (tr *tracer) copyOf(t *Task, st *site) uint64 {
	if st.slot != 0 {
		return st.slot
	}
	p := tr.pageFor(t, st)
	if p == nil {
		return 0
	}
	slot := p.addr + uint64(p.used)*copySize
	var b []byte
	if st.plan == planBranch {
		b = append(b, st.how.opposite, jumpSize)
		b = appendJump(b, st.addr+uint64(st.how.n))
		b = appendJump(b, st.how.target)
	} else {
		b = append(b, st.code[:st.how.n]...)
		if at := st.how.rel; at != 0 {
			rel := int64(int32(binary.LittleEndian.Uint32(b[at:]))) + int64(st.addr-slot)
			if rel != int64(int32(rel)) {
				return 0
			}
			binary.LittleEndian.PutUint32(b[at:], uint32(rel))
		}
		b = appendJump(b, st.addr+uint64(st.how.n))
	}
	if t.poke(slot, b) != nil {
		return 0
	}
	p.used++
	st.slot = slot
	return slot
}

// nearBy is how far a page may be from code whose operands it must reach.
const nearBy = 1 << 30

// pageFor finds room for a copy, and maps a page if there is none.
func (tr *tracer) pageFor(t *Task, st *site) *page {
	s := t.Proc.space
	near := func(addr uint64) bool { return addr-st.addr+nearBy < 2*nearBy }
	fits := func(p *page) bool {
		return p.used < pageSize/copySize && (st.how.rel == 0 || near(p.addr))
	}
	for i := range s.pages {
		if fits(&s.pages[i]) {
			return &s.pages[i]
		}
	}
	if s.noPages || tr.o.noCopies {
		return nil
	}
	const prot, flags = unix.PROT_READ | unix.PROT_EXEC, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	addr, err := t.syscall(unix.SYS_MMAP, []uint64{t.gapNear(st.addr), pageSize, prot, flags, ^uint64(0), 0})
	if err != nil {
		s.noPages = true
		tr.log.Debug("no page for copies of instructions, threads are stopped instead", "pid", t.PID, "error", err)
		return nil
	}
	s.pages = append(s.pages, page{addr: uint64(addr)})
	if p := &s.pages[len(s.pages)-1]; fits(p) {
		return p
	}
	st.plan = planInPlace
	return nil
}

// gapNear looks for free address space below the mappings around addr; 0 if
// there is none nearby.
func (t *Task) gapNear(addr uint64) uint64 {
	maps, err := proc.Maps(t.TID)
	if err != nil {
		return 0
	}
	const room, off = 1 << 20, 1 << 16
	for i := len(maps) - 1; i > 0; i-- {
		m := maps[i]
		if m.Start <= addr && addr-m.Start < nearBy/2 && m.Start-maps[i-1].End >= room && m.Path != "[stack]" {
			return m.Start - off
		}
	}
	if len(maps) > 0 && maps[0].Start <= addr && addr-maps[0].Start < nearBy/2 && maps[0].Start >= 2*room {
		return maps[0].Start - off
	}
	return 0
}

// sharesMemory says, where the kernel doesn't tell, whether t, which is at its
// first stop, was made with CLONE_VM. It has its maker's registers.
func (t *Task) sharesMemory() bool {
	var r Regs
	if t.getRegs(&r) != 0 {
		return false
	}
	flags := r.Rdi
	nr := r.Orig_rax
	if r.Cs != userCS {
		flags = r.Rbx
		switch nr { // asm/unistd_32.h
		case 120:
			nr = unix.SYS_CLONE
		case 190:
			nr = unix.SYS_VFORK
		}
	}
	switch nr {
	case unix.SYS_VFORK:
		return true
	case unix.SYS_CLONE3:
		var b [8]byte
		if _, err := t.ReadMem(flags, b[:]); err != nil {
			return false
		}
		flags = binary.LittleEndian.Uint64(b[:])
	case unix.SYS_CLONE:
	default:
		return false
	}
	return flags&unix.CLONE_VM != 0
}
