package nvattach

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"nvtrace/nvattach/helper"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// Programs in kernels read the GPU's memory by bpf_probe_read and its like, at any address
// that they like, and a load where nothing is ends the context. So the memory of maps has a
// table of what there is, which the host keeps. It has two copies, of which a word says which one
// counts, and for each copy how many threads are reading by it:
//
//	0                    u64 number of the copy that counts, 0 or 1
//	128                  copies [2]{u64 entries; [mostReadable]{u64 base, end}}, ascending by base
//	readersOff           [SMs][128]byte: u64 threads that read by copy 0, by copy 1
//
// A thread adds itself to the readers of the copy that counts, and looks again: if another one
// counts by then, it takes itself away and begins anew. Then it searches the copy, reads, and takes
// itself away. The host writes the copy that does not count, which nobody reads by, has it
// count, and waits until nobody reads by the other one. When that is so, no thread will read, nor is
// reading, what is not in the new one, and the memory may go. The fence between the
// addition and the look makes one of the two sides see the other.

// A Range is memory from Base on, up to End.
type Range struct{ Base, End uint64 }

// ErrReaders says that threads still read memory by what [Maps.SetReadable] said before.
var ErrReaders = errors.New("memory is being read")

// mostReadable is how many ranges there can be. Others are not read.
const mostReadable = 8192

// Offsets in that memory.
const (
	readableCopies = lineBytes
	readableCopy   = lineBytes + 16*mostReadable
	readersOff     = readableCopies + 2*readableCopy
	readableHead   = lineBytes // of a copy, in front of its entries
)

// Most bytes that one call reads: there is code for each.
const mostRead = 128

// The helpers that read memory; and those that read up to a zero.
var (
	readHelpers    = []int32{helper.ProbeRead, helper.ReadUser, helper.ReadKernel}
	readStrHelpers = []int32{helper.ProbeReadStr, helper.ReadUserStr, helper.ReadKernelStr}
)

// atMostRead refuses calls that read too much.
func atMostRead(c *bpf.CallInfo) error {
	if n := c.Consts[1].Value; n > mostRead {
		return fmt.Errorf("%d bytes; in kernels at most %d are read at once", n, mostRead)
	}
	return nil
}

// ReadsMemory reports whether a program in kernels reads memory at addresses of its own, so that
// [Maps.SetReadable] is to say what there is.
func (p *Plan) ReadsMemory() bool {
	return slices.ContainsFunc(p.Programs, func(q *PlannedProgram) bool {
		return slices.ContainsFunc(q.Report.Helpers, func(n int32) bool { return slices.Contains(readHelpers, n) || slices.Contains(readStrHelpers, n) })
	})
}

// layReadable gives the table its place.
func (m *Maps) layReadable() {
	m.readable = m.size
	m.size = roundUp(m.size+readersOff+uint64(m.SMs)*lineBytes, arenaAlign)
}

// SetReadable says what memory there is, in any order; no range may reach into another. Kernels
// may run. What is no longer in it may go when [Maps.Readers] is 0 afterwards; until then another
// call returns an error with ErrReaders in its chain.
func (m *Maps) SetReadable(mem Memory, list []Range) error {
	if m.readable == 0 {
		return nil
	}
	list = slices.SortedFunc(slices.Values(list), func(a, b Range) int { return cmp.Compare(a.Base, b.Base) })
	list = list[:min(len(list), mostReadable)]
	at := m.base + m.readable
	now, n, err := m.readers(mem)
	if err != nil {
		return err
	}
	if n > 0 {
		return fmt.Errorf("table of memory: %d threads read by the copy that is to be written: %w", n, ErrReaders)
	}
	next := now ^ 1
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(list)))
	b = append(b, make([]byte, readableHead-len(b))...)
	for _, r := range list {
		b = binary.LittleEndian.AppendUint64(b, r.Base)
		b = binary.LittleEndian.AppendUint64(b, r.End)
	}
	if err := mem.WriteMem(at+readableCopies+next*readableCopy, b); err != nil {
		return fmt.Errorf("table of memory: %w", err)
	}
	if err := mem.WriteMem(at, binary.LittleEndian.AppendUint64(nil, next)); err != nil {
		return fmt.Errorf("table of memory: %w", err)
	}
	return nil
}

// Readers returns how many threads may still read what was there before the last
// [Maps.SetReadable].
func (m *Maps) Readers(mem Memory) (uint64, error) {
	if m.readable == 0 {
		return 0, nil
	}
	_, n, err := m.readers(mem)
	return n, err
}

