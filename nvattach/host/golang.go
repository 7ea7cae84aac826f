package host

import (
	"debug/elf"
	"debug/gosym"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/arch/x86/x86asm"

	"nvtrace/nvattach/hostrun"
	"nvtrace/ptrace/dso"
	"nvtrace/ptrace/jump"
)

// Functions of Go. Their goroutines go from thread to thread, and their stacks are copied when
// they grow: what a return address was replaced with would be lost or found by the wrong thread. So
// programs at a return run where the function returns: at each of its RET instructions. A
// function begins with a look at the room on its stack, and jumps back to that when it has got more:
// programs at the entry run behind it. Arguments are in registers of Go's own.

// goRegisters are the fields of struct pt_regs that Go passes words in (Go's abi-internal.md, amd64).
var goRegisters = [...]int{10, 5, 11, 14, 13, 9, 8, 7, 6}

// Bounds of what a file says.
const (
	maxGoTable = 1 << 30
	maxGoFunc  = 4 << 20
)

// goArgument returns a word that a function of Go's has got.
func goArgument(fields []uint64, n uint64) (uint64, bool) {
	if n >= uint64(len(goRegisters)) {
		return 0, false
	}
	return fields[goRegisters[n]], true
}

// A goFile is what is known of the functions of Go in a file.
type goFile struct {
	file      *dso.File
	table     *gosym.Table
	registers error           // nil: functions get arguments, and return results, in registers
	more      map[uint64]bool // addresses of the functions that make a stack larger
}

// goTables are the names of the section that lists functions.
var goTables = []string{".gopclntab", ".data.rel.ro.gopclntab"}

// Reasons not to tell arguments and results.
var (
	errGoRelease  = errors.New("the program was built by a release before Go 1.18, which passes arguments and results in memory")
	errGoABI0     = errors.New("the function gets its arguments in memory, as functions do that assembly code calls")
	errGoAssembly = errors.New("the function is written in assembly code, which alone says where its arguments and results are")
)

// goRelease returns why arguments and results are not in registers. What linkers note of a program,
// since Go 1.18, begins with 14 bytes that say so, the size of a pointer, and flags, of which one says
// that the release follows at byte 32 (debug/buildinfo).
func goRelease(e *dso.File) error {
	const flags, inline = 15, 2
	if s := e.Section(".go.buildinfo"); s != nil {
		if b, err := e.Data(s, maxGoTable); err == nil && len(b) > flags && b[flags]&inline != 0 {
			return nil
		}
	}
	return errGoRelease
}

// readGo reads the list of Go's functions of a file; nil if there is no Go in it.
func readGo(e *dso.File, symbols []dso.Symbol) (*goFile, error) {
	for _, name := range goTables {
		s := e.Section(name)
		if s == nil {
			continue
		}
		data, err := e.Data(s, maxGoTable)
		if err != nil {
			return nil, err
		}
		f := &goFile{file: e, more: make(map[uint64]bool), registers: goRelease(e)}
		text := uint64(0)
		if s := e.Section(".text"); s != nil {
			text = s.Addr
		}
		for i := range symbols {
			if s := &symbols[i]; s.Name == "runtime.text" {
				text = s.Addr
			}
		}
		if f.table, err = gosym.NewTable(nil, gosym.NewLineTable(data, text)); err != nil {
			return nil, fmt.Errorf("the list of Go's functions: %w", err)
		}
		for i := range f.table.Funcs {
			switch fn := &f.table.Funcs[i]; strings.TrimSuffix(fn.Name, ".abi0") {
			case "runtime.morestack", "runtime.morestack_noctxt", "runtime.morestackc":
				f.more[fn.Entry] = true
			}
		}
		return f, nil
	}
	return nil, nil
}

// symbols are the functions, of a file that lists no others.
func (f *goFile) symbols() (list []dso.Symbol) {
	for i := range f.table.Funcs {
		fn := &f.table.Funcs[i]
		list = append(list, dso.Symbol{Name: fn.Name, Addr: fn.Entry, Size: fn.End - fn.Entry, Type: elf.STT_FUNC, Defined: true})
	}
	return list
}

// is reports whether a function of Go's begins at an address.
func (f *goFile) is(addr uint64) bool { return f.has(addr) && f.table.PCToFunc(addr).Entry == addr }

// has reports whether an address is in a function of Go's.
func (f *goFile) has(addr uint64) bool { return f != nil && f.table.PCToFunc(addr) != nil }

// passes returns why a function's arguments and results are not in Go's registers; nil if they are.
func (f *goFile) passes(addr uint64, name string) error {
	file, _, _ := f.table.PCToLine(addr)
	switch {
	case f.registers != nil:
		return f.registers
	case strings.HasSuffix(name, ".abi0"):
		return errGoABI0
	case strings.HasSuffix(file, ".s"):
		return errGoAssembly
	}
	return nil
}

// A goFunc is where programs run at a function, in bytes behind its beginning.
type goFunc struct {
	entry     int   // where it goes on when it has room on its stack
	again     error // why it may come there again within a call; nil: it does not
	returns   []int // its RET instructions
	elsewhere error // why it may return without one of them; nil: it does not
}

// Reasons not to probe.
var (
	errGoLoop  = errors.New("the function's first instruction is part of a loop, and would be counted in each round")
	errGoJumps = errors.New("the function may end by a jump to another one, which returns for it; probe that one's return")
	errGoCode  = errors.New("the function has an instruction that is not known")
	errGoRead  = errors.New("its code can't be read")
	errGoBegin = errors.New("no function of Go's begins there, of which the returns could be found")
)

