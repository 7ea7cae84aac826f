package bpf

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cilium/ebpf/asm"

	"nvtrace/internal/need"
)

// has reports whether n allows v.
func (n num) has(v uint64) bool {
	return v >= n.umin && v <= n.umax && int64(v) >= n.smin && int64(v) <= n.smax && (v^n.val)&^n.mask == 0
}

// interesting are numbers at which things change.
var interesting = []uint64{
	0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 63, 64, 0x7f, 0x80, 0xff, 0x100, 0x7fff, 0x8000, 0xffff, 0x10000, 0x7fff_ffff, 0x8000_0000,
	0xffff_ffff, 0x1_0000_0000, math.MaxInt64, 1 << 63, math.MaxUint64, math.MaxUint64 - 1, 0xffff_ffff_8000_0000, 0xffff_ffff_0000_0000,
}

func anyValue(r *rand.Rand) uint64 {
	switch r.IntN(4) {
	case 0:
		return r.Uint64()
	case 1:
		return r.Uint64() >> r.IntN(64)
	case 2:
		return -(r.Uint64() >> r.IntN(64))
	}
	return interesting[r.IntN(len(interesting))]
}

// someNum returns a set and members of it.
func someNum(r *rand.Rand) (num, []uint64) {
	vs := []uint64{anyValue(r)}
	n := constNum(vs[0])
	for range r.IntN(3) {
		v := anyValue(r)
		if r.IntN(2) == 0 {
			v = vs[0] + uint64(r.IntN(16))
		}
		vs = append(vs, v)
		n = n.join(constNum(v))
	}
	if r.IntN(3) == 0 { // forget bits
		n.mask |= r.Uint64() & r.Uint64()
		n.val &^= n.mask
	}
	return n, vs
}

// TestNumSound: whatever the members of two sets compute to is in the set that
// is computed of the two.
func TestNumSound(t *testing.T) {
	need.OneThread(t)
	r := rand.New(rand.NewPCG(1, 2))
	ops := []asm.ALUOp{
		asm.Add, asm.Sub, asm.Mul, asm.Div, asm.Mod, asm.SDiv, asm.SMod, asm.Or, asm.And, asm.Xor, asm.LSh, asm.RSh, asm.ArSh, asm.Neg,
		asm.MovSX8, asm.MovSX16, asm.MovSX32, asm.Mov,
	}
	for range 300_000 {
		x, xs := someNum(r)
		y, ys := someNum(r)
		o := &op{alu: ops[r.IntN(len(ops))], w32: r.IntN(2) == 0}
		if o.alu == asm.MovSX32 || o.alu == asm.Mov {
			o.w32 = o.alu == asm.Mov
		}
		n := alu(o, x, y)
		for _, a := range xs {
			for _, b := range ys {
				v, err := compute(o.alu, a, b, o.w32)
				if err != nil {
					t.Fatal(err)
				}
				if !n.has(v) {
					t.Fatalf("%v (32: %v) of %#x in %+v and %#x in %+v is %#x, which is not in %+v", o.alu, o.w32, a, x, b, y, v, n)
				}
			}
		}
		o = &op{alu: asm.Swap, width: []uint8{16, 32, 64}[r.IntN(3)], big: r.IntN(2) == 0}
		if v := swapBytes(xs[0], int(o.width), o.big); !alu(o, x, x).has(v) {
			t.Fatalf("swap %d of %#x in %+v is %#x, which is not in %+v", o.width, xs[0], x, v, alu(o, x, x))
		}
	}
}

// TestRefineSound: a jump's condition never excludes numbers for which it holds,
// and joins and widenings keep what was there.
func TestRefineSound(t *testing.T) {
	need.OneThread(t)
	r := rand.New(rand.NewPCG(3, 4))
	jumps := []asm.JumpOp{asm.JEq, asm.JNE, asm.JGT, asm.JGE, asm.JLT, asm.JLE, asm.JSGT, asm.JSGE, asm.JSLT, asm.JSLE, asm.JSet}
	for range 300_000 {
		x, xs := someNum(r)
		y, ys := someNum(r)
		j := jumps[r.IntN(len(jumps))]
		for _, a := range xs {
			for _, b := range ys {
				xn, yn, ok := refine(j, x, y, holds(j, a, b))
				if !ok || !xn.has(a) || !yn.has(b) {
					t.Fatalf("%v with %#x in %+v and %#x in %+v gives %+v, %+v, %v", j, a, x, b, y, xn, yn, ok)
				}
				if w := x.widen(y, []uint64{10, 100}); !w.has(a) || !w.has(b) {
					t.Fatalf("%+v widened by %+v is %+v", x, y, w)
				}
			}
		}
		if m, ok := x.meet(x.join(y)); !ok || !m.has(xs[0]) {
			t.Fatalf("%+v and its join with %+v have %+v in common", x, y, m)
		}
	}
}

// TestWidenEnds: widening stops after few steps, whatever comes.
func TestWidenEnds(t *testing.T) {
	need.OneThread(t)
	r := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		n, _ := someNum(r)
		changes := 0
		for range 1000 {
			m, _ := someNum(r)
			if w := n.widen(m, []uint64{1, 1000, 1 << 40}); w != n {
				n = w
				changes++
			}
		}
		if changes > 80 {
			t.Fatalf("%d steps", changes)
		}
	}
}

// holds evaluates a jump's condition on two numbers.
func holds(op asm.JumpOp, a, b uint64) bool {
	switch op {
	case asm.JEq:
		return a == b
	case asm.JNE:
		return a != b
	case asm.JGT:
		return a > b
	case asm.JGE:
		return a >= b
	case asm.JLT:
		return a < b
	case asm.JLE:
		return a <= b
	case asm.JSGT:
		return int64(a) > int64(b)
	case asm.JSGE:
		return int64(a) >= int64(b)
	case asm.JSLT:
		return int64(a) < int64(b)
	case asm.JSLE:
		return int64(a) <= int64(b)
	case asm.JSet:
		return a&b != 0
	}
	panic("BUG: no condition")
}
