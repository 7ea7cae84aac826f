package jump

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"nvtrace/ptrace/dso"
)

// targets are the places in a file's code that something in the file leads to.
type targets struct {
	segments []segment
	tables   []uint64 // addresses of tables of distances that were read, ascending
}

// segment is a part of the code.
type segment struct {
	start, end uint64
	led        bits // something leads there
	entered    bits // something calls it, or takes its address
}

// bits has one for each byte.
type bits []uint64

func (b bits) has(n uint64) bool { return b[n/64]>>(n%64)&1 != 0 }

func (b bits) set(n uint64) {
	if p := &b[n/64]; atomic.LoadUint64(p)>>(n%64)&1 == 0 {
		atomic.OrUint64(p, 1<<(n%64))
	}
}

// in returns the segment that an address is in, nil if there is no code.
func (t *targets) in(addr uint64) *segment {
	for i := range t.segments {
		if s := &t.segments[i]; addr >= s.start && addr < s.end {
			return s
		}
	}
	return nil
}

// has reports whether something leads to an address.
func (t *targets) has(addr uint64) bool {
	s := t.in(addr)
	return s != nil && s.led.has(addr-s.start)
}

// entered reports whether something calls an address, or takes it.
func (t *targets) entered(addr uint64) bool {
	s := t.in(addr)
	return s != nil && s.entered.has(addr-s.start)
}

// lead notes that something leads to an address, and reports whether there is code.
func (t *targets) lead(addr uint64) bool {
	s := t.in(addr)
	if s != nil {
		s.led.set(addr - s.start)
	}
	return s != nil
}

// enter notes that something calls an address, or takes it.
func (t *targets) enter(addr uint64) {
	if s := t.in(addr); s != nil {
		s.led.set(addr - s.start)
		s.entered.set(addr - s.start)
	}
}

func (t *targets) isTable(addr uint64) bool {
	_, ok := slices.BinarySearch(t.tables, addr)
	return ok
}

// scan looks at all of the file's code, and at what its data says of addresses.
func (c *Code) scan() (*targets, error) {
	t := new(targets)
	size, parts := uint64(0), 0
	for i := range c.f.Progs {
		p := &c.f.Progs[i]
		if !dso.IsCode(p) {
			continue
		}
		parts++
		if size += p.Filesz; p.Filesz > maxText || size > maxText || parts > maxParts {
			return nil, fmt.Errorf("the file has %d bytes of code in %d parts, at most %d in %d are looked at", size, parts, maxText, maxParts)
		}
	}
	for i := range c.f.Progs {
		if p := &c.f.Progs[i]; dso.IsCode(p) {
			if n, err := c.r.ReadAt(make([]byte, 1), int64(p.Off+p.Filesz-1)); p.Filesz > 0 && n == 0 {
				return nil, fmt.Errorf("code at +%#x: %w", p.Off, err) // before memory is taken for it
			}
			t.segments = append(t.segments, segment{p.Vaddr, p.Vaddr + p.Filesz, make(bits, p.Filesz/64+1), make(bits, p.Filesz/64+1)})
		}
	}
	var refs []uint64
	for i := range c.f.Progs {
		if p := &c.f.Progs[i]; dso.IsCode(p) {
			list, err := c.scanCode(t, p)
			if err != nil {
				return nil, err
			}
			refs = append(refs, list...)
		}
	}
	c.scanRelocations(t)
	c.scanData(t)
	slices.Sort(refs)
	t.readTables(newBlocks(c.r), c.f, slices.Compact(refs))
	return t, nil
}

// piece is how much code one goroutine looks at in one go.
const piece = 1 << 20

// scanCode looks at a segment, and returns the addresses that its instructions take.
func (c *Code) scanCode(t *targets, p *elf.ProgHeader) (refs []uint64, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := atomic.Uint64{}
	for range min(runtime.GOMAXPROCS(0), int(p.Filesz/piece)+1) {
		wg.Go(func() {
			buf := make([]byte, piece+longest)
			var own []uint64
			var failed error
			for {
				off := next.Add(piece) - piece
				if off >= p.Filesz {
					break
				}
				// What begins here may go on in the next piece.
				n := int(min(p.Filesz-off, piece+longest))
				if k, err := c.r.ReadAt(buf[:n], int64(p.Off+off)); k < n {
					failed = fmt.Errorf("code at +%#x: %w", p.Off+off, err)
					break
				}
				own = t.scanPiece(buf[:n], p.Vaddr+off, c.fixed, own)
			}
			mu.Lock()
			defer mu.Unlock()
			refs = append(refs, own...)
			if failed != nil {
				err = failed
			}
		})
	}
	wg.Wait()
	return refs, err
}

// Bytes that what leads somewhere may begin with, the distance being 4 bytes long.
var leads = func() (t [256]bool) {
	for _, op := range []byte{opCall, opJump, 0x0f, 0xc7, opLea, endbr64[0]} {
		t[op] = true
	}
	return t
}()

