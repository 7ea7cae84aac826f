package nvattach

import (
	"nvtrace/nvattach/helper"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// Helpers that all threads of a warp call that came to the site together, which the proof of the
// program makes sure of: unlike what is in helpers_warp.go, what they say does not depend on which
// threads the hardware runs at that moment, and each waits for the others.

// togetherForms adds them.
func (u *unit) togetherForms(list map[int32]form) {
	for n, emit := range map[int32]func(k *code, all string, c *bpf.Call) string{
		helper.Ballot: func(k *code, all string, c *bpf.Call) string { return k.wide(k.ballot(k.nonZero(&c.Args[0]), all)) },
		helper.Any: func(k *code, all string, c *bpf.Call) string {
			return k.truth("ne", k.ballot(k.nonZero(&c.Args[0]), all), "0")
		},
		helper.AllOf: func(k *code, all string, c *bpf.Call) string {
			return k.truth("eq", k.ballot(k.nonZero(&c.Args[0]), all), all)
		},
		helper.Together: func(k *code, all string, _ *bpf.Call) string { return k.wide(all) },
		helper.Leader: func(k *code, all string, _ *bpf.Call) string {
			r := k.reg(ptx.B64)
			k.f("selp.b64 %s, 1, 0, %s;", r, k.lowest(all))
			return r
		},
		helper.Shuffle: (*code).shuffle,
	} {
		list[n] = func(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
			return register64(emit(u.code(g), g.Together().String(), c)), nil
		}
	}
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
