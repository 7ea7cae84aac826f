package unwind

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sort"

	"nvtrace/ptrace/dso"
)

// Numbers of registers, as DWARF has them for x86-64. PC is where a function returns to.
const (
	RAX = iota
	RDX
	RCX
	RBX
	RSI
	RDI
	RBP
	RSP
	R8
	R9
	R10
	R11
	R12
	R13
	R14
	R15
	PC

	numRegs
)

// Bounds of what is read of a table. Files of compilers stay far below.
const (
	maxFunctions = 4 << 20
	maxEntry     = 256 << 10 // bytes of a description
	maxStates    = 64        // remembered ones
)

// The ways in which a register of the caller is found.
const (
	ruleSame     = iota // it is as it was
	ruleUndef           // nobody knows; of PC: there is no caller
	ruleOffset          // in memory, off bytes from the frame's address
	ruleValue           // it is the frame's address and off
	ruleRegister        // in another register
	ruleExpr            // in memory, where an expression says
	ruleValExpr         // it is what an expression says
)

// A rule says where a register of the caller is.
type rule struct {
	kind uint8
	reg  uint8
	off  int64
	expr []byte
}

// A row says how to get from a function to its caller while the thread is at certain
// instructions of it.
type row struct {
	cfa    rule // ruleValue: of reg; or ruleValExpr
	regs   [numRegs]rule
	signal bool // it is a frame that the kernel has made for a signal handler
}

var (
	errTable = errors.New("malformed table for unwinding")
	le       = binary.LittleEndian
)

// A table has the rows of a file.
type table struct {
	f     *dso.File
	at    uint64 // address that numbers are relative to
	index []byte // where functions begin, and their descriptions, ascending; of 8 bytes each
	cies  map[uint64]*cie
}

// cie is what the descriptions of several functions have in common.
type cie struct {
	code     uint64
	data     int64
	ret      uint64
	encoding byte
	pads     byte // encoding of where the table of landing pads is; 0xff: there is none
	sized    bool // descriptions say how long what they have more is
	signal   bool
	program  []byte
}

// An Index is a table of functions: Count pairs of numbers of 4 bytes, ascending, of where each begins
// and where it is described. Addresses are as the file has them.
type Index struct {
	Base  uint64 // what they are relative to
	Addr  uint64 // where they are
	Data  []byte // where the file has none: what it lacks
	Count uint64
}

// IndexOf finds the table of functions of a file for x86-64 (.eh_frame_hdr), or makes it of what is said
// of each (.eh_frame) if there is none, as in programs that are linked statically.
func IndexOf(f *dso.File) (*Index, error) {
	const (
		head   = 12
		udata4 = 0x03
		sorted = 0x3b // relative to the table, 4 bytes, signed
	)
	if f.Machine != elf.EM_X86_64 {
		return nil, fmt.Errorf("stacks of %v can't be followed", f.Machine)
	}
	i := slices.IndexFunc(f.Progs, func(p elf.ProgHeader) bool { return p.Type == elf.PT_GNU_EH_FRAME })
	if i < 0 {
		return scan(f)
	}
	p := &f.Progs[i]
	var b [head]byte
	if err := f.ReadAt(b[:], p.Vaddr); err != nil {
		return nil, err
	}
	if b[0] != 1 || b[2] != udata4 || b[3] != sorted {
		return nil, fmt.Errorf("form % x: %w", b[:4], errTable)
	}
	n := uint64(le.Uint32(b[8:]))
	if n > maxFunctions || n*8 > p.Memsz {
		return nil, fmt.Errorf("%d functions: %w", n, errTable)
	}
	return &Index{Base: p.Vaddr, Addr: p.Vaddr + head, Count: n}, nil
}

