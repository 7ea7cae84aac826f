package proof

import (
	"math/bits"

	"nvtrace/nvattach/emit"
	"nvtrace/nvattach/helper"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// Helpers that look at the warp. Which threads are there when a program runs is the
// hardware's choice: those that it runs together at that moment. Threads of the warp that
// are elsewhere are not waited for, so that no helper can hang.

func (u *Unit) active(g *bpf.Gen, _ *bpf.Call) (ptx.Arg, error) {
	k := u.Code(g)
	return Register64(k.Wide(k.Alive())), nil
}

func (u *Unit) match(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k := u.Code(g)
	return Register64(k.Wide(k.Matching(k.Held(c.Args[0].Reg().String()), 64, k.Alive()))), nil
}

func (u *Unit) first(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k := u.Code(g)
	all := k.Alive()
	same := all
	if _, ok := c.Args[0].Const(); !ok { // what is the same in all threads needs no comparison
		same = k.Matching(k.Held(c.Args[0].Reg().String()), 64, all)
	}
	r := k.Reg(ptx.B64)
	k.F("selp.b64 %s, 1, 0, %s;", r, k.Lowest(same))
	return Register64(r), nil
}

func (u *Unit) popc(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	if n, ok := c.Args[0].Const(); ok {
		return ptx.Imm(int64(bits.OnesCount64(n))), nil
	}
	k := u.Code(g)
	r := k.Reg(ptx.B32)
	k.F("popc.b64 %s, %s;", r, c.Args[0].Reg().String())
	return Register64(k.Wide(r)), nil
}

// wavefronts is how many passes shared memory needs for what the warp's threads access
// together, each of them size bytes at its address. It has 32 banks of 4 bytes, of each of
// which a pass serves one word, to any number of threads. Accesses of 8 bytes are made by
// halves of the warp, those of 16 by quarters.
func (u *Unit) wavefronts(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k := u.Code(g)
	all := k.Alive()
	r32 := func(format string, args ...any) string {
		r := k.Reg(ptx.B32)
		k.F(format, append([]any{r}, args...)...)
		return r
	}
	// log is that of the bytes of a unit, the words that a thread gets at once: 2 to 4.
	size, log := k.Low(k.Held(c.Args[1].Reg().String())), ""
	log = r32("bfind.u32 %s, %s;", size)
	log = r32("max.s32 %s, %s, 2;", log)
	log = r32("min.s32 %s, %s, 4;", log)
	// A part of the warp: all of it, a half, a quarter.
	part := r32("sub.u32 %s, 7, %s;", log)
	part = r32("shr.u32 %s, %s, %s;", k.Special("%laneid"), part)
	unit := k.Reg(ptx.B64)
	k.F("shr.u64 %s, %s, %s;", unit, k.Held(c.Args[0].Reg().String()), log)
	// The banks come round after 128 bytes.
	bank := r32("sub.u32 %s, 7, %s;", log)
	bank = r32("shl.b32 %s, 1, %s;", bank)
	bank = r32("sub.u32 %s, %s, 1;", bank)
	bank = r32("and.b32 %s, %s, %s;", bank, k.Low(unit))
	bank = r32("mad.lo.u32 %s, %s, 32, %s;", part, bank)
	high := k.Reg(ptx.B64)
	k.F("mul.wide.u32 %s, %s, 0x40000000;", high, part)
	k.F("shl.b64 %s, %s, 26;", high, high)
	k.F("xor.b64 %s, %s, %s;", unit, unit, high)
	// Of the threads that want the same unit, one counts; how many of those want a bank.
	leaders := k.Ballot(k.Lowest(k.Matching(unit, 64, all)), all)
	n := k.Matching(bank, 32, all)
	n = r32("and.b32 %s, %s, %s;", n, leaders)
	n = r32("popc.b32 %s, %s;", n)
	// The most of each part, bit by bit, and then the parts' sum.
	mine := k.Matching(part, 32, all)
	most, rest := r32("mov.u32 %s, 0;"), r32("mov.u32 %s, %s;", mine)
	me := k.Special("%lanemask_eq")
	for b := 5; b >= 0; b-- {
		p, q := k.Reg(ptx.Pred), k.Reg(ptx.Pred)
		t := r32("and.b32 %s, %s, %s;", rest, me)
		k.F("setp.ne.u32 %s, %s, 0;", p, t)
		t = r32("and.b32 %s, %s, %d;", n, 1<<b)
		k.F("setp.ne.and.u32 %s, %s, 0, %s;", q, t, p)
		t = k.Ballot(q, all)
		k.F("and.b32 %s, %s, %s;", t, t, mine)
		k.F("setp.ne.u32 %s, %s, 0;", p, t)
		k.F("@%s mov.u32 %s, %s;", p, rest, t)
		k.F("@%s or.b32 %s, %s, %d;", p, most, most, 1<<b)
	}
	sum := r32("mov.u32 %s, 0;")
	lead := k.Lowest(mine)
	for b := range 6 {
		p := k.Reg(ptx.Pred)
		t := r32("and.b32 %s, %s, %d;", most, 1<<b)
		k.F("setp.ne.and.u32 %s, %s, 0, %s;", p, t, lead)
		t = r32("popc.b32 %s, %s;", k.Ballot(p, all))
		k.F("mad.lo.u32 %s, %s, %d, %s;", sum, t, 1<<b, sum)
	}
	return Register64(k.Wide(sum)), nil
}

// Helpers that all threads of a warp call that came to the site together, which the proof of the
// program makes sure of: unlike those above, what they say does not depend on which
// threads the hardware runs at that moment, and each waits for the others.

// togetherForms adds them.
func (u *Unit) togetherForms(list map[int32]form) {
	for n, emit := range map[int32]func(k *emit.Code, all string, c *bpf.Call) string{
		helper.Ballot: func(k *emit.Code, all string, c *bpf.Call) string {
			return k.Wide(k.Ballot(k.NonZero(&c.Args[0]), all))
		},
		helper.Any: func(k *emit.Code, all string, c *bpf.Call) string {
			return k.Truth("ne", k.Ballot(k.NonZero(&c.Args[0]), all), "0")
		},
		helper.AllOf: func(k *emit.Code, all string, c *bpf.Call) string {
			return k.Truth("eq", k.Ballot(k.NonZero(&c.Args[0]), all), all)
		},
		helper.Together: func(k *emit.Code, all string, _ *bpf.Call) string { return k.Wide(all) },
		helper.Leader: func(k *emit.Code, all string, _ *bpf.Call) string {
			r := k.Reg(ptx.B64)
			k.F("selp.b64 %s, 1, 0, %s;", r, k.Lowest(all))
			return r
		},
		helper.Shuffle: (*emit.Code).Shuffle,
	} {
		list[n] = func(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
			return Register64(emit(u.Code(g), g.Together().String(), c)), nil
		}
	}
}