// read finds these places.
func (f *goFile) read(addr uint64) (g goFunc, err error) {
	fn := f.table.PCToFunc(addr)
	if fn.End <= addr || fn.End-addr > maxGoFunc {
		return g, errGoRead
	}
	text := make([]byte, fn.End-addr)
	if f.file.ReadAt(text, addr) != nil {
		return g, errGoRead
	}
	c, err := decodeGo(text)
	if err != nil {
		return g, err
	}
	g.entry = c.entry(f, addr)
	file, _, _ := f.table.PCToLine(addr)
	for i := range c {
		in := &c[i]
		switch {
		case in.ret:
			g.returns = append(g.returns, in.at)
		case in.indirect && (strings.HasSuffix(file, ".s") || file == "<autogenerated>"), in.jumps && (in.to < 0 || in.to >= len(text)):
			g.elsewhere = errGoJumps
		case in.jumps && (in.to == g.entry || in.to == 0) && !c.asks(f, addr, i):
			g.again = errGoLoop
		}
	}
	return g, nil
}

// A goInsn is what must be known of an instruction.
type goInsn struct {
	at, next int
	jumps    bool // it may go on at to
	always   bool // it does not go on behind
	indirect bool // it goes where a register or memory says
	calls    bool // a function at to
	ret      bool
	to       int
}

type goCode []goInsn

// vector are the prefixes of instructions that package x86asm does not know (VEX, EVEX). None jumps.
var vector = []byte{0xc4, 0xc5, 0x62}

// decodeGo decodes a function.
func decodeGo(text []byte) (list goCode, err error) {
	for at := 0; at < len(text); {
		n, ok := jump.Len(text[at:])
		if !ok || n == 0 {
			return nil, errGoCode
		}
		x := goInsn{at: at, next: at + n}
		if !slices.Contains(vector, text[at]) {
			in, err := x86asm.Decode(text[at:], 64)
			if err == nil && in.Len != n {
				return nil, errGoCode
			}
			if err == nil { // what it does not know does not jump
				x.is(&in)
			}
		}
		list = append(list, x)
		at += n
	}
	return list, nil
}

// is notes where an instruction leads.
func (x *goInsn) is(in *x86asm.Inst) {
	rel, direct := in.Args[0].(x86asm.Rel)
	x.to = x.next + int(rel)
	switch in.Op {
	case x86asm.RET, x86asm.LRET:
		x.ret, x.always = true, true
	case x86asm.CALL:
		x.calls = direct
	case x86asm.JMP:
		x.always, x.jumps, x.indirect = true, direct, !direct
	case x86asm.INT, x86asm.UD2, x86asm.HLT, x86asm.UD1:
		x.always = true
	default:
		x.jumps = direct
	}
}

// index returns which instruction is at a place, -1 if none begins there.
func (c goCode) index(at int) int {
	i, ok := slices.BinarySearchFunc(c, at, func(x goInsn, at int) int { return x.at - at })
	if !ok {
		return -1
	}
	return i
}

// grows reports whether what is at a place has the stack made larger, and jumps back to the
// function's beginning then.
func (c goCode) grows(f *goFile, start uint64, at int) bool {
	seen := false
	for i := c.index(at); i >= 0 && i < len(c); i++ {
		switch in := &c[i]; {
		case in.calls && f.more[start+uint64(in.to)]:
			seen = true
		case in.jumps && in.always:
			return seen && in.to == 0
		case in.jumps, in.always, in.calls:
			return false
		}
	}
	return false
}

// asks reports whether jump i is what has the stack made larger, or jumps back behind that.
func (c goCode) asks(f *goFile, start uint64, i int) bool {
	if c[i].to != 0 || !c[i].always {
		return false
	}
	for k := i - 1; k >= 0 && !c[k].jumps && !c[k].always; k-- {
		if c[k].calls {
			return f.more[start+uint64(c[k].to)]
		}
	}
	return false
}

// mostAsked bounds the instructions by which a function asks for room on the stack.
const mostAsked = 16

// entry returns where the function goes on when it has room on its stack.
func (c goCode) entry(f *goFile, start uint64) (at int) {
	for i := 0; i < len(c) && i < mostAsked; i++ {
		in := &c[i]
		switch {
		case in.jumps && !in.always && c.grows(f, start, in.to):
			at = in.next
		case in.jumps, in.always, in.calls, in.indirect:
			return at
		}
	}
	return at
}

// with is a list with a program, once: a function may have two names.
func with(list []*hostrun.Program, q *hostrun.Program) []*hostrun.Program {
	if slices.Contains(list, q) {
		return list
	}
	return append(list, q)
}

// add has a program run at a function of Go's.
func (f *goFile) add(t *Tracer, places map[uint64]*target, q *hostrun.Program, addr uint64, name, told string) error {
	g, err := f.read(addr)
	if err != nil {
		return err
	}
	if err := f.passes(addr, name); err != nil && (q.Point.Returns() || len(q.Arguments()) > 0) {
		return err
	}
	put := func(at int) *target {
		off, _ := f.file.Offset(addr + uint64(at))
		x := places[off]
		if x == nil {
			x = &target{offset: off, name: told}
			places[off] = x
		}
		x.behind, x.inGo = uint64(at), true
		return x
	}
	if !q.Point.Returns() {
		if g.again == nil {
			x := put(g.entry)
			x.entries = with(x.entries, q)
		}
		return g.again
	}
	if g.elsewhere == nil {
		for _, at := range g.returns {
			x := put(at)
			x.leaves = with(x.leaves, q)
		}
	}
	return g.elsewhere
}
