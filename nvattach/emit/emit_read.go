package emit

import (
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// Within writes code that runs body if size bytes from an address on are memory that there is,
// with a register that holds how many bytes there are from it on, and leaves its registers as they
// are otherwise. The memory stays until body is over.
func (c *Code) Within(addr string, size uint64, body func(there string)) {
	base := c.M.Base + c.M.Readable
	again, found, search, left, searched, out := c.Label(), c.Label(), c.Label(), c.Label(), c.Label(), c.Label()
	mine, now, then, p := c.Reg(ptx.B64), c.Reg(ptx.B64), c.Reg(ptx.B64), c.Reg(ptx.Pred)
	table, at, there := c.Reg(ptx.B64), c.Reg(ptx.B64), c.Reg(ptx.B64)
	lo, hi, mid, tries := c.Reg(ptx.B32), c.Reg(ptx.B32), c.Reg(ptx.B32), c.Reg(ptx.B32)
	load := c.Order(".relaxed.gpu")
	c.F("mov.u64 %s, %#x;", table, base)
	line := c.PerSM(base+mapmem.ReadersOff, object.LineBytes)
	c.F("mov.u32 %s, 0;", tries)
	c.F(".pragma \"nounroll\";")
	c.At(again)
	c.F("ld%s.global.u64 %s, [%s];", load, now, table)
	c.F("and.b64 %s, %s, 1;", now, now)
	c.F("mad.lo.s64 %s, %s, 8, %s;", mine, now, line)
	c.F("red%s.global.add.u64 [%s], 1;", c.atomic(".relaxed.gpu"), mine)
	if c.Weak {
		c.F("membar.gl;")
	} else {
		c.F("fence.sc.gpu;")
	}
	c.F("ld%s.global.u64 %s, [%s];", load, then, table)
	c.F("and.b64 %s, %s, 1;", then, then)
	c.F("setp.eq.u64 %s, %s, %s;", p, now, then)
	c.F("@%s bra %s;", p, found)
	c.F("red%s.global.add.u64 [%s], -1;", c.atomic(".relaxed.gpu"), mine)
	c.F("add.u32 %s, %s, 1;", tries, tries)
	c.F("setp.lt.u32 %s, %s, 1000;", p, tries) // the host does not write that often
	c.F("@%s bra %s;", p, again)
	c.F("bra %s;", out)
	c.At(found)
	c.F("mad.lo.s64 %s, %s, %d, %s;", table, now, mapmem.ReadableCopy, table)
	c.F("add.s64 %s, %s, %d;", table, table, mapmem.ReadableCopies)
	c.F("ld%s.global.u32 %s, [%s];", load, hi, table)
	c.F("min.u32 %s, %s, %d;", hi, hi, mapmem.MostReadable)
	c.F("add.s64 %s, %s, %d;", table, table, mapmem.ReadableHead)
	// The first range whose base is higher; the one before it may have the address.
	c.F("mov.u32 %s, 0;", lo)
	c.F(".pragma \"nounroll\";")
	c.At(search)
	c.F("setp.ge.u32 %s, %s, %s;", p, lo, hi)
	c.F("@%s bra %s;", p, searched)
	c.F("add.u32 %s, %s, %s;", mid, lo, hi)
	c.F("shr.u32 %s, %s, 1;", mid, mid)
	c.F("mad.wide.u32 %s, %s, 16, %s;", at, mid, table)
	c.F("ld%s.global.u64 %s, [%s];", load, there, at)
	c.F("setp.gt.u64 %s, %s, %s;", p, there, addr)
	c.F("@%s mov.u32 %s, %s;", p, hi, mid)
	c.F("@!%s add.u32 %s, %s, 1;", p, lo, mid)
	c.F("bra %s;", search)
	c.At(searched)
	c.F("setp.eq.u32 %s, %s, 0;", p, lo)
	c.F("@%s bra %s;", p, left)
	c.F("sub.u32 %s, %s, 1;", lo, lo)
	c.F("mad.wide.u32 %s, %s, 16, %s;", at, lo, table)
	c.F("ld%s.global.u64 %s, [%s+8];", load, there, at)
	c.F("setp.le.u64 %s, %s, %s;", p, there, addr)
	c.F("@%s bra %s;", p, left)
	c.F("sub.s64 %s, %s, %s;", there, there, addr)
	c.F("setp.lt.u64 %s, %s, %d;", p, there, size)
	c.F("@%s bra %s;", p, left)
	body(there)
	c.At(left)
	if c.Weak {
		c.F("membar.gl;")
	}
	c.F("red%s.global.add.u64 [%s], -1;", c.atomic(".release.gpu"), mine)
	c.At(out)
}

// Words declares registers for n bytes, all 0.
func (c *Code) Words(n int) []string {
	var list []string
	for range (n + 7) / 8 {
		list = append(list, c.Result(0))
	}
	return list
}

// Gather loads n bytes into words, in pieces of at most size bytes.
func (c *Code) Gather(words []string, addr string, n, size int) {
	load := c.Order(".relaxed.gpu")
	for off := 0; off < n; {
		piece := min(size, PieceOf(uint64(off), uint64(n-off)))
		w, word := c.Reg(ptx.B64), words[off/8]
		c.F("ld%s.global.u%d %s, [%s+%d];", load, 8*piece, w, addr, off)
		if off%8 > 0 {
			c.F("shl.b64 %s, %s, %d;", w, w, 8*(off%8))
		}
		c.F("or.b64 %s, %s, %s;", word, word, w)
		off += piece
	}
}

// KeepWords stores n bytes of words to where argument 0 points.
func (c *Code) KeepWords(to *bpf.Value, words []string, n int) {
	for off := 0; off < n; {
		piece, word := PieceOf(uint64(off), uint64(n-off)), words[off/8]
		if off%8 > 0 {
			word = c.Reg(ptx.B64)
			c.F("shr.u64 %s, %s, %d;", word, words[off/8], 8*(off%8))
		}
		to.Store(off, piece, ptx.TypedReg(ptx.B64, word))
		off += piece
	}
}