// readers returns which copy counts, and how many threads read by the other one.
func (m *Maps) readers(mem Memory) (now, n uint64, err error) {
	var word [8]byte
	if err := mem.ReadMem(m.base+m.readable, word[:]); err != nil {
		return 0, 0, fmt.Errorf("table of memory: %w", err)
	}
	now = le64(word[:]) & 1
	b := make([]byte, uint64(m.SMs)*lineBytes)
	if err := mem.ReadMem(m.base+m.readable+readersOff, b); err != nil {
		return 0, 0, fmt.Errorf("table of memory: %w", err)
	}
	for sm := range m.SMs {
		n += le64(b[sm*lineBytes+8*int(now^1):])
	}
	return now, n, nil
}

// within writes code that runs body if size bytes from an address on are memory that there is,
// with a register that holds how many bytes there are from it on, and leaves its registers as they
// are otherwise. The memory stays until body is over.
func (c *code) within(addr string, size uint64, body func(there string)) {
	base := c.m.base + c.m.readable
	again, found, search, left, searched, out := c.label(), c.label(), c.label(), c.label(), c.label(), c.label()
	mine, now, then, p := c.reg(ptx.B64), c.reg(ptx.B64), c.reg(ptx.B64), c.reg(ptx.Pred)
	table, at, there := c.reg(ptx.B64), c.reg(ptx.B64), c.reg(ptx.B64)
	lo, hi, mid, tries := c.reg(ptx.B32), c.reg(ptx.B32), c.reg(ptx.B32), c.reg(ptx.B32)
	load := c.order(".relaxed.gpu")
	c.f("mov.u64 %s, %#x;", table, base)
	line := c.perSM(base+readersOff, lineBytes)
	c.f("mov.u32 %s, 0;", tries)
	c.f(".pragma \"nounroll\";")
	c.at(again)
	c.f("ld%s.global.u64 %s, [%s];", load, now, table)
	c.f("and.b64 %s, %s, 1;", now, now)
	c.f("mad.lo.s64 %s, %s, 8, %s;", mine, now, line)
	c.f("red%s.global.add.u64 [%s], 1;", c.atomic(".relaxed.gpu"), mine)
	if c.weak {
		c.f("membar.gl;")
	} else {
		c.f("fence.sc.gpu;")
	}
	c.f("ld%s.global.u64 %s, [%s];", load, then, table)
	c.f("and.b64 %s, %s, 1;", then, then)
	c.f("setp.eq.u64 %s, %s, %s;", p, now, then)
	c.f("@%s bra %s;", p, found)
	c.f("red%s.global.add.u64 [%s], -1;", c.atomic(".relaxed.gpu"), mine)
	c.f("add.u32 %s, %s, 1;", tries, tries)
	c.f("setp.lt.u32 %s, %s, 1000;", p, tries) // the host does not write that often
	c.f("@%s bra %s;", p, again)
	c.f("bra %s;", out)
	c.at(found)
	c.f("mad.lo.s64 %s, %s, %d, %s;", table, now, readableCopy, table)
	c.f("add.s64 %s, %s, %d;", table, table, readableCopies)
	c.f("ld%s.global.u32 %s, [%s];", load, hi, table)
	c.f("min.u32 %s, %s, %d;", hi, hi, mostReadable)
	c.f("add.s64 %s, %s, %d;", table, table, readableHead)
	// The first range whose base is higher; the one before it may have the address.
	c.f("mov.u32 %s, 0;", lo)
	c.f(".pragma \"nounroll\";")
	c.at(search)
	c.f("setp.ge.u32 %s, %s, %s;", p, lo, hi)
	c.f("@%s bra %s;", p, searched)
	c.f("add.u32 %s, %s, %s;", mid, lo, hi)
	c.f("shr.u32 %s, %s, 1;", mid, mid)
	c.f("mad.wide.u32 %s, %s, 16, %s;", at, mid, table)
	c.f("ld%s.global.u64 %s, [%s];", load, there, at)
	c.f("setp.gt.u64 %s, %s, %s;", p, there, addr)
	c.f("@%s mov.u32 %s, %s;", p, hi, mid)
	c.f("@!%s add.u32 %s, %s, 1;", p, lo, mid)
	c.f("bra %s;", search)
	c.at(searched)
	c.f("setp.eq.u32 %s, %s, 0;", p, lo)
	c.f("@%s bra %s;", p, left)
	c.f("sub.u32 %s, %s, 1;", lo, lo)
	c.f("mad.wide.u32 %s, %s, 16, %s;", at, lo, table)
	c.f("ld%s.global.u64 %s, [%s+8];", load, there, at)
	c.f("setp.le.u64 %s, %s, %s;", p, there, addr)
	c.f("@%s bra %s;", p, left)
	c.f("sub.s64 %s, %s, %s;", there, there, addr)
	c.f("setp.lt.u64 %s, %s, %d;", p, there, size)
	c.f("@%s bra %s;", p, left)
	body(there)
	c.at(left)
	if c.weak {
		c.f("membar.gl;")
	}
	c.f("red%s.global.add.u64 [%s], -1;", c.atomic(".release.gpu"), mine)
	c.at(out)
}

