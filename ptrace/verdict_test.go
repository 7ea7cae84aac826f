package ptrace

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestAllows: filters by hand, of every kind of instruction that the kernel takes.
func TestAllows(t *testing.T) {
	const (
		ld, ldx, alu, jmp, ret = unix.BPF_LD, unix.BPF_LDX, unix.BPF_ALU, unix.BPF_JMP, unix.BPF_RET
		yes, no                = unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_KILL_PROCESS
	)
	arg := func(i int) Insn { return Insn{Code: opLoad, K: uint32(offArgs + 8*i)} }
	end := func(tail ...Insn) Program { // with one that falls through for no
		return append(tail, Insn{opRet, 0, 0, no}, Insn{opRet, 0, 0, yes})
	}
	for _, c := range []struct {
		what string
		p    Program
		args []uint64
		want bool
	}{
		{"an action", Program{{opRet, 0, 0, yes}}, nil, true},
		{"failure", Program{{opRet, 0, 0, unix.SECCOMP_RET_ERRNO | 1}}, nil, false},
		{"what is logged", Program{{opRet, 0, 0, unix.SECCOMP_RET_LOG}}, nil, false},
		{"the number", end(Insn{opLoad, 0, 0, offNr}, Insn{opJeq, 1, 0, 5}), nil, true},
		{"another number", end(Insn{opLoad, 0, 0, offNr}, Insn{opJeq, 1, 0, 6}), nil, false},
		{"the architecture", end(Insn{opLoad, 0, 0, offArch}, Insn{opJeq, 1, 0, nativeArch}), nil, true},
		{"an argument", end(arg(0), Insn{opJeq, 1, 0, 7}), []uint64{7}, true},
		{"another one", end(arg(0), Insn{opJeq, 1, 0, 7}), []uint64{8}, false},
		{"its high half", end(Insn{opLoad, 0, 0, offArgs + 4}, Insn{opJeq, 1, 0, 3}), []uint64{3<<32 | 9}, true},
		{"one that is not known", end(arg(1), Insn{opJeq, 1, 0, 7}), []uint64{8}, false},
		{"one that does not matter", Program{arg(1), {opJeq, 1, 0, 7}, {opRet, 0, 0, yes}, {opRet, 0, 0, yes}}, nil, true},
		{"the instruction's address", end(Insn{opLoad, 0, 0, offIP}, Insn{opJgt, 0, 1, 7}), nil, false},
		{"ge", end(arg(0), Insn{jmp | unix.BPF_JGE, 1, 0, 7}), []uint64{7}, true},
		{"gt", end(arg(0), Insn{opJgt, 1, 0, 7}), []uint64{7}, false},
		{"set", end(arg(0), Insn{jmp | unix.BPF_JSET, 1, 0, 6}), []uint64{2}, true},
		{"not set", end(arg(0), Insn{jmp | unix.BPF_JSET, 1, 0, 6}), []uint64{1}, false},
		{"always", end(Insn{opJa, 0, 0, 1}), nil, true},
		{"arithmetic", end(arg(0), Insn{alu | unix.BPF_ADD, 0, 0, 4}, Insn{alu | unix.BPF_MUL, 0, 0, 3}, Insn{alu | unix.BPF_SUB, 0, 0, 1},
			Insn{alu | unix.BPF_LSH, 0, 0, 2}, Insn{alu | unix.BPF_DIV, 0, 0, 5}, Insn{alu | unix.BPF_XOR, 0, 0, 1}, Insn{opJeq, 1, 0, ((2+4)*3-1)*4/5 ^ 1}), []uint64{2}, true},
		{"with X", end(arg(0), Insn{unix.BPF_MISC | unix.BPF_TAX, 0, 0, 0}, arg(1), Insn{alu | unix.BPF_AND | unix.BPF_X, 0, 0, 0}, Insn{opJeq, 1, 0, 4}), []uint64{6, 12}, true},
		{"X compared", end(Insn{ldx | unix.BPF_IMM, 0, 0, 9}, arg(0), Insn{jmp | unix.BPF_JEQ | unix.BPF_X, 1, 0, 0}), []uint64{9}, true},
		{"X and back", end(Insn{ldx | unix.BPF_IMM, 0, 0, 9}, Insn{unix.BPF_MISC | unix.BPF_TXA, 0, 0, 0}, Insn{opJeq, 1, 0, 9}), nil, true},
		{"memory", end(arg(0), Insn{unix.BPF_ST, 0, 0, 3}, Insn{ld | unix.BPF_IMM, 0, 0, 0}, Insn{ld | unix.BPF_MEM, 0, 0, 3}, Insn{opJeq, 1, 0, 5}), []uint64{5}, true},
		{"memory of X", end(Insn{ldx | unix.BPF_IMM, 0, 0, 8}, Insn{unix.BPF_STX, 0, 0, 3}, Insn{ldx | unix.BPF_MEM, 0, 0, 3}, Insn{unix.BPF_MISC | unix.BPF_TXA, 0, 0, 0}, Insn{opJeq, 1, 0, 8}), nil, true},
		{"length", end(Insn{ld | unix.BPF_LEN, 0, 0, 0}, Insn{opJeq, 1, 0, 64}), nil, true},
		{"a negative", end(arg(0), Insn{alu | unix.BPF_NEG, 0, 0, 0}, Insn{opJeq, 1, 0, ^uint32(0)}), []uint64{1}, true},
		{"what A says", Program{{ld | unix.BPF_IMM, 0, 0, yes}, {ret | unix.BPF_A, 0, 0, 0}}, nil, true},
		{"what an unknown A says", Program{arg(0), {ret | unix.BPF_A, 0, 0, 0}}, nil, false},
		{"division by nothing", end(arg(0), Insn{alu | unix.BPF_DIV | unix.BPF_X, 0, 0, 0}, Insn{opJeq, 1, 0, 0}), []uint64{0}, false},
		{"no end", Program{{opLoad, 0, 0, 0}}, nil, false},
	} {
		if got := c.p.allows(5, c.args...); got != c.want {
			t.Errorf("%s: %t", c.what, got)
		}
	}
}

