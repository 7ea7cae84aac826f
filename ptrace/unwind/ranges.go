package unwind

import (
	"cmp"
	"slices"

	"nvtrace/ptrace/dso"
)

// A Range is the code that one description is about: a function, or a part of one.
type Range struct {
	Start, End uint64 // addresses, as the file has them; End is behind the last byte
	// Pads are where exceptions that come through the code are caught.
	Pads []uint64
}

// maxPads bounds what is read of a function's table of landing pads, in bytes.
const maxPads = 256 << 10

// Ranges returns the code that a file describes for unwinding, ascending. What can't be read is left out.
func Ranges(f *dso.File) ([]Range, error) {
	t, err := readTable(f)
	if err != nil {
		return nil, err
	}
	list := make([]Range, 0, len(t.index)/8)
	for b := t.index; len(b) >= 8; b = b[8:] {
		if r, ok := t.code(t.at + uint64(int64(int32(le.Uint32(b[4:]))))); ok {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b Range) int { return cmp.Compare(a.Start, b.Start) })
	return list, nil
}

// code reads what a description is about.
func (t *table) code(fde uint64) (r Range, ok bool) {
	body, at, err := t.entry(fde)
	if err != nil || le.Uint32(body) == 0 {
		return r, false
	}
	c, err := t.common(at - uint64(le.Uint32(body)))
	if err != nil {
		return r, false
	}
	d := decoder{b: body[4:], at: at + 4, data: t.at}
	r.Start = d.pointer(c.encoding)
	r.End = r.Start + d.pointer(c.encoding&0xf)
	if c.sized && d.uleb() > 0 && c.pads != 0xff && c.pads&0x80 == 0 {
		was := len(d.b)
		if pads := d.pointer(c.pads); pads != 0 && was > 0 && pads != d.at-uint64(was-len(d.b)) { // not null
			r.Pads = t.pads(pads, r.Start)
		}
	}
	return r, !d.bad && r.End >= r.Start
}

// pads reads a table of landing pads (the Itanium C++ ABI's language-specific data area).
func (t *table) pads(addr, start uint64) (list []uint64) {
	b := make([]byte, 64)
	for {
		if t.f.ReadAt(b, addr) != nil {
			return list // at the end of the file, there is room for one of a few bytes
		}
		d := decoder{b: b, at: addr, data: t.at}
		if base := byte(d.uint(1)); base != 0xff {
			start = d.pointer(base)
		}
		if byte(d.uint(1)) != 0xff {
			d.uleb() // where the types are
		}
		encoding := byte(d.uint(1))
		size := d.uleb()
		head := d.at - addr
		if d.bad || size > maxPads {
			return list
		}
		if head+size > uint64(len(b)) {
			b = make([]byte, head+size)
			continue
		}
		d.b = d.b[:size]
		for len(d.b) > 0 && !d.bad {
			d.pointer(encoding)
			d.pointer(encoding)
			if pad := d.pointer(encoding); pad != 0 && !d.bad {
				list = append(list, start+pad)
			}
			d.uleb()
		}
		return list
	}
}

// Called reports whether code at an address is entered by a call, so that the address to return to is on
// top of the stack there; known is false where the file does not describe it. A part of a function
// that the compiler has put elsewhere, a program's first instruction and what a signal handler returns
// to are not.
func Called(f *dso.File, addr uint64) (called, known bool) {
	t, err := readTable(f)
	if err != nil {
		return false, false
	}
	r, err := t.find(addr)
	if err != nil {
		return false, false
	}
	pc := &r.regs[PC]
	return !r.signal && r.cfa.kind == ruleValue && r.cfa.reg == RSP && r.cfa.off == 8 && pc.kind == ruleOffset && pc.off == -8, true
}