// scan makes a table of the descriptions of functions, one by one.
func scan(f *dso.File) (*Index, error) {
	s := f.Section(".eh_frame")
	if s == nil {
		return nil, errors.New("no table for unwinding")
	}
	t := &table{f: f, at: s.Addr, cies: make(map[uint64]*cie)}
	type function struct{ start, fde int32 }
	var list []function
	for addr, end := s.Addr, s.Addr+s.Size; addr < end && len(list) < maxFunctions; {
		body, at, err := t.entry(addr)
		if err != nil {
			break // the terminator
		}
		if back := uint64(le.Uint32(body)); back != 0 {
			c, err := t.common(at - back)
			if err != nil {
				return nil, err
			}
			d := decoder{b: body[4:], at: at + 4, data: t.at}
			if start := d.pointer(c.encoding); !d.bad {
				list = append(list, function{int32(start - t.at), int32(addr - t.at)})
			}
		}
		addr = at + uint64(len(body))
	}
	slices.SortFunc(list, func(a, b function) int { return cmp.Compare(a.start, b.start) })
	x := &Index{Base: s.Addr, Count: uint64(len(list))}
	for _, y := range list {
		x.Data = le.AppendUint32(le.AppendUint32(x.Data, uint32(y.start)), uint32(y.fde))
	}
	return x, nil
}

// readTable reads the table of functions of a file, which must stay readable as long as the table is
// used.
func readTable(f *dso.File) (*table, error) {
	x, err := IndexOf(f)
	if err != nil {
		return nil, err
	}
	t := &table{f: f, at: x.Base, index: x.Data, cies: make(map[uint64]*cie)}
	if x.Data == nil {
		t.index = make([]byte, 8*x.Count)
		err = f.ReadAt(t.index, x.Addr)
	}
	return t, err
}

// find returns what holds at an address, as the file has it; an error if nothing is said about it.
func (t *table) find(addr uint64) (*row, error) {
	n := len(t.index) / 8
	start := func(i int) uint64 { return t.at + uint64(int64(int32(le.Uint32(t.index[8*i:])))) }
	i := sort.Search(n, func(i int) bool { return start(i) > addr }) - 1
	if i < 0 {
		return nil, fmt.Errorf("%#x is before the first function: %w", addr, errTable)
	}
	return t.row(t.at+uint64(int64(int32(le.Uint32(t.index[8*i+4:])))), addr)
}

// entry reads a description or what is common to some; id is the word behind its length, at.
func (t *table) entry(addr uint64) (body []byte, at uint64, err error) {
	var b [12]byte
	if err := t.f.ReadAt(b[:4], addr); err != nil {
		return nil, 0, err
	}
	size, at := uint64(le.Uint32(b[:])), addr+4
	if size == 0xffffffff {
		if err := t.f.ReadAt(b[4:], addr+4); err != nil {
			return nil, 0, err
		}
		size, at = le.Uint64(b[4:]), addr+12
	}
	if size < 4 || size > maxEntry {
		return nil, 0, fmt.Errorf("%d bytes at %#x: %w", size, addr, errTable)
	}
	body = make([]byte, size)
	return body, at, t.f.ReadAt(body, at)
}

// row runs the description of a function up to an address.
func (t *table) row(fde, addr uint64) (*row, error) {
	body, at, err := t.entry(fde)
	if err != nil {
		return nil, err
	}
	back := uint64(le.Uint32(body))
	if back == 0 {
		return nil, fmt.Errorf("%#x is no function's: %w", fde, errTable)
	}
	c, err := t.common(at - back)
	if err != nil {
		return nil, err
	}
	d := decoder{b: body[4:], at: at + 4, data: t.at}
	start := d.pointer(c.encoding)
	size := d.pointer(c.encoding & 0xf)
	if c.sized {
		d.skip(d.uleb())
	}
	if d.bad || addr < start || addr-start >= size {
		return nil, fmt.Errorf("%#x has no description: %w", addr, errTable)
	}
	s := state{cie: c, at: start, wanted: addr}
	s.row.signal = c.signal
	if !s.run(&decoder{b: c.program, data: t.at}) {
		return nil, errTable
	}
	s.initial, s.at = s.row, start
	s.started = true
	if !s.run(&d) {
		return nil, errTable
	}
	if c.ret != PC { // the return address is in another column than usual
		return nil, errTable
	}
	return &s.row, nil
}