// words declares registers for n bytes, all 0.
func (c *code) words(n int) []string {
	var list []string
	for range (n + 7) / 8 {
		list = append(list, c.result(0))
	}
	return list
}

// gather loads n bytes into words, in pieces of at most size bytes.
func (c *code) gather(words []string, addr string, n, size int) {
	load := c.order(".relaxed.gpu")
	for off := 0; off < n; {
		piece := min(size, pieceOf(uint64(off), uint64(n-off)))
		w, word := c.reg(ptx.B64), words[off/8]
		c.f("ld%s.global.u%d %s, [%s+%d];", load, 8*piece, w, addr, off)
		if off%8 > 0 {
			c.f("shl.b64 %s, %s, %d;", w, w, 8*(off%8))
		}
		c.f("or.b64 %s, %s, %s;", word, word, w)
		off += piece
	}
}

// keepWords stores n bytes of words to where argument 0 points.
func (c *code) keepWords(to *bpf.Value, words []string, n int) {
	for off := 0; off < n; {
		piece, word := pieceOf(uint64(off), uint64(n-off)), words[off/8]
		if off%8 > 0 {
			word = c.reg(ptx.B64)
			c.f("shr.u64 %s, %s, %d;", word, words[off/8], 8*(off%8))
		}
		to.Store(off, piece, ptx.TypedReg(ptx.B64, word))
		off += piece
	}
}

// probeRead is bpf_probe_read: memory that is not there is -EFAULT, and reads as zeros.
func (u *unit) probeRead(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k := u.code(g)
	size, _ := c.Args[1].Const()
	if size == 0 {
		return ptx.Imm(0), nil
	}
	n := int(size)
	addr, words, r := k.held(c.Args[2].Reg().String()), k.words(n), k.result(errFault)
	k.within(addr, size, func(string) {
		piece := pieceOf(0, size)
		k.f("mov.s64 %s, 0;", r)
		if piece == 1 {
			k.gather(words, addr, n, 1)
			return
		}
		odd, p := k.reg(ptx.B64), k.reg(ptx.Pred)
		apart, end := k.label(), k.label()
		k.f("and.b64 %s, %s, %d;", odd, addr, piece-1)
		k.f("setp.ne.u64 %s, %s, 0;", p, odd)
		k.f("@%s bra %s;", p, apart)
		k.gather(words, addr, n, piece)
		k.f("bra %s;", end)
		k.at(apart)
		k.gather(words, addr, n, 1)
		k.at(end)
	})
	k.keepWords(&c.Args[0], words, n)
	return register64(r), nil
}

// probeReadStr is bpf_probe_read_str: bytes up to a zero, which is counted, or as many as there
// is room for; -EFAULT where the memory ends before.
func (u *unit) probeReadStr(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k := u.code(g)
	size, _ := c.Args[1].Const()
	if size == 0 {
		return ptx.Imm(0), nil
	}
	n := int(size)
	addr, words, r := k.held(c.Args[2].Reg().String()), k.words(n), k.result(errFault)
	k.within(addr, 1, func(there string) {
		w, p, done := k.reg(ptx.B64), k.reg(ptx.Pred), k.label()
		for i := range n - 1 {
			if i > 0 { // the first byte is there
				k.f("setp.le.u64 %s, %s, %d;", p, there, i)
				k.f("@%s bra %s;", p, done)
			}
			k.f("ld%s.global.u8 %s, [%s+%d];", k.order(".relaxed.gpu"), w, addr, i)
			k.f("setp.eq.u64 %s, %s, 0;", p, w)
			k.f("@%s mov.s64 %s, %d;", p, r, i+1)
			k.f("@%s bra %s;", p, done)
			if i%8 > 0 {
				k.f("shl.b64 %s, %s, %d;", w, w, 8*(i%8))
			}
			k.f("or.b64 %s, %s, %s;", words[i/8], words[i/8], w)
		}
		k.f("mov.s64 %s, %d;", r, n)
		k.at(done)
	})
	// Of a text that is not whole nothing is shown.
	p := k.reg(ptx.Pred)
	k.f("setp.lt.s64 %s, %s, 0;", p, r)
	for _, w := range words {
		k.f("@%s mov.b64 %s, 0;", p, w)
	}
	k.keepWords(&c.Args[0], words, n)
	return register64(r), nil
}
