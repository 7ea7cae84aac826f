package nvattach

import (
	"math/bits"

	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// Helpers that look at the warp. Which threads are there when a program runs is the
// hardware's choice: those that it runs together at that moment. Threads of the warp that
// are elsewhere are not waited for, so that no helper can hang.

func (u *unit) active(g *bpf.Gen, _ *bpf.Call) (ptx.Arg, error) {
	k := u.code(g)
	return register64(k.wide(k.alive())), nil
}

func (u *unit) match(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k := u.code(g)
	return register64(k.wide(k.matching(k.held(c.Args[0].Reg().String()), 64, k.alive()))), nil
}

func (u *unit) first(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k := u.code(g)
	all := k.alive()
	same := all
	if _, ok := c.Args[0].Const(); !ok { // what is the same in all threads needs no comparison
		same = k.matching(k.held(c.Args[0].Reg().String()), 64, all)
	}
	r := k.reg(ptx.B64)
	k.f("selp.b64 %s, 1, 0, %s;", r, k.lowest(same))
	return register64(r), nil
}

func (u *unit) popc(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	if n, ok := c.Args[0].Const(); ok {
		return ptx.Imm(int64(bits.OnesCount64(n))), nil
	}
	k := u.code(g)
	r := k.reg(ptx.B32)
	k.f("popc.b64 %s, %s;", r, c.Args[0].Reg().String())
	return register64(k.wide(r)), nil
}

// wavefronts is how many passes shared memory needs for what the warp's threads access
// together, each of them size bytes at its address. It has 32 banks of 4 bytes, of each of
// which a pass serves one word, to any number of threads. Accesses of 8 bytes are made by
// halves of the warp, those of 16 by quarters.
func (u *unit) wavefronts(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k := u.code(g)
	all := k.alive()
	r32 := func(format string, args ...any) string {
		r := k.reg(ptx.B32)
		k.f(format, append([]any{r}, args...)...)
		return r
	}
	// log is that of the bytes of a unit, the words that a thread gets at once: 2 to 4.
	size, log := k.low(k.held(c.Args[1].Reg().String())), ""
	log = r32("bfind.u32 %s, %s;", size)
	log = r32("max.s32 %s, %s, 2;", log)
	log = r32("min.s32 %s, %s, 4;", log)
	// A part of the warp: all of it, a half, a quarter.
	part := r32("sub.u32 %s, 7, %s;", log)
	part = r32("shr.u32 %s, %s, %s;", k.special("%laneid"), part)
	unit := k.reg(ptx.B64)
	k.f("shr.u64 %s, %s, %s;", unit, k.held(c.Args[0].Reg().String()), log)
	// The banks come round after 128 bytes.
	bank := r32("sub.u32 %s, 7, %s;", log)
	bank = r32("shl.b32 %s, 1, %s;", bank)
	bank = r32("sub.u32 %s, %s, 1;", bank)
	bank = r32("and.b32 %s, %s, %s;", bank, k.low(unit))
	bank = r32("mad.lo.u32 %s, %s, 32, %s;", part, bank)
	high := k.reg(ptx.B64)
	k.f("mul.wide.u32 %s, %s, 0x40000000;", high, part)
	k.f("shl.b64 %s, %s, 26;", high, high)
	k.f("xor.b64 %s, %s, %s;", unit, unit, high)
	// Of the threads that want the same unit, one counts; how many of those want a bank.
	leaders := k.ballot(k.lowest(k.matching(unit, 64, all)), all)
	n := k.matching(bank, 32, all)
	n = r32("and.b32 %s, %s, %s;", n, leaders)
	n = r32("popc.b32 %s, %s;", n)
	// The most of each part, bit by bit, and then the parts' sum.
	mine := k.matching(part, 32, all)
	most, rest := r32("mov.u32 %s, 0;"), r32("mov.u32 %s, %s;", mine)
	me := k.special("%lanemask_eq")
	for b := 5; b >= 0; b-- {
		p, q := k.reg(ptx.Pred), k.reg(ptx.Pred)
		t := r32("and.b32 %s, %s, %s;", rest, me)
		k.f("setp.ne.u32 %s, %s, 0;", p, t)
		t = r32("and.b32 %s, %s, %d;", n, 1<<b)
		k.f("setp.ne.and.u32 %s, %s, 0, %s;", q, t, p)
		t = k.ballot(q, all)
		k.f("and.b32 %s, %s, %s;", t, t, mine)
		k.f("setp.ne.u32 %s, %s, 0;", p, t)
		k.f("@%s mov.u32 %s, %s;", p, rest, t)
		k.f("@%s or.b32 %s, %s, %d;", p, most, most, 1<<b)
	}
	sum := r32("mov.u32 %s, 0;")
	lead := k.lowest(mine)
	for b := range 6 {
		p := k.reg(ptx.Pred)
		t := r32("and.b32 %s, %s, %d;", most, 1<<b)
		k.f("setp.ne.and.u32 %s, %s, 0, %s;", p, t, lead)
		t = r32("popc.b32 %s, %s;", k.ballot(p, all))
		k.f("mad.lo.u32 %s, %s, %d, %s;", sum, t, 1<<b, sum)
	}
	return register64(k.wide(sum)), nil
}
