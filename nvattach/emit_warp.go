package nvattach

import (
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// alive returns the mask of the threads that are here. Targets that can't say have each
// thread alone.
func (c *code) alive() string {
	if c.apart {
		return c.special("%lanemask_eq")
	}
	r := c.reg(ptx.B32)
	c.f("activemask.b32 %s;", r)
	return r
}

// matching returns the mask of those threads of all that hold the same in a register.
func (c *code) matching(r string, bits int, all string) string {
	if c.apart {
		return all
	}
	same := c.reg(ptx.B32)
	c.f("match.any.sync.b%d %s, %s, %s;", bits, same, r, all)
	return same
}

// lowest returns a predicate that holds in the lowest thread of a mask.
func (c *code) lowest(mask string) string {
	before, p := c.special("%lanemask_lt"), c.reg(ptx.Pred)
	c.f("and.b32 %s, %s, %s;", before, before, mask)
	c.f("setp.eq.u32 %s, %s, 0;", p, before)
	return p
}

// ballot returns the mask of those threads of all in which a predicate holds.
func (c *code) ballot(p, all string) string {
	r := c.reg(ptx.B32)
	if c.apart {
		c.f("selp.b32 %s, %s, 0, %s;", r, all, p)
	} else {
		c.f("vote.sync.ballot.b32 %s, %s, %s;", r, p, all)
	}
	return r
}

// held puts an operand of 64 bits that may be a number into a register.
func (c *code) held(x string) string {
	r := c.reg(ptx.B64)
	c.f("mov.b64 %s, %s;", r, x)
	return r
}

// nonZero returns a predicate that holds where a number is not 0.
func (c *code) nonZero(v *bpf.Value) string {
	p := c.reg(ptx.Pred)
	c.f("setp.ne.u64 %s, %s, 0;", p, c.held(v.Reg().String()))
	return p
}

// truth is 1 where a comparison of 32 bits holds, else 0.
func (c *code) truth(how, x, y string) string {
	p, r := c.reg(ptx.Pred), c.reg(ptx.B64)
	c.f("setp.%s.u32 %s, %s, %s;", how, p, x, y)
	c.f("selp.b64 %s, 1, 0, %s;", r, p)
	return r
}

// shuffle is the number that another thread, by its lane, has; 0 if that is not among all.
func (c *code) shuffle(all string, call *bpf.Call) string {
	v, lane := c.held(call.Args[0].Reg().String()), c.held(call.Args[1].Reg().String())
	lo, hi, from := c.reg(ptx.B32), c.reg(ptx.B32), c.low(lane)
	p, q, bit, r := c.reg(ptx.Pred), c.reg(ptx.Pred), c.reg(ptx.B32), c.reg(ptx.B64)
	c.f("setp.lt.u64 %s, %s, 32;", p, lane)
	c.f("and.b32 %s, %s, 31;", from, from)
	c.f("shr.u32 %s, %s, %s;", bit, all, from)
	c.f("and.b32 %s, %s, 1;", bit, bit)
	c.f("setp.ne.and.u32 %s, %s, 0, %s;", q, bit, p)
	if !c.apart { // where each is alone, there is its own number alone
		c.f("mov.b64 {%s, %s}, %s;", lo, hi, v)
		c.f("shfl.sync.idx.b32 %s, %s, %s, 31, %s;", lo, lo, from, all)
		c.f("shfl.sync.idx.b32 %s, %s, %s, 31, %s;", hi, hi, from, all)
		w := c.reg(ptx.B64)
		c.f("mov.b64 %s, {%s, %s};", w, lo, hi)
		v = w
	}
	c.f("selp.b64 %s, %s, 0, %s;", r, v, q)
	return r
}