// common reads what descriptions have in common.
func (t *table) common(addr uint64) (*cie, error) {
	if c := t.cies[addr]; c != nil {
		return c, nil
	}
	body, at, err := t.entry(addr)
	if err != nil {
		return nil, err
	}
	d := decoder{b: body, at: at, data: t.at}
	id, version := d.uint(4), d.uint(1)
	var text []byte
	for c := byte(d.uint(1)); c != 0 && !d.bad; c = byte(d.uint(1)) {
		text = append(text, c)
	}
	if id != 0 || version != 1 && version != 3 {
		return nil, fmt.Errorf("version %d: %w", version, errTable)
	}
	c := &cie{code: d.uleb(), data: d.sleb(), pads: 0xff}
	if version == 1 {
		c.ret = d.uint(1)
	} else {
		c.ret = d.uleb()
	}
	if len(text) > 0 && text[0] == 'z' {
		c.sized = true
		size := d.uleb()
		if size > uint64(len(d.b)) {
			return nil, errTable
		}
		program := decoder{b: d.b[size:], at: d.at + size, data: t.at}
		for _, x := range text[1:] {
			switch x {
			case 'R':
				c.encoding = byte(d.uint(1))
			case 'P':
				d.pointer(byte(d.uint(1)))
			case 'L':
				c.pads = byte(d.uint(1))
			case 'S':
				c.signal = true
			}
		}
		if d.bad {
			return nil, errTable
		}
		d = program
	} else if len(text) > 0 {
		return nil, fmt.Errorf("kind %q: %w", text, errTable)
	}
	c.program = d.b
	if d.bad {
		return nil, errTable
	}
	if len(t.cies) > 1<<12 {
		clear(t.cies)
	}
	t.cies[addr] = c
	return c, nil
}

// state is that of the program which makes rows.
type state struct {
	*cie
	row, initial row
	started      bool // behind what is common
	at, wanted   uint64
	saved        []row
}

// run executes instructions (DWARF 5, 6.4.2) up to the row of the wanted address. It returns whether
// all of them were known.
func (s *state) run(d *decoder) bool {
	set := func(reg uint64, r rule) {
		if reg < numRegs { // others, of vectors, no caller is found by
			s.row.regs[reg] = r
		}
	}
	advance := func(n uint64) { s.at += n * s.code }
	initial := func(reg uint64) {
		if reg < numRegs {
			s.row.regs[reg] = s.initial.regs[reg]
		}
	}
	cfa := func(reg uint64, off int64) {
		if reg >= PC {
			d.bad = true
		}
		s.row.cfa = rule{kind: ruleValue, reg: uint8(reg), off: off}
	}
	for len(d.b) > 0 && !d.bad {
		op := byte(d.uint(1))
		low := uint64(op & 0x3f)
		switch op >> 6 {
		case 1:
			advance(low)
		case 2:
			set(low, rule{kind: ruleOffset, off: int64(d.uleb()) * s.data})
			continue
		case 3:
			initial(low)
			continue
		default:
			switch op {
			case 0x00: // nop
			case 0x01:
				s.at = d.pointer(s.encoding)
			case 0x02:
				advance(d.uint(1))
			case 0x03:
				advance(d.uint(2))
			case 0x04:
				advance(d.uint(4))
			case 0x05:
				reg := d.uleb()
				set(reg, rule{kind: ruleOffset, off: int64(d.uleb()) * s.data})
			case 0x06:
				initial(d.uleb())
			case 0x07:
				set(d.uleb(), rule{kind: ruleUndef})
			case 0x08:
				set(d.uleb(), rule{kind: ruleSame})
			case 0x09:
				reg := d.uleb()
				from := d.uleb()
				if from >= numRegs {
					return false
				}
				set(reg, rule{kind: ruleRegister, reg: uint8(from)})
			case 0x0a:
				if len(s.saved) == maxStates {
					return false
				}
				s.saved = append(s.saved, s.row)
			case 0x0b:
				if len(s.saved) == 0 {
					return false
				}
				s.row, s.saved = s.saved[len(s.saved)-1], s.saved[:len(s.saved)-1]
			case 0x0c:
				reg := d.uleb()
				cfa(reg, int64(d.uleb()))
			case 0x0d:
				cfa(d.uleb(), s.row.cfa.off)
			case 0x0e:
				s.row.cfa.off = int64(d.uleb())
			case 0x0f:
				s.row.cfa = rule{kind: ruleValExpr, expr: d.block()}
			case 0x10:
				reg := d.uleb()
				set(reg, rule{kind: ruleExpr, expr: d.block()})
			case 0x11:
				reg := d.uleb()
				set(reg, rule{kind: ruleOffset, off: d.sleb() * s.data})
			case 0x12:
				reg := d.uleb()
				cfa(reg, d.sleb()*s.data)
			case 0x13:
				s.row.cfa.off = d.sleb() * s.data
			case 0x14:
				reg := d.uleb()
				set(reg, rule{kind: ruleValue, off: int64(d.uleb()) * s.data})
			case 0x15:
				reg := d.uleb()
				set(reg, rule{kind: ruleValue, off: d.sleb() * s.data})
			case 0x16:
				reg := d.uleb()
				set(reg, rule{kind: ruleValExpr, expr: d.block()})
			case 0x2e: // GNU_args_size
				d.uleb()
			case 0x2f: // GNU_negative_offset_extended
				reg := d.uleb()
				set(reg, rule{kind: ruleOffset, off: -int64(d.uleb()) * s.data})
			default:
				return false
			}
			if op == 0 || op > 4 {
				continue
			}
		}
		if s.started && s.at > s.wanted { // what follows holds further on
			return !d.bad
		}
	}
	return !d.bad
}

