package nvattach

import "nvtrace/ptx"

// reserve gets room for a record of up to size bytes in a ring buffer. It writes
// code that goes to full when there is none, and returns a 64-bit register with the
// record's address and one with its number in units.
func (c *code) reserve(x *Map, size uint64, full string) (record, number string) {
	n := unitsFor(size)
	part := c.perSM(x.base, x.copyBytes)
	k, read, q := c.reg(ptx.B64), c.reg(ptx.B64), c.reg(ptx.Pred)
	room := c.label()
	c.f("atom%s.global.add.u64 %s, [%s], %d;", c.atomic(".relaxed.gpu"), k, part, n)
	// The host writes this word: a cached copy would be stale.
	c.f("ld%s.global.u64 %s, [%s+%d];", c.order(".relaxed.sys"), read, part, ringRead)
	c.f("sub.s64 %s, %s, %s;", read, k, read)
	c.f("setp.le.s64 %s, %s, %d;", q, read, int64(x.ring.units)-int64(n))
	c.f("@%s bra %s;", q, room)
	c.f("red.global.add.u64 [%s+%d], 1;", part, ringDropped)
	c.f("red.global.add.u64 [%s+%d], %d;", part, ringDroppedUnits, n)
	c.f("bra %s;", full)
	c.at(room)
	at := c.reg(ptx.B64)
	c.f("and.b64 %s, %s, %d;", at, k, x.ring.units-1)
	c.f("mad.lo.s64 %s, %s, %d, %s;", at, at, unitBytes, part)
	c.f("add.s64 %s, %s, %d;", at, at, ringHead)
	return at, k
}

// publish makes a record complete. size is a number or a 32-bit register.
func (c *code) publish(record, number, size string) {
	k := c.reg(ptx.B64)
	c.f("st.global.u32 [%s+8], %s;", record, size)
	c.f("add.s64 %s, %s, %d;", k, number, int64(c.m.cookie))
	c.fence(nil)
	c.f("st%s.global.u64 [%s], %s;", c.order(".relaxed.gpu"), record, k)
}

// output writes a record of the bytes of data, at most size, and returns a register
// with the result: 0, or refused when there is no room. length is a number or
// a 32-bit register: the bytes to show, at most size.
func (c *code) output(x *Map, data bytesArg, size uint64, length string, refused int64) string {
	r := c.result(refused)
	full := c.label()
	record, k := c.reserve(x, size, full)
	c.copyTo(".global", record, recordHead, data, size)
	c.publish(record, k, length)
	c.f("mov.s64 %s, 0;", r)
	c.at(full)
	return r
}

// ringReserve returns a register with the address of a record's data, 0 if there
// is no room. The data begins as zeros only where the ring was not used before.
func (c *code) ringReserve(x *Map, size uint64) string {
	a, k := c.result(0), c.reg(ptx.B64)
	full := c.label()
	record, number := c.reserve(x, size, full)
	c.f("st.global.u32 [%s+8], %d;", record, size)
	// Submitting needs the number that makes the record complete.
	c.f("add.s64 %s, %s, %d;", k, number, int64(c.m.cookie))
	c.f("not.b64 %s, %s;", k, k)
	c.f("st.global.u64 [%s], %s;", record, k)
	c.f("add.s64 %s, %s, %d;", a, record, recordHead)
	c.at(full)
	return a
}

// ringSubmit completes the record whose data is at a; with discard set it will not
// be shown.
func (c *code) ringSubmit(a string, discard bool) {
	k, size := c.reg(ptx.B64), c.reg(ptx.B32)
	if discard {
		c.f("ld.global.u32 %s, [%s+%d];", size, a, 8-recordHead)
		c.f("or.b32 %s, %s, %#x;", size, size, uint32(recordDiscarded))
		c.f("st.global.u32 [%s+%d], %s;", a, 8-recordHead, size)
	}
	c.f("ld.global.u64 %s, [%s+%d];", k, a, -recordHead)
	c.f("not.b64 %s, %s;", k, k)
	c.fence(nil)
	c.f("st%s.global.u64 [%s+%d], %s;", c.order(".relaxed.gpu"), a, -recordHead, k)
}

// print writes a record of bpf_printk. format is the number of a format that is
// known, or 0 with the text of at most textSize bytes. It returns a register with
// the result: the bytes of the format, or an error.
func (c *code) print(format uint32, args []string, text bytesArg, textSize uint64, line bool, result int64) string {
	x := c.m.Print
	r := c.result(errBusy)
	full := c.label()
	size := uint64(printHead + 8*len(args))
	if format == 0 {
		size += textSize
	}
	size = min(size, x.ring.maxRecord)
	n := uint32(len(args))
	if line {
		n |= printNewline
	}
	record, k := c.reserve(x, size, full)
	c.f("st.global.u32 [%s+%d], %d;", record, recordHead, format)
	c.f("st.global.u32 [%s+%d], %#x;", record, recordHead+4, n)
	for i, a := range args {
		c.f("st.global.u64 [%s+%d], %s;", record, recordHead+printHead+8*i, a)
	}
	if head := uint64(printHead + 8*len(args)); format == 0 && size > head {
		c.copyTo(".global", record, recordHead+head, text, size-head)
	}
	c.publish(record, k, itoa(size))
	c.f("mov.s64 %s, %d;", r, result)
	c.at(full)
	return r
}
