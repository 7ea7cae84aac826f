package nvattach

import (
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

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
