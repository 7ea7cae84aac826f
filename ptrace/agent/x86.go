package agent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/arch/x86/x86asm"

	"nvtrace/ptrace/jump"
)

// jumpLen is the length of a jump with a 32-bit distance.
const jumpLen = 5

// jumpTo encodes a jump from one address to another; they must be within reach.
func jumpTo(from, to uint64) []byte {
	b := make([]byte, jumpLen)
	b[0] = 0xe9
	binary.LittleEndian.PutUint32(b[1:], uint32(to-from-jumpLen))
	return b
}

// fits says whether a distance fits into 32 bits.
func fits(d int64) bool { return d == int64(int32(d)) }

// decodeInsn is x86asm.Decode with the instruction that functions begin with where indirect
// branches are tracked (endbr64, of Ubuntu's libraries among others), which it takes for
// a prefix.
func decodeInsn(code []byte) (x86asm.Inst, error) {
	if bytes.HasPrefix(code, endbr64) {
		return x86asm.Inst{Op: x86asm.NOP, Mode: 64, Len: len(endbr64)}, nil
	}
	return x86asm.Decode(code, 64)
}

var endbr64 = []byte{0xf3, 0x0f, 0x1e, 0xfa}

// moved is code that does at another place what it did at its own.
type moved struct {
	code []byte
	n    int         // bytes that it was
	at   map[int]int // where in code an instruction is that was so far from the beginning
	call bool
	ends bool // it does not go on behind its end
}

// moveCode moves whole instructions from the beginning of code, which lies at
// from, to the address to: as many as it takes to cover least bytes. What depends on where it stands is
// changed: operands relative to the instruction pointer, branches (short ones become long), calls. An
// instruction that is not known is an error.
func moveCode(code []byte, from, to uint64, least int) (m moved, err error) {
	m.at = make(map[int]int)
	for m.n < least {
		if m.call {
			return m, errors.New("a call that would return into the jump")
		}
		if m.ends {
			if !jump.Padding(code[m.n:], least-m.n) {
				return m, errors.New("the function is too short")
			}
			m.n = least
			break
		}
		in, err := decodeInsn(code[m.n:])
		if n, ok := jump.Len(code[m.n:]); err != nil || in.Len == 0 || !ok || n != in.Len {
			return m, fmt.Errorf("instruction at +%#x: not known", m.n)
		}
		raw := code[m.n : m.n+in.Len]
		b, err := moveInstruction(raw, &in, from+uint64(m.n), to+uint64(len(m.code)), from, least)
		if err != nil {
			return m, fmt.Errorf("instruction at +%#x: %w", m.n, err)
		}
		m.at[m.n] = len(m.code)
		m.code = append(m.code, b...)
		m.n += in.Len
		m.call = in.Op == x86asm.CALL
		m.ends = m.call || in.Op == x86asm.JMP || in.Op == x86asm.RET || in.Op == x86asm.UD2 || in.Op == x86asm.HLT
	}
	return m, nil
}

// moveInstruction moves one instruction. entry and least say where moved code
// begins and what of it will be gone.
func moveInstruction(raw []byte, in *x86asm.Inst, from, to, entry uint64, least int) ([]byte, error) {
	if in.Op == x86asm.CALL {
		return moveCall(raw, in, from, to)
	}
	if in.PCRel == 0 {
		switch in.Op {
		case x86asm.JCXZ, x86asm.JECXZ, x86asm.JRCXZ, x86asm.LOOP, x86asm.LOOPE, x86asm.LOOPNE, x86asm.XBEGIN:
			return nil, fmt.Errorf("%v can't be moved", in.Op)
		}
		return append([]byte(nil), raw...), nil
	}
	if target, ok := branchTarget(in, from); ok {
		if target > entry && target < entry+uint64(least)+uint64(len(raw)) && target != from+uint64(in.Len) {
			return nil, errors.New("a branch to what is moved")
		}
		return moveBranch(in, target, to, from)
	}
	// A memory operand relative to the instruction pointer.
	if in.PCRel != 4 {
		return nil, errors.New("a short distance in memory")
	}
	b := append([]byte(nil), raw...)
	old := int64(int32(binary.LittleEndian.Uint32(b[in.PCRelOff:])))
	d := old + int64(from) - int64(to)
	if !fits(d) {
		return nil, errors.New("the instruction's operand would be out of reach")
	}
	binary.LittleEndian.PutUint32(b[in.PCRelOff:], uint32(int32(d)))
	return b, nil
}

