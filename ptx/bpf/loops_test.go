package bpf

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cilium/ebpf/asm"

	"nvtrace/internal/need"
)

// countedLoop is a loop of one register: r = start; { r += step; } while (r stays limit),
// or with the test first.
type countedLoop struct {
	start, limit uint64
	more         [2]int32 // the bits of what is added to each, which is not known
	step         int64
	stays        asm.JumpOp
	step32       bool // the addition has 32 bits
	test32       bool // the test has
	testFirst    bool
}

// insns is the loop as a program.
func (c countedLoop) insns() asm.Instructions {
	add, test := asm.Add.Imm(asm.R6, int32(c.step)), c.stays.Reg
	if c.step32 {
		add = asm.Add.Imm32(asm.R6, int32(c.step))
	}
	if c.test32 {
		test = c.stays.Reg32
	}
	begin := cat(index(newWorld(0), 0), asm.Instructions{
		asm.Mov.Imm(asm.R0, 0), asm.LoadImm(asm.R6, int64(c.start), asm.DWord), asm.LoadImm(asm.R7, int64(c.limit), asm.DWord),
		asm.Mov.Reg(asm.R4, asm.R3), asm.RSh.Imm(asm.R4, 32),
		asm.And.Imm(asm.R3, c.more[0]), asm.And.Imm(asm.R4, c.more[1]), asm.Add.Reg(asm.R6, asm.R3), asm.Add.Reg(asm.R7, asm.R4),
	})
	if c.testFirst {
		return cat(begin, asm.Instructions{
			asm.Mov.Imm(asm.R1, 0).WithSymbol("l"), test(asm.R6, asm.R7, "in"), asm.Ja.Label("out"),
			add.WithSymbol("in"), asm.Ja.Label("l"), asm.Return().WithSymbol("out"),
		})
	}
	return cat(begin, asm.Instructions{add.WithSymbol("l"), test(asm.R6, asm.R7, "l"), asm.Return()})
}

// ends reports whether the loop comes to its end within so many rounds, whatever it is
// that is not known.
func (c countedLoop) ends(most uint64) bool {
	for _, x := range values(c.more[0]) {
		for _, y := range values(c.more[1]) {
			one := c
			one.start += x
			one.limit += y
			if !one.endsAlone(most) {
				return false
			}
		}
	}
	return true
}

// values are some numbers that have no bits but those of mask.
func values(mask int32) []uint64 {
	if mask == 0 {
		return []uint64{0}
	}
	return []uint64{0, 1, uint64(mask) / 2, uint64(mask)}
}

func (c countedLoop) endsAlone(most uint64) bool {
	r := c.start
	for range most + 1 {
		if c.testFirst && !c.goesOn(r) {
			return true
		}
		if r += uint64(c.step); c.step32 {
			r = uint64(uint32(r))
		}
		if !c.testFirst && !c.goesOn(r) {
			return true
		}
	}
	return false
}

func (c countedLoop) goesOn(r uint64) bool {
	x, y, sx, sy := r, c.limit, int64(r), int64(c.limit)
	if c.test32 {
		x, y, sx, sy = uint64(uint32(x)), uint64(uint32(y)), int64(int32(x)), int64(int32(y))
	}
	return map[asm.JumpOp]bool{
		asm.JNE: x != y, asm.JLT: x < y, asm.JLE: x <= y, asm.JGT: x > y, asm.JGE: x >= y,
		asm.JSLT: sx < sy, asm.JSLE: sx <= sy, asm.JSGT: sx > sy, asm.JSGE: sx >= sy,
	}[c.stays]
}

// TestCountedRounds: a loop that is proven ends within the rounds that the proof says,
// also where its register comes to the ends of what 32 and 64 bits hold.
func TestCountedRounds(t *testing.T) {
	need.OneThread(t)
	r := rand.New(rand.NewPCG(15, 3))
	edges := []uint64{0, 1 << 31, 1 << 32, 1 << 62, 1 << 63, math.MaxUint64}
	pick := func() uint64 { return edges[r.IntN(len(edges))] + uint64(r.IntN(41)) - 20 }
	stays := []asm.JumpOp{asm.JNE, asm.JLT, asm.JLE, asm.JGT, asm.JGE, asm.JSLT, asm.JSLE, asm.JSGT, asm.JSGE}
	masks := []int32{0, 0, 0, 1, 7, 0xfff, math.MaxInt32}
	steps := []int64{1, 2, 3, 7, 1 << 10, 1 << 20}
	env, proven := newWorld(0).env, 0
	for range 20_000 {
		c := countedLoop{pick(), pick(), [2]int32{masks[r.IntN(len(masks))], masks[r.IntN(len(masks))]}, steps[r.IntN(len(steps))], stays[r.IntN(len(stays))], r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(2) == 0}
		if r.IntN(2) == 0 {
			c.step = -c.step
		}
		v, err := newConformance(&Program{Name: "p", Insns: c.insns()}, env)
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		for i := range v.a.cfg.loops {
			l := &v.a.cfg.loops[i]
			if v.a.in[l.head] == nil || l.rounds == 0 {
				continue
			}
			if proven++; !c.ends(l.rounds) {
				t.Fatalf("%+v does not end in %d rounds", c, l.rounds)
			}
		}
	}
	if proven < 1000 {
		t.Errorf("%d loops were proven", proven)
	}
}