// TestAllowsManyWays: where many arguments' bits make two ways each, what is known alike behind them is looked at
// once, and a filter of which each way knows something else not for ever.
func TestAllowsManyWays(t *testing.T) {
	const jset, add, ld = unix.BPF_JMP | unix.BPF_JSET, unix.BPF_ALU | unix.BPF_ADD, unix.BPF_LD
	ways := func(n int, each func(i int) Program) (p Program) {
		for i := range n {
			p = append(p, Insn{opLoad, 0, 0, offArgs}, Insn{jset, 0, uint8(len(each(i))), 1})
			p = append(p, each(i)...)
		}
		return append(p, Insn{opRet, 0, 0, unix.SECCOMP_RET_ALLOW})
	}
	alike := ways(100, func(int) Program { return Program{{unix.BPF_ST, 0, 0, 0}} })
	if !alike.allows(1) || !alike.allows(1, 1) {
		t.Error("all ways allow the call")
	}
	refuses := ways(100, func(i int) Program { return Program{{opJeq, 0, 1, 7}, {opRet, 0, 0, unix.SECCOMP_RET_KILL_THREAD}} })
	if refuses.allows(1) {
		t.Error("a way forbids the call")
	}
	other := append(Program{{ld | unix.BPF_IMM, 0, 0, 0}, {unix.BPF_ST, 0, 0, 0}}, ways(30, func(i int) Program {
		return Program{{ld | unix.BPF_MEM, 0, 0, 0}, {add, 0, 0, 1 << i}, {unix.BPF_ST, 0, 0, 0}}
	})...)
	if other.allows(1) {
		t.Error("2^30 ways were looked at")
	}
	if !other.allows(1, 1) {
		t.Error("there is one way")
	}
}

// TestPassesOwn: the calls of an Injector's code pass a filter of this package that selects those near its memory,
// as a killed tracer leaves one: the next one takes it for the program's, if it can't know better.
func TestPassesOwn(t *testing.T) {
	rules := append(internalRules(&Options{}), reservedRules([]Span{{0x70000000, 0x71400000}, {0x550000000000, 0x555500000000}})...)
	p, err := compile(rules, ActionTrace, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, nr := range []uint64{unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MPROTECT, unix.SYS_MREMAP, unix.SYS_MADVISE, unix.SYS_RT_SIGPROCMASK} {
		if !p.passes(nr) {
			t.Errorf("%s does not pass", callName(nr))
		}
	}
	if p.allows(unix.SYS_MMAP) {
		t.Error("mmap is allowed whatever its arguments are")
	}
}

func TestStrictMode(t *testing.T) {
	for name, want := range map[string]bool{"read": true, "write": true, "exit": true, "rt_sigreturn": true, "exit_group": false, "getpid": false} {
		if got := strictMode.allows(nrOf(t, name)); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestShows: what a filter answers itself is not seen by the tracer; what it lets pass, traces, logs or ends is.
func TestShows(t *testing.T) {
	for action, want := range map[uint32]bool{
		unix.SECCOMP_RET_ALLOW: true, unix.SECCOMP_RET_LOG: true, unix.SECCOMP_RET_TRACE: true, unix.SECCOMP_RET_KILL_PROCESS: true,
		unix.SECCOMP_RET_ERRNO | 1: false, unix.SECCOMP_RET_TRAP: false, unix.SECCOMP_RET_USER_NOTIF: false,
	} {
		p := Program{{opLoad, 0, 0, offArgs}, {opJeq, 0, 1, 7}, {opRet, 0, 0, action}, {opRet, 0, 0, unix.SECCOMP_RET_ALLOW}}
		if got := p.shows(5); got != want {
			t.Errorf("%#x: %t", action, got)
		}
	}
}