// decoder reads numbers; bad is set when there is no more to read, or what is not known.
type decoder struct {
	b    []byte
	at   uint64 // address of b
	data uint64 // of the table, to which numbers may be relative
	bad  bool
}

func (d *decoder) skip(n uint64) {
	if n > uint64(len(d.b)) {
		d.bad = true
		n = uint64(len(d.b))
	}
	d.b, d.at = d.b[n:], d.at+n
}

func (d *decoder) uint(n int) uint64 {
	var b [8]byte
	if copy(b[:n], d.b) < n {
		d.bad = true
	}
	d.skip(uint64(n))
	return le.Uint64(b[:])
}

func (d *decoder) leb() (v uint64, bits uint, negative bool) {
	for {
		c := d.uint(1)
		if bits < 64 {
			v |= c & 0x7f << bits
		}
		bits += 7
		if c&0x80 == 0 || d.bad {
			return v, bits, c&0x40 != 0
		}
	}
}

func (d *decoder) uleb() uint64 {
	v, _, _ := d.leb()
	return v
}

func (d *decoder) sleb() int64 {
	v, bits, negative := d.leb()
	if negative && bits < 64 {
		v |= ^uint64(0) << bits
	}
	return int64(v)
}

func (d *decoder) block() []byte {
	n := d.uleb()
	b := d.b[:min(n, uint64(len(d.b)))]
	d.skip(n)
	return b
}

// pointer reads one of an encoding (the Linux Standard Base's DW_EH_PE_).
func (d *decoder) pointer(encoding byte) uint64 {
	if encoding == 0xff { // omitted
		return 0
	}
	at, v := d.at, uint64(0)
	switch encoding & 0xf {
	case 0, 4, 0xc:
		v = d.uint(8)
	case 1:
		v = d.uleb()
	case 2:
		v = d.uint(2)
	case 3:
		v = d.uint(4)
	case 9:
		v = uint64(d.sleb())
	case 0xa:
		v = uint64(int64(int16(d.uint(2))))
	case 0xb:
		v = uint64(int64(int32(d.uint(4))))
	default:
		d.bad = true
	}
	switch encoding & 0x70 {
	case 0:
	case 0x10:
		v += at
	case 0x30:
		v += d.data
	default:
		d.bad = true
	}
	return v // of one with 0x80, which no function's beginning has, this is where it is
}
