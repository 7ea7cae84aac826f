package emit

import (
	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/ptx"
)

// reserve gets room for a record of up to size bytes in a ring buffer. It writes
// code that goes to full when there is none, and returns a 64-bit register with the
// record's address and one with its number in units.
func (c *Code) reserve(x *mapmem.Map, size uint64, full string) (record, number string) {
	n := object.UnitsFor(size)
	part := c.PerSM(x.Base, x.CopyBytes)
	k, read, q := c.Reg(ptx.B64), c.Reg(ptx.B64), c.Reg(ptx.Pred)
	room := c.Label()
	c.F("atom%s.global.add.u64 %s, [%s], %d;", c.atomic(".relaxed.gpu"), k, part, n)
	// The host writes this word: a cached copy would be stale.
	c.F("ld%s.global.u64 %s, [%s+%d];", c.Order(".relaxed.sys"), read, part, object.RingRead)
	c.F("sub.s64 %s, %s, %s;", read, k, read)
	c.F("setp.le.s64 %s, %s, %d;", q, read, int64(x.Ring.Units)-int64(n))
	c.F("@%s bra %s;", q, room)
	c.F("red.global.add.u64 [%s+%d], 1;", part, object.RingDropped)
	c.F("red.global.add.u64 [%s+%d], %d;", part, object.RingDroppedUnits, n)
	c.F("bra %s;", full)
	c.At(room)
	at := c.Reg(ptx.B64)
	c.F("and.b64 %s, %s, %d;", at, k, x.Ring.Units-1)
	c.F("mad.lo.s64 %s, %s, %d, %s;", at, at, object.UnitBytes, part)
	c.F("add.s64 %s, %s, %d;", at, at, object.RingHead)
	return at, k
}

// publish makes a record complete. size is a number or a 32-bit register.
func (c *Code) publish(record, number, size string) {
	k := c.Reg(ptx.B64)
	c.F("st.global.u32 [%s+8], %s;", record, size)
	c.F("add.s64 %s, %s, %d;", k, number, int64(c.M.Cookie))
	c.fence(nil)
	c.F("st%s.global.u64 [%s], %s;", c.Order(".relaxed.gpu"), record, k)
}

// Output writes a record of the bytes of data, at most size, and returns a register
// with the result: 0, or refused when there is no room. length is a number or
// a 32-bit register: the bytes to show, at most size.
func (c *Code) Output(x *mapmem.Map, data BytesArg, size uint64, length string, refused int64) string {
	r := c.Result(refused)
	full := c.Label()
	record, k := c.reserve(x, size, full)
	c.copyTo(".global", record, object.RecordHead, data, size)
	c.publish(record, k, length)
	c.F("mov.s64 %s, 0;", r)
	c.At(full)
	return r
}

// RingReserve returns a register with the address of a record's data, 0 if there
// is no room. The data begins as zeros only where the ring was not used before.
func (c *Code) RingReserve(x *mapmem.Map, size uint64) string {
	a, k := c.Result(0), c.Reg(ptx.B64)
	full := c.Label()
	record, number := c.reserve(x, size, full)
	c.F("st.global.u32 [%s+8], %d;", record, size)
	// Submitting needs the number that makes the record complete.
	c.F("add.s64 %s, %s, %d;", k, number, int64(c.M.Cookie))
	c.F("not.b64 %s, %s;", k, k)
	c.F("st.global.u64 [%s], %s;", record, k)
	c.F("add.s64 %s, %s, %d;", a, record, object.RecordHead)
	c.At(full)
	return a
}

// RingSubmit completes the record whose data is at a; with discard set it will not
// be shown.
func (c *Code) RingSubmit(a string, discard bool) {
	k, size := c.Reg(ptx.B64), c.Reg(ptx.B32)
	if discard {
		c.F("ld.global.u32 %s, [%s+%d];", size, a, 8-object.RecordHead)
		c.F("or.b32 %s, %s, %#x;", size, size, uint32(object.RecordDiscarded))
		c.F("st.global.u32 [%s+%d], %s;", a, 8-object.RecordHead, size)
	}
	c.F("ld.global.u64 %s, [%s+%d];", k, a, -object.RecordHead)
	c.F("not.b64 %s, %s;", k, k)
	c.fence(nil)
	c.F("st%s.global.u64 [%s+%d], %s;", c.Order(".relaxed.gpu"), a, -object.RecordHead, k)
}

// Print writes a record of bpf_printk. format is the number of a format that is
// known, or 0 with the text of at most textSize bytes. It returns a register with
// the result: the bytes of the format, or an error.
func (c *Code) Print(format uint32, args []string, text BytesArg, textSize uint64, line bool, result int64) string {
	x := c.M.Print
	r := c.Result(helper.EBUSY)
	full := c.Label()
	size := uint64(mapmem.PrintHead + 8*len(args))
	if format == 0 {
		size += textSize
	}
	size = min(size, x.Ring.MaxRecord)
	n := uint32(len(args))
	if line {
		n |= mapmem.PrintNewline
	}
	record, k := c.reserve(x, size, full)
	c.F("st.global.u32 [%s+%d], %d;", record, object.RecordHead, format)
	c.F("st.global.u32 [%s+%d], %#x;", record, object.RecordHead+4, n)
	for i, a := range args {
		c.F("st.global.u64 [%s+%d], %s;", record, object.RecordHead+mapmem.PrintHead+8*i, a)
	}
	if head := uint64(mapmem.PrintHead + 8*len(args)); format == 0 && size > head {
		c.copyTo(".global", record, object.RecordHead+head, text, size-head)
	}
	c.publish(record, k, Itoa(size))
	c.F("mov.s64 %s, %d;", r, result)
	c.At(full)
	return r
}