// moveCall moves a call: the function returns to where it did, which is what exceptions and
// backtraces know.
func moveCall(raw []byte, in *x86asm.Inst, from, to uint64) ([]byte, error) {
	back := from + uint64(in.Len)
	const pushLen = 6
	var jmp []byte
	if target, ok := branchTarget(in, from); ok {
		if target == back {
			return nil, errors.New("the instruction reads its own address")
		}
		d := int64(target) - int64(to) - pushLen - jumpLen
		if !fits(d) {
			return nil, errors.New("the branch's target would be out of reach")
		}
		jmp = jumpTo(to+pushLen, target)
	} else {
		if m, ok := in.Args[0].(x86asm.Mem); ok && (m.Base == x86asm.RSP || m.Index == x86asm.RSP || m.Segment != 0) {
			return nil, errors.New("a call through the stack can't be moved")
		}
		jmp = append(jmp, raw...)
		op := bytes.IndexByte(jmp, 0xff) // behind prefixes, of which none is that
		if op < 0 || op+1 >= len(jmp) || jmp[op+1]>>3&7 != 2 {
			return nil, fmt.Errorf("%v can't be moved", in)
		}
		jmp[op+1] ^= (2 ^ 4) << 3 // jmp in place of call
		if in.PCRel == 4 {
			d := int64(int32(binary.LittleEndian.Uint32(jmp[in.PCRelOff:]))) + int64(from) - int64(to) - pushLen
			if !fits(d) {
				return nil, errors.New("the instruction's operand would be out of reach")
			}
			binary.LittleEndian.PutUint32(jmp[in.PCRelOff:], uint32(int32(d)))
		} else if in.PCRel != 0 {
			return nil, errors.New("a short distance in memory")
		}
	}
	code := []byte{0xff, 0x35} // push back(%rip)
	code = binary.LittleEndian.AppendUint32(code, uint32(len(jmp)))
	return binary.LittleEndian.AppendUint64(append(code, jmp...), back), nil
}

// branchTarget returns where a direct branch goes.
func branchTarget(in *x86asm.Inst, at uint64) (uint64, bool) {
	if in.PCRel == 0 {
		return 0, false
	}
	for _, a := range in.Args {
		if rel, ok := a.(x86asm.Rel); ok {
			return at + uint64(in.Len) + uint64(int64(rel)), true
		}
	}
	return 0, false
}

// moveBranch encodes a branch with a 32-bit distance.
func moveBranch(in *x86asm.Inst, target, to, from uint64) ([]byte, error) {
	var op []byte
	switch {
	case in.Op == x86asm.JMP:
		op = []byte{0xe9}
	case in.Opcode>>24&0xf0 == 0x70:
		op = []byte{0x0f, byte(in.Opcode>>24)&0x0f | 0x80}
	case in.Opcode>>24 == 0x0f && in.Opcode>>16&0xf0 == 0x80:
		op = []byte{0x0f, byte(in.Opcode >> 16)}
	default:
		return nil, fmt.Errorf("%v can't be moved", in.Op)
	}
	d := int64(target) - int64(to) - int64(len(op)) - 4
	if !fits(d) {
		return nil, errors.New("the branch's target would be out of reach")
	}
	return binary.LittleEndian.AppendUint32(op, uint32(int32(d))), nil
}

var syscallInsn = []byte{0x0f, 0x05}

func isAX(r x86asm.Reg) bool {
	return r == x86asm.AL || r == x86asm.AH || r == x86asm.AX || r == x86asm.EAX || r == x86asm.RAX
}