// scanPiece marks what code at an address may lead to, wherever instructions begin. fixed: code may
// have addresses of code as numbers of 4 bytes.
func (t *targets) scanPiece(code []byte, at uint64, fixed bool, refs []uint64) []uint64 {
	le := binary.LittleEndian
	low, high := ^uint64(0), uint64(0)
	for i := range t.segments {
		low, high = min(low, t.segments[i].start), max(high, t.segments[i].end)
	}
	for i, op := range code {
		if fixed && i+4 <= len(code) {
			if v := uint64(le.Uint32(code[i:])); v >= low && v < high {
				t.enter(v)
			}
		}
		if !leads[op] {
			continue
		}
		d := i + 1 // where the distance is
		switch {
		case op == opCall, op == opJump:
		case op == endbr64[0]:
			if bytes.HasPrefix(code[i:], endbr64) {
				t.lead(at + uint64(i))
			}
			continue
		case i+1 == len(code):
			continue
		case op == 0x0f && code[i+1]&0xf0 == 0x80, op == 0xc7 && code[i+1] == 0xf8, op == opLea && code[i+1]&0xc7 == 5:
			d++
		default:
			continue
		}
		if d+4 > len(code) {
			continue
		}
		to := at + uint64(d) + 4 + uint64(int64(int32(le.Uint32(code[d:]))))
		switch {
		case to < low || to >= high:
		case op == opCall || op == opLea:
			t.enter(to)
		default:
			t.lead(to)
		}
		if op == opLea {
			refs = append(refs, to) // or a table
		}
	}
	return refs
}

// Relocations that put an address of the file into its data (the processor supplement of the ABI).
const (
	relocRelative  = 8
	relocIrelative = 37
	maxRelocations = 256 << 20 // bytes
)

// scanRelocations marks the addresses that the loader puts into data.
func (c *Code) scanRelocations(t *targets) {
	for _, s := range c.f.Relocations(maxRelocations) {
		b := s
		for ; len(b) >= 24; b = b[24:] {
			switch binary.LittleEndian.Uint32(b[8:]) {
			case relocRelative, relocIrelative:
				t.enter(binary.LittleEndian.Uint64(b[16:]))
			}
		}
	}
}

// scanData marks what words of data say that look like addresses of code: a file at fixed addresses needs
// no relocations, and packed ones leave the address in place. Code for GPUs has no such words.
func (c *Code) scanData(t *targets) {
	packed := c.f.PackedRelocations()
	if !c.fixed && !packed {
		return
	}
	buf := make([]byte, piece)
	for i := range c.f.Progs {
		p := &c.f.Progs[i]
		if p.Type != elf.PT_LOAD || packed && !c.fixed && p.Flags&elf.PF_W == 0 {
			continue
		}
		for from, end := p.Vaddr+(-p.Vaddr&7), p.Vaddr+p.Filesz; from < end; {
			if skip := c.fatbin(from); skip > 0 {
				from += skip
				continue
			}
			n, _ := c.r.ReadAt(buf[:min(end-from, uint64(len(buf)))], int64(from-p.Vaddr+p.Off))
			if n < 8 {
				break
			}
			for b := buf[:n]; len(b) >= 8; b = b[8:] {
				if v := binary.LittleEndian.Uint64(b); v-t.segments[0].start < maxText { // most are not
					t.enter(v)
				}
			}
			from += uint64(n) &^ 7
		}
	}
}

// fatbin returns how much of what begins at an address is a section of code for GPUs.
func (c *Code) fatbin(addr uint64) uint64 {
	for _, s := range c.f.Sections() {
		if strings.HasPrefix(s.Name, ".nv_fatbin") && addr >= s.Addr && addr-s.Addr < s.Size {
			return (s.Size - (addr - s.Addr) + 7) &^ 7
		}
	}
	return 0
}

// maxEntries bounds those of a table of distances.
const maxEntries = 1 << 16

// readTables reads tables of distances, of 4 bytes each and relative to the table, of which switches
// are made. Addresses that instructions take are where they may be, ascending. A table is taken to go on
// as long as its distances lead to code.
func (t *targets) readTables(r io.ReaderAt, f *dso.File, refs []uint64) {
	for i, addr := range refs {
		end := addr + 4*maxEntries
		if i+1 < len(refs) {
			end = min(end, refs[i+1]) // where something else is
		}
		off, ok := f.FileOffset(addr)
		var b [4]byte
		n := 0
		for at := addr; ok && at+4 <= end; at += 4 {
			if k, _ := r.ReadAt(b[:], int64(off+at-addr)); k < len(b) || !t.lead(addr+uint64(int64(int32(binary.LittleEndian.Uint32(b[:]))))) {
				break
			}
			n++
		}
		if n > 0 {
			t.tables = append(t.tables, addr)
		}
	}
}
