// Package jump decides where in a program's code a jump may be put in place of instructions.
//
// What is hooked, probed or detoured inside a process begins with a jump to code of nvtrace's own.
// It is longer than most instructions, so it takes the place of several, and these must be
// nobody else's: a jump that lands behind the first of them would go on in the middle of ours.
// [Code.Replaceable] proves that there is none, or says why it can't:
//
//   - The bytes belong to one function. Where a symbol points, where a description for unwinding begins,
//     where a landing pad is (of exceptions, or endbr64), another place begins.
//   - No code of the file jumps into them. All of it is looked at once a file, at each byte, as nobody
//     knows for sure where instructions are: what looks like a branch with 4 bytes of distance, or like
//     an address that is taken, counts as one. Branches of a byte reach 128 bytes far, and
//     are looked for around the place, by decoding the functions there.
//   - No table leads into them: relocations, addresses in data, tables of distances for switches.
//   - The function itself has no indirect jump whose targets can't be read.
//
// A false hit costs speed: a breakpoint serves in place of the jump. Whether another probe lies there is
// for those who put probes.
//
// Addresses are as the file has them.
package jump

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"
	"strings"
	"sync"

	"nvtrace/ptrace/dso"
	"nvtrace/ptrace/proc"
	"nvtrace/ptrace/unwind"
)

// Bounds.
const (
	maxText     = 1 << 30 // bytes of code in a file
	maxParts    = 16      // of the file that have code
	maxFunction = 1 << 20 // bytes that are decoded, from a function's beginning on
	shortReach  = 128     // bytes that a branch of a byte reaches
)

var endbr64 = []byte{0xf3, 0x0f, 0x1e, 0xfa}

// A Code is what is known of the code of a file. Its methods may be used by one goroutine at a time.
type Code struct {
	f     *dso.File
	r     io.ReaderAt
	fixed bool // the file is mapped at its own addresses

	ranges []span          // of functions
	starts []uint64        // where something begins that is known, ascending, once each
	twice  map[uint64]bool // where functions are that return twice, by any of their names
	walked map[uint64]bool // where functions are that their runtime looks for in stacks
	caller map[uint64]bool // the same of those that look at their caller
	named  map[uint64]bool // where symbols of functions point
	entry  uint64

	once    sync.Once
	targets *targets
	err     error
}

// span is the code of a function.
type span struct{ start, end uint64 }

// Read reads which functions a file has. r must stay readable as long as the Code is used.
func Read(r io.ReaderAt) (*Code, error) {
	c := &Code{r: r, twice: make(map[uint64]bool), walked: make(map[uint64]bool), caller: make(map[uint64]bool), named: make(map[uint64]bool)}
	var err error
	if c.f, err = dso.Read(newBlocks(r)); err != nil {
		return nil, err
	}
	if c.f.Machine != elf.EM_X86_64 {
		return nil, fmt.Errorf("the file is for %v", c.f.Machine)
	}
	var b [32]byte
	if _, err := r.ReadAt(b[:], 0); err != nil {
		return nil, err
	}
	c.fixed, c.entry = elf.Type(b[16]) == elf.ET_EXEC, binary.LittleEndian.Uint64(b[24:])
	c.readSymbols()
	ranges, _ := unwind.Ranges(c.f) // there may be no descriptions
	for i := range ranges {
		x := &ranges[i]
		c.ranges = append(c.ranges, span{x.Start, x.End})
		c.starts = append(append(c.starts, x.Start), x.Pads...)
	}
	slices.SortFunc(c.ranges, func(a, b span) int {
		if a.start != b.start {
			return compare(a.start, b.start)
		}
		return compare(b.end, a.end) // the longest first
	})
	c.ranges = slices.CompactFunc(c.ranges, func(a, b span) bool { return a.start == b.start })
	slices.Sort(c.starts)
	c.starts = slices.DeleteFunc(slices.Compact(c.starts), func(at uint64) bool { return !c.executable(at) })
	return c, nil
}

