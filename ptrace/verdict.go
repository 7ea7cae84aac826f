package ptrace

import (
	"slices"

	"golang.org/x/sys/unix"
)

// value is what is known of a register of a filter.
type value struct {
	v     uint32
	known bool
}

// verdict is a run of a filter at a call of which not everything is known. Where a jump depends on
// that, both ways are gone.
type verdict struct {
	p     Program
	nr    uint32
	args  []uint64 // the first arguments; the others are not known
	steps int
	want  func(action uint32) bool // what the filter is to do
	seen  map[fork]bool            // where both ways have been gone, or are being gone
}

// fork is a jump that depends on what is not known, with all that what follows depends on.
type fork struct {
	pc   int
	a, x value
	mem  [16]value
}

// mostVerdictSteps bounds the work: filters have no loops, but what is known can differ by way.
const mostVerdictSteps = 1 << 16

// allows reports whether a filter lets a call of this architecture pass, whatever the arguments behind args
// are, and wherever it is made. A filter that this can't tell of does not.
func (p Program) allows(nr uint64, args ...uint64) bool {
	return p.always(func(action uint32) bool { return action == unix.SECCOMP_RET_ALLOW }, nr, args...)
}

// passes reports whether the filter lets a call pass in a process that this package traces: one that it
// has traced stops, and goes on. The filters that a killed tracer has left are such.
func (p Program) passes(nr uint64, args ...uint64) bool {
	return p.always(func(action uint32) bool { return action == unix.SECCOMP_RET_ALLOW || action == unix.SECCOMP_RET_TRACE }, nr, args...)
}

// shows reports whether a call at which another filter would stop the thread stops, unless it ends it.
func (p Program) shows(nr uint64) bool {
	return p.always(func(action uint32) bool {
		return action != unix.SECCOMP_RET_ERRNO && action != unix.SECCOMP_RET_TRAP && action != unix.SECCOMP_RET_USER_NOTIF
	}, nr)
}

// always reports whether the filter does what is wanted with a call, whatever is not known of it.
func (p Program) always(want func(action uint32) bool, nr uint64, args ...uint64) bool {
	v := verdict{p: p, nr: uint32(nr), args: args, want: want}
	return v.run(0, value{known: true}, value{known: true}, [16]value{})
}

// load is a word of struct seccomp_data.
func (v *verdict) load(off uint32) value {
	switch {
	case off == offNr:
		return value{v.nr, true}
	case off == offArch:
		return value{nativeArch, true}
	case off >= offArgs && off%4 == 0 && int(off-offArgs)/8 < len(v.args):
		return value{uint32(v.args[(off-offArgs)/8] >> (8 * (off & 4))), true}
	}
	return value{}
}

// run goes on at an instruction.
func (v *verdict) run(pc int, a, x value, mem [16]value) bool {
	for ; pc >= 0 && pc < len(v.p); pc++ {
		if v.steps++; v.steps > mostVerdictSteps {
			return false
		}
		in := &v.p[pc]
		operand := value{in.K, true}
		if in.Code&unix.BPF_X != 0 {
			operand = x
		}
		switch in.Code & 7 {
		case unix.BPF_LD:
			a = v.loaded(in, &mem)
		case unix.BPF_LDX:
			x = v.loaded(in, &mem)
		case unix.BPF_ST:
			mem[in.K%16] = a
		case unix.BPF_STX:
			mem[in.K%16] = x
		case unix.BPF_ALU:
			a = compute(in.Code&0xf0, a, operand)
		case unix.BPF_MISC:
			if in.Code&unix.BPF_TXA != 0 {
				a = x
			} else {
				x = a
			}
		case unix.BPF_RET:
			if in.Code&0x18 == unix.BPF_A {
				operand = a
			} else {
				operand = value{in.K, true}
			}
			return operand.known && v.want(operand.v&unix.SECCOMP_RET_ACTION_FULL)
		case unix.BPF_JMP:
			if in.Code&0xf0 == unix.BPF_JA {
				pc += int(in.K)
				continue
			}
			if !a.known || !operand.known {
				at := fork{pc, a, x, mem}
				if v.seen[at] { // as ways meet again, there are few forks and very many ways
					return true // or the way that came here first says otherwise
				}
				if v.seen == nil {
					v.seen = make(map[fork]bool)
				}
				v.seen[at] = true
				if !v.run(pc+1+int(in.Jt), a, x, mem) {
					return false
				}
				pc += int(in.Jf)
				continue
			}
			if jumps(in.Code&0xf0, a.v, operand.v) {
				pc += int(in.Jt)
			} else {
				pc += int(in.Jf)
			}
		}
	}
	return false
}

// loaded is what BPF_LD and BPF_LDX load.
func (v *verdict) loaded(in *Insn, mem *[16]value) value {
	switch in.Code & 0xe0 {
	case unix.BPF_IMM:
		return value{in.K, true}
	case unix.BPF_ABS:
		return v.load(in.K)
	case unix.BPF_MEM:
		return mem[in.K%16]
	case unix.BPF_LEN:
		return value{offArgs + 6*8, true}
	}
	return value{}
}

// jumps decides a comparison.
func jumps(op uint16, a, b uint32) bool {
	switch op {
	case unix.BPF_JEQ:
		return a == b
	case unix.BPF_JGT:
		return a > b
	case unix.BPF_JGE:
		return a >= b
	}
	return a&b != 0 // BPF_JSET
}

// compute is an operation of arithmetic.
func compute(op uint16, a, b value) value {
	if !a.known || !b.known && op != unix.BPF_NEG {
		return value{}
	}
	switch op {
	case unix.BPF_ADD:
		a.v += b.v
	case unix.BPF_SUB:
		a.v -= b.v
	case unix.BPF_MUL:
		a.v *= b.v
	case unix.BPF_DIV, unix.BPF_MOD:
		if b.v == 0 {
			return value{}
		}
		if op == unix.BPF_DIV {
			a.v /= b.v
		} else {
			a.v %= b.v
		}
	case unix.BPF_OR:
		a.v |= b.v
	case unix.BPF_AND:
		a.v &= b.v
	case unix.BPF_XOR:
		a.v ^= b.v
	case unix.BPF_LSH:
		a.v <<= b.v & 31
	case unix.BPF_RSH:
		a.v >>= b.v & 31
	case unix.BPF_NEG:
		a.v = -a.v
	default:
		return value{}
	}
	return a
}

// strictCalls are what seccomp's strict mode allows (kernel/seccomp.c: mode1_syscalls).
var strictCalls = []string{"read", "write", "exit", "rt_sigreturn"}

// strictMode is a filter that decides as the strict mode does.
var strictMode = func() Program {
	p := Program{{Code: opLoad, K: offNr}}
	for _, name := range strictCalls {
		calls, _ := callsNamed(name, false)
		p = append(p, Insn{opJeq, 0, 1, calls[0].nr}, Insn{opRet, 0, 0, unix.SECCOMP_RET_ALLOW})
	}
	return append(p, Insn{opRet, 0, 0, unix.SECCOMP_RET_KILL_THREAD})
}()

// unknownFilter stands for one that can't be read.
var unknownFilter = Program{{opRet, 0, 0, unix.SECCOMP_RET_KILL_THREAD}}

// allAllow reports whether all of a list of filters let a call pass.
func allAllow(list []Program, nr uint64, args ...uint64) bool {
	return !slices.ContainsFunc(list, func(p Program) bool { return !p.passes(nr, args...) })
}
