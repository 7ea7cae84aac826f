package ptrace

import (
	"cmp"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Rule selects system calls: those of one of the numbers whose arguments match
// all of Args. The first rule of a list that matches decides.
type Rule struct {
	Names []string // of calls, as in the manual: "ioctl"; names that the architecture lacks are ignored
	Nrs   []uint32 // further calls, by number on this architecture
	Args  []ArgMatch
	Class uint16 // handed to the handler as Syscall.Class; ClassInternal is taken
	// Compat also selects the calls of the same Names by the machine's other ABIs
	// (i386 and x32 on amd64, AArch32 on arm64).
	Compat bool
}

// ClassInternal is the class of the calls that the supervisor stops for its own
// sake. Rules can't use it.
const ClassInternal = 0xffff

// ArgMatch is a condition on one argument.
type ArgMatch struct {
	Arg   int    // 0 to 5
	Op    Op     // how it is compared with Value
	Mask  uint64 // is ANDed to the argument first; 0 means all bits
	Value uint64
	// Low compares the low 32 bits only. Wanted for what the kernel takes as an
	// int or unsigned int (descriptors, ioctl requests): the high half of the
	// register can hold anything.
	Low bool
}

// Op is a comparison.
type Op uint8

// The comparisons, unsigned.
const (
	Equal Op = iota
	NotEqual
	LessEqual
	GreaterEqual
)

// Action is what a filter does with a call that a rule matches.
type Action uint32

// The actions; see seccomp(2). Other calls are allowed.
const (
	ActionTrace  Action = unix.SECCOMP_RET_TRACE      // stop for the tracer; Class goes along
	ActionNotify Action = unix.SECCOMP_RET_USER_NOTIF // ask the listener
	ActionErrno  Action = unix.SECCOMP_RET_ERRNO      // fail with errno Class
)

// Insn is a classic BPF instruction, struct sock_filter of linux/filter.h.
type Insn struct {
	Code   uint16
	Jt, Jf uint8
	K      uint32
}

// Program is a seccomp filter.
type Program []Insn

// The opcodes in use (linux/bpf_common.h).
const (
	opLoad = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	opAnd  = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	opJa   = unix.BPF_JMP | unix.BPF_JA
	opJeq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	opJgt  = unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K
	opJge  = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	opRet  = unix.BPF_RET | unix.BPF_K
)

// Offsets in struct seccomp_data (linux/seccomp.h) of a little-endian machine.
const (
	offNr   = 0
	offArch = 4
	offIP   = 8
	offArgs = 16
)

const (
	maxInsns = 4096 // BPF_MAXINSNS
	maxArgs  = 16   // conditions in a rule: keeps its jumps within 8 bits
)

// group holds the rules that name one call, in their order.
type group struct {
	call  call
	rules []*Rule
}

// groupRules checks the rules and sorts them by call.
func groupRules(rules []Rule) ([]group, error) {
	var groups []group
	index := map[call]int{}
	for i := range rules {
		r := &rules[i]
		if err := r.check(); err != nil {
			return nil, fmt.Errorf("rule %d: %w", i, err)
		}
		calls := make([]call, 0, len(r.Nrs)+len(r.Names))
		for _, nr := range r.Nrs {
			calls = append(calls, call{nativeArch, nr})
		}
		for _, name := range r.Names {
			c, known := callsNamed(name, r.Compat)
			if !known {
				return nil, fmt.Errorf("rule %d: no system call is named %q", i, name)
			}
			calls = append(calls, c...)
		}
		for _, c := range calls {
			g, ok := index[c]
			if !ok {
				g = len(groups)
				index[c] = g
				groups = append(groups, group{call: c})
			}
			groups[g].rules = append(groups[g].rules, r)
		}
	}
	return groups, nil
}

func (r *Rule) check() error {
	if len(r.Names) == 0 && len(r.Nrs) == 0 {
		return fmt.Errorf("names no system call")
	}
	if len(r.Args) > maxArgs {
		return fmt.Errorf("%d conditions, at most %d are possible", len(r.Args), maxArgs)
	}
	for _, a := range r.Args {
		if a.Arg < 0 || a.Arg > 5 {
			return fmt.Errorf("argument %d: there are 0 to 5", a.Arg)
		}
		if a.Op > GreaterEqual {
			return fmt.Errorf("argument %d: unknown comparison %d", a.Arg, a.Op)
		}
	}
	return nil
}

// Compile makes a filter of rules. A call of an ABI that the rules don't
// concern is allowed.
func Compile(rules []Rule, a Action) (Program, error) {
	if err := checkClasses(rules); err != nil {
		return nil, err
	}
	return compile(rules, a, false)
}

func checkClasses(rules []Rule) error {
	for i := range rules {
		if rules[i].Class == ClassInternal {
			return fmt.Errorf("rule %d: class %#x is taken", i, ClassInternal)
		}
	}
	return nil
}

// ExemptPage is the address of a page: with an [Injector], calls made by
// an instruction in it are nobody's business. Any code can be mapped there. It
// lies low, out of the way of the addresses that the kernel hands out.
const ExemptPage = 0x70000000

// compile makes a filter. exempt allows the calls from ExemptPage, if their
// rule's class is not ClassInternal.
func compile(rules []Rule, a Action, exempt bool) (Program, error) {
	groups, err := groupRules(rules)
	if err != nil {
		return nil, err
	}
	var native, compat []group
	for _, g := range groups {
		if g.call.arch == nativeArch {
			native = append(native, g)
		} else {
			compat = append(compat, g)
		}
	}
	p := Program{{Code: opLoad, K: offArch}}
	for _, t := range []struct {
		arch   uint32
		groups []group
	}{{nativeArch, native}, {compatArch, compat}} {
		if len(t.groups) == 0 {
			continue
		}
		body := dispatch(t.groups, a, exempt)
		p = append(p, Insn{opJeq, 1, 0, t.arch}, Insn{opJa, 0, 0, uint32(len(body))})
		p = append(p, body...)
	}
	p = append(p, Insn{opRet, 0, 0, unix.SECCOMP_RET_ALLOW})
	if len(p) > maxInsns {
		return nil, fmt.Errorf("the rules need %d instructions, a filter has at most %d", len(p), maxInsns)
	}
	return p, nil
}

// span is a range of numbers whose calls have the same block.
type span struct {
	first, last uint32
	begin       int // where it begins, in instructions behind the search
}

// dispatch jumps to the block of the call's number, or allows the call. The number is
// searched for by halves: the kernel runs this part for every number there is when the
// filter is installed, and keeps a bitmap of those that are always allowed.
// Equal blocks are there once: rules for all calls would not fit otherwise.
func dispatch(groups []group, a Action, exempt bool) Program {
	slices.SortFunc(groups, func(a, b group) int { return cmp.Compare(a.call.nr, b.call.nr) })
	var blocks Program
	var spans []span
	type placed struct {
		code  Program
		begin int
	}
	var distinct []placed
	for _, g := range groups {
		code := block(g.rules, a, exempt)
		i := slices.IndexFunc(distinct, func(p placed) bool { return slices.Equal(p.code, code) })
		if i < 0 {
			i = len(distinct)
			distinct = append(distinct, placed{code, len(blocks)})
			blocks = append(blocks, code...)
		}
		nr, begin := g.call.nr, distinct[i].begin
		if n := len(spans); n > 0 && spans[n-1].last+1 == nr && spans[n-1].begin == begin {
			spans[n-1].last = nr
		} else {
			spans = append(spans, span{nr, nr, begin})
		}
	}
	return slices.Concat(Program{{Code: opLoad, K: offNr}}, search(spans, 0), blocks)
}

// search jumps to the block of one of spans, which are in order. after is how many
// instructions lie between the search and the blocks.
func search(spans []span, after int) Program {
	const few = 4 // are compared one by one, which takes less room
	// A jump is the instruction behind its comparison.
	if len(spans) <= few {
		p := Program{{opRet, 0, 0, unix.SECCOMP_RET_ALLOW}}
		for _, s := range slices.Backward(spans) {
			test := Program{{opJeq, 0, 1, s.first}}
			if s.first < s.last {
				test = Program{{opJgt, 2, 0, s.last}, {opJge, 0, 1, s.first}}
			}
			p = slices.Concat(test, Program{{opJa, 0, 0, uint32(len(p) + after + s.begin)}}, p)
		}
		return p
	}
	half := len(spans) / 2
	high := search(spans[half:], after)
	low := search(spans[:half], len(high)+after)
	return slices.Concat(Program{{opJgt, 0, 1, spans[half-1].last}, {opJa, 0, 0, uint32(len(low))}}, low, high)
}

// block tries the rules of one call in turn.
func block(rules []*Rule, a Action, exempt bool) Program {
	var p Program
	for _, r := range rules {
		var code Program
		for i := range r.Args {
			code = append(code, r.Args[i].code()...)
		}
		if exempt && r.Class != ClassInternal {
			code = append(code, exemption...)
		}
		code = append(code, Insn{opRet, 0, 0, uint32(a) | uint32(r.Class)})
		for i := range code { // resolve failNext: to the instruction behind this rule
			if code[i].Code == opJeq || code[i].Code == opJgt || code[i].Code == opJge {
				left := uint8(len(code) - i - 1)
				if code[i].Jt == failNext {
					code[i].Jt = left
				}
				if code[i].Jf == failNext {
					code[i].Jf = left
				}
			}
		}
		p = append(p, code...)
		if len(r.Args) == 0 {
			return p // the rest can't be reached
		}
	}
	return append(p, Insn{opRet, 0, 0, unix.SECCOMP_RET_ALLOW})
}

// exemption allows a call from the exempt page, when a rule has selected it. Only
// selected calls pay for it.
var exemption = Program{
	{opLoad, 0, 0, offIP + 4},
	{opJeq, 0, 4, 0},
	{opLoad, 0, 0, offIP},
	{opAnd, 0, 0, ^uint32(pageSize - 1)},
	{opJeq, 0, 1, ExemptPage},
	{opRet, 0, 0, unix.SECCOMP_RET_ALLOW},
}

// failNext stands for the distance to the next rule. Real distances are
// shorter: a condition has at most 7 instructions.
const failNext = 0xff

// code is the test of one condition; it falls through if that holds.
func (m *ArgMatch) code() Program {
	mask := m.mask()
	off := uint32(offArgs + 8*m.Arg)
	lo := Program{{Code: opLoad, K: off}}
	if uint32(mask) != ^uint32(0) {
		lo = append(lo, Insn{opAnd, 0, 0, uint32(mask)})
	}
	v := uint32(m.Value)
	switch m.Op {
	case Equal:
		lo = append(lo, Insn{opJeq, 0, failNext, v})
	case NotEqual:
		lo = append(lo, Insn{opJeq, failNext, 0, v})
	case LessEqual:
		lo = append(lo, Insn{opJgt, failNext, 0, v})
	case GreaterEqual:
		lo = append(lo, Insn{opJge, 0, failNext, v})
	}
	if m.Low {
		return lo
	}
	hi := Program{{Code: opLoad, K: off + 4}}
	if uint32(mask>>32) != ^uint32(0) {
		hi = append(hi, Insn{opAnd, 0, 0, uint32(mask >> 32)})
	}
	v = uint32(m.Value >> 32)
	done := uint8(len(lo))
	switch m.Op {
	case Equal:
		hi = append(hi, Insn{opJeq, 0, failNext, v})
	case NotEqual:
		hi = append(hi, Insn{opJeq, 0, done, v})
	case LessEqual:
		hi = append(hi, Insn{opJgt, failNext, 0, v}, Insn{opJeq, 0, done, v})
	case GreaterEqual:
		hi = append(hi, Insn{opJgt, done + 1, 0, v}, Insn{opJeq, 0, failNext, v})
	}
	return append(hi, lo...)
}

func (m *ArgMatch) mask() uint64 {
	if m.Mask == 0 {
		return ^uint64(0)
	}
	return m.Mask
}

// pageSize is the smallest that the architectures have; memory is mapped in
// multiples of it.
const pageSize = 4096