func compare(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// readSymbols takes the places that symbols name.
func (c *Code) readSymbols() {
	all, _ := c.f.Symbols() // it may have been stripped of them
	dynamic, _ := c.f.DynamicSymbols()
	for _, list := range [][]dso.Symbol{all, dynamic} {
		for i := range list {
			s := &list[i]
			if !s.Defined || s.Addr == 0 || s.Type == elf.STT_TLS || !c.executable(s.Addr) {
				continue
			}
			c.starts = append(c.starts, s.Addr)
			if s.Function() && s.Size > 0 {
				c.ranges = append(c.ranges, span{s.Addr, s.Addr + s.Size})
				c.named[s.Addr] = c.named[s.Addr] || !Part(s.Name)
			}
			if returnsTwice(s.Name) {
				c.twice[s.Addr] = true
			}
			if isWalked(s.Name) {
				c.walked[s.Addr] = true
			}
			if looksAtCaller(s.Name) {
				c.caller[s.Addr] = true
			}
		}
	}
}

func (c *Code) executable(addr uint64) bool {
	_, ok := c.f.Offset(addr)
	return ok
}

// Addr returns the address of the code at an offset of the file; false if none is there.
func (c *Code) Addr(offset uint64) (uint64, bool) {
	for i := range c.f.Progs {
		if p := &c.f.Progs[i]; dso.IsCode(p) && offset >= p.Off && offset-p.Off < p.Filesz {
			return offset - p.Off + p.Vaddr, true
		}
	}
	return 0, false
}

// File returns what the file says of itself.
func (c *Code) File() *dso.File { return c.f }

// Bias returns what is to be added to addresses where m maps a part of the file, see [dso.File.Bias].
func (c *Code) Bias(m *proc.Mapping) (bias uint64, ok bool) { return c.f.Bias(m) }

// function returns the range of the function around an address; one that nobody describes ends where
// the next thing begins.
func (c *Code) function(addr uint64) span {
	i := sort.Search(len(c.ranges), func(i int) bool { return c.ranges[i].start > addr }) - 1
	for k := i; k >= 0 && i-k < 4; k-- { // one may lie within another
		if addr < c.ranges[k].end {
			return c.ranges[k]
		}
	}
	from, exact := slices.BinarySearch(c.starts, addr)
	if !exact {
		from--
	}
	s := span{addr, addr + maxFunction}
	if from >= 0 {
		s.start = c.starts[from]
	}
	if from+1 < len(c.starts) {
		s.end = min(s.end, c.starts[from+1])
	}
	return s
}

// text reads code; less than asked for at the end of its segment.
func (c *Code) text(from, to uint64) []byte {
	for i := range c.f.Progs {
		p := &c.f.Progs[i]
		if dso.IsCode(p) && from >= p.Vaddr && from-p.Vaddr < p.Filesz {
			b := make([]byte, min(to, p.Vaddr+p.Filesz)-from)
			n, _ := c.r.ReadAt(b, int64(p.Off+from-p.Vaddr))
			return b[:n]
		}
	}
	return nil
}

// Text reads the n bytes of code at an address; fewer if the file has no more there.
func (c *Code) Text(addr uint64, n int) []byte { return c.text(addr, addr+uint64(n)) }

// ErrInside says that an address is not where an instruction begins.
var ErrInside = errors.New("in the middle of an instruction")

// Instruction reports whether an instruction begins at an address, which is found out by decoding its
// function from the beginning. An error that matches ErrInside says where the instruction around it begins;
// others, that it can't be told.
func (c *Code) Instruction(addr uint64) error {
	if !c.executable(addr) {
		return fmt.Errorf("there is no code at %#x", addr)
	}
	// The nearest beginning: labels in hand-written code may follow data.
	i, exact := slices.BinarySearch(c.starts, addr)
	if exact {
		return nil
	}
	if i == 0 || addr-c.starts[i-1] > maxFunction {
		return fmt.Errorf("no function is known to begin before %#x", addr)
	}
	from := c.starts[i-1]
	code := c.text(from, addr+longest)
	for at := from; at <= addr; {
		if at == addr {
			return nil
		}
		in, ok := decode(code[min(at-from, uint64(len(code))):])
		switch {
		case !ok:
			return fmt.Errorf("the instruction at %#x, before it, is not known", at)
		case at+uint64(in.len) > addr:
			return fmt.Errorf("%w: it is one of %d bytes that begins %d before", ErrInside, in.len, addr-at)
		}
		at += uint64(in.len)
	}
	return nil
}

// Part reports whether a symbol is of a part of a function that the compiler has put
// elsewhere, with jumps to it: nothing returns from there.
func Part(symbol string) bool {
	i := strings.LastIndex(symbol, ".cold")
	return i > 0 && (i+len(".cold") == len(symbol) || symbol[i+len(".cold")] == '.')
}

// Begins reports whether a function begins at an address, where nobody has anything below the stack
// pointer. A part that the compiler has put elsewhere does not count, nor what may be one: only
// jumps lead there.
func (c *Code) Begins(addr uint64) bool {
	i := sort.Search(len(c.ranges), func(i int) bool { return c.ranges[i].start >= addr })
	if i == len(c.ranges) || c.ranges[i].start != addr {
		// Hand-written code that nobody describes.
		_, known := slices.BinarySearch(c.starts, addr)
		return known && c.function(addr).start == addr
	}
	if c.named[addr] {
		return true
	}
	if called, known := unwind.Called(c.f, addr); known && !called {
		return false
	}
	t, err := c.scanned()
	return err == nil && t.entered(addr)
}

// Returns reports why it can't be seen when the function at an address returns; nil: it can.
func (c *Code) Returns(addr uint64) error {
	switch {
	case c.twice[addr]:
		return ErrTwice
	case c.walked[addr]:
		return ErrWalked
	}
	if called, known := unwind.Called(c.f, addr); addr == c.entry || known && !called {
		return ErrNoReturn
	}
	return nil
}

// LooksAtCaller reports whether the function at an address does what it does by where it returns to, so that
// nobody may put another return address in place of its own.
func (c *Code) LooksAtCaller(addr uint64) bool { return c.caller[addr] }

// Reasons of Returns.
var (
	ErrTwice    = errors.New("the function returns more than once")
	ErrWalked   = errors.New("the function is a builtin of V8, which looks for it in return addresses")
	ErrNoReturn = errors.New("the function is not entered by a call, so nothing returns from it")
)

// scanned returns what leads where in the file.
func (c *Code) scanned() (*targets, error) {
	c.once.Do(func() { c.targets, c.err = c.scan() })
	return c.targets, c.err
}

// Prepare finds out what Replaceable asks of the whole file, which takes a while.
func (c *Code) Prepare() { _, _ = c.scanned() } // an error is Replaceable's

// Replaceable proves that a jump may take the place of the n bytes at an address, where instructions of a
// function begin that are executed elsewhere from now on. Otherwise it says why not.
func (c *Code) Replaceable(addr uint64, n int) error {
	if _, err := c.scanned(); err != nil {
		return err
	}
	end := addr + uint64(n)
	if i, _ := slices.BinarySearch(c.starts, addr+1); i < len(c.starts) && c.starts[i] < end {
		return fmt.Errorf("%w at +%#x", errBegins, c.starts[i]-addr)
	}
	for at := addr + 1; at < end; at++ {
		if c.targets.has(at) {
			return fmt.Errorf("%w to +%#x", errJumped, at-addr)
		}
	}
	if err := c.shortBranches(addr, end); err != nil {
		return err
	}
	return c.indirect(addr)
}

// Reasons; texts that are the same for all places, to be counted.
var (
	errBegins   = errors.New("something else begins")
	errJumped   = errors.New("something in the file leads")
	errShort    = errors.New("a short branch leads")
	errUnknown  = errors.New("what may be a short branch leads")
	errIndirect = errors.New("the function has a jump whose targets can't be read")
)

// Reasons are the kinds of refusals of [Code.Replaceable]: their errors match one each.
func Reasons() []error { return []error{errBegins, errJumped, errShort, errUnknown, errIndirect} }

// shortBranches looks for branches of a byte into what lies behind addr, up to end.
func (c *Code) shortBranches(addr, end uint64) error {
	from := addr + 1
	for i := range c.f.Progs {
		if p := &c.f.Progs[i]; dso.IsCode(p) && addr >= p.Vaddr && addr-p.Vaddr < p.Filesz {
			from = max(addr, p.Vaddr+shortReach+2) - shortReach - 2
		}
	}
	code := c.text(from, end+shortReach)
	for i := 0; i+1 < len(code); i++ {
		switch op := code[i]; {
		case op&0xf0 == 0x70, op == 0xeb, op&0xfc == 0xe0:
		default:
			continue
		}
		to := from + uint64(i) + 2 + uint64(int64(int8(code[i+1])))
		if to <= addr || to >= end {
			continue
		}
		at := from + uint64(i)
		switch is, known := c.instructionAt(at); {
		case is:
			return fmt.Errorf("%w from %+#x to +%#x", errShort, int64(at-addr), to-addr)
		case !known:
			return fmt.Errorf("%w from %+#x to +%#x", errUnknown, int64(at-addr), to-addr)
		}
	}
	return nil
}

// instructionAt reports whether an opcode is at an address: an instruction begins there, perhaps with
// prefixes before. known is false if that can't be told: something between does not decode, or
// something leads to where decoding finds no instruction.
func (c *Code) instructionAt(addr uint64) (is, known bool) {
	i, exact := slices.BinarySearch(c.starts, addr)
	if exact {
		return true, true
	}
	if i == 0 || addr-c.starts[i-1] > maxFunction {
		return false, false
	}
	from := c.starts[i-1]
	code := c.text(from, addr+longest)
	for at := from; at < addr; {
		in, ok := decode(code[min(at-from, uint64(len(code))):])
		if !ok {
			return false, false
		}
		next := at + uint64(in.len)
		for k := at + 1; k < next; k++ {
			if c.targets.has(k) {
				return false, false
			}
		}
		if addr < next { // it is within this one
			return in.branch && prefixes(code[at-from:addr-from]), true
		}
		at = next
	}
	return true, true
}

func prefixes(b []byte) bool {
	for _, c := range b {
		if !isPrefix(c) {
			return false
		}
	}
	return true
}

// Branches reports whether the function around an address has a branch to it that is no call: such as a
// loop that begins where the function does. Who counts calls there counts its rounds.
func (c *Code) Branches(addr uint64) bool {
	s := c.function(addr)
	code := c.text(s.start, min(s.end, s.start+maxFunction))
	for at := 0; at < len(code); {
		in, ok := decode(code[at:])
		if !ok {
			return false
		}
		at += in.len
		if in.branch && in.op != opCall && s.start+uint64(at)+uint64(in.rel) == addr {
			return true
		}
	}
	return false
}

// Padding reports whether the n bytes at an address are what compilers put between functions: NOPs, but none
// that somebody is to come by or to replace, and traps.
func Padding(code []byte, n int) bool {
	for n > 0 {
		if bytes.HasPrefix(code, endbr64) {
			return false
		}
		in, ok := decode(code)
		if !ok || in.op != 0xcc && in.op != 0x90 && in.op != twoByte|0x1f {
			return false
		}
		if in.op == 0x90 && slices.Contains(code[:in.len-1], 0xf3) || in.rex&1 != 0 && in.op == 0x90 { // pause; xchg %r8,%rax
			return false
		}
		code, n = code[in.len:], n-in.len
	}
	return true
}

// Files has what is known of files, by their identity. The zero value is ready. It is for one goroutine.
type Files struct {
	list map[proc.FileKey]*entry
}

type entry struct {
	code *Code
	err  error
}

// Of returns what is known of a file, which it reads if it is new, and then keeps a descriptor of.
func (l *Files) Of(f *os.File, key proc.FileKey) (*Code, error) {
	if e := l.list[key]; e != nil {
		return e.code, e.err
	}
	e := new(entry)
	if l.list == nil {
		l.list = make(map[proc.FileKey]*entry)
	}
	l.list[key] = e
	var own *os.File
	if own, e.err = duplicate(f); e.err != nil {
		return nil, e.err
	}
	if e.code, e.err = Read(own); e.err != nil {
		own.Close()
		return nil, e.err
	}
	return e.code, nil
}
