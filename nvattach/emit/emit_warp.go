package emit

import (
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// Alive returns the mask of the threads that are here. Targets that can't say have each
// thread alone.
func (c *Code) Alive() string {
	if c.Apart {
		return c.Special("%lanemask_eq")
	}
	r := c.Reg(ptx.B32)
	c.F("activemask.b32 %s;", r)
	return r
}

// Matching returns the mask of those threads of all that hold the same in a register.
func (c *Code) Matching(r string, bits int, all string) string {
	if c.Apart {
		return all
	}
	same := c.Reg(ptx.B32)
	c.F("match.any.sync.b%d %s, %s, %s;", bits, same, r, all)
	return same
}

// Lowest returns a predicate that holds in the lowest thread of a mask.
func (c *Code) Lowest(mask string) string {
	before, p := c.Special("%lanemask_lt"), c.Reg(ptx.Pred)
	c.F("and.b32 %s, %s, %s;", before, before, mask)
	c.F("setp.eq.u32 %s, %s, 0;", p, before)
	return p
}

// Ballot returns the mask of those threads of all in which a predicate holds.
func (c *Code) Ballot(p, all string) string {
	r := c.Reg(ptx.B32)
	if c.Apart {
		c.F("selp.b32 %s, %s, 0, %s;", r, all, p)
	} else {
		c.F("vote.sync.ballot.b32 %s, %s, %s;", r, p, all)
	}
	return r
}

// Held puts an operand of 64 bits that may be a number into a register.
func (c *Code) Held(x string) string {
	r := c.Reg(ptx.B64)
	c.F("mov.b64 %s, %s;", r, x)
	return r
}

// NonZero returns a predicate that holds where a number is not 0.
func (c *Code) NonZero(v *bpf.Value) string {
	p := c.Reg(ptx.Pred)
	c.F("setp.ne.u64 %s, %s, 0;", p, c.Held(v.Reg().String()))
	return p
}

// Truth is 1 where a comparison of 32 bits holds, else 0.
func (c *Code) Truth(how, x, y string) string {
	p, r := c.Reg(ptx.Pred), c.Reg(ptx.B64)
	c.F("setp.%s.u32 %s, %s, %s;", how, p, x, y)
	c.F("selp.b64 %s, 1, 0, %s;", r, p)
	return r
}

// Shuffle is the number that another thread, by its lane, has; 0 if that is not among all.
func (c *Code) Shuffle(all string, call *bpf.Call) string {
	v, lane := c.Held(call.Args[0].Reg().String()), c.Held(call.Args[1].Reg().String())
	lo, hi, from := c.Reg(ptx.B32), c.Reg(ptx.B32), c.Low(lane)
	p, q, bit, r := c.Reg(ptx.Pred), c.Reg(ptx.Pred), c.Reg(ptx.B32), c.Reg(ptx.B64)
	c.F("setp.lt.u64 %s, %s, 32;", p, lane)
	c.F("and.b32 %s, %s, 31;", from, from)
	c.F("shr.u32 %s, %s, %s;", bit, all, from)
	c.F("and.b32 %s, %s, 1;", bit, bit)
	c.F("setp.ne.and.u32 %s, %s, 0, %s;", q, bit, p)
	if !c.Apart { // where each is alone, there is its own number alone
		c.F("mov.b64 {%s, %s}, %s;", lo, hi, v)
		c.F("shfl.sync.idx.b32 %s, %s, %s, 31, %s;", lo, lo, from, all)
		c.F("shfl.sync.idx.b32 %s, %s, %s, 31, %s;", hi, hi, from, all)
		w := c.Reg(ptx.B64)
		c.F("mov.b64 %s, {%s, %s};", w, lo, hi)
		v = w
	}
	c.F("selp.b64 %s, %s, 0, %s;", r, v, q)
	return r
}
