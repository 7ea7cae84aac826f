package sass

import (
	"math/rand/v2"
	"testing"
)

func TestBits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 10000 {
		w := Word{r.Uint64(), r.Uint64()}
		pos := uint(r.IntN(128))
		n := uint(r.IntN(int(min(64, 128-pos)) + 1))
		v := r.Uint64() & (1<<n - 1)
		x := w.SetBits(pos, n, v)
		if got := x.Bits(pos, n); got != v {
			t.Fatalf("%v: bits %d+%d set to %#x are %#x", w, pos, n, v, got)
		}
		// Nothing else changes.
		for p := range uint(128) {
			if (p < pos || p >= pos+n) && x.Bits(p, 1) != w.Bits(p, 1) {
				t.Fatalf("%v: setting bits %d+%d changed bit %d", w, pos, n, p)
			}
		}
		if y := x.SetBits(pos, n, w.Bits(pos, n)); y != w {
			t.Fatalf("%v: set back it is %v", w, y)
		}
	}
}

func TestControl(t *testing.T) {
	// nvdisasm -hex of a cubin for sm_90 that ptxas 13.0 made: LDG.E R0, desc[UR4][R2.64].
	w := Word{0x0000000402007981, 0x000ea4000c1e1900}
	want := Control{Stall: 2, Yield: true, WriteBar: 2, ReadBar: 7}
	if got := w.Control(); got != want {
		t.Errorf("control of %v is %+v, want %+v", w, got, want)
	}
	if got := w.Control().String(); got != "B------:R-:W2:-:S02" {
		t.Errorf("control is %q", got)
	}
	r := rand.New(rand.NewPCG(3, 4))
	for range 1000 {
		w := Word{r.Uint64(), r.Uint64()}
		if got := w.WithControl(w.Control()); got != w {
			t.Fatalf("%v with its own control half is %v", w, got)
		}
		c := Control{uint8(r.IntN(16)), r.IntN(2) == 0, uint8(r.IntN(8)), uint8(r.IntN(8)), uint8(r.IntN(64)), uint8(r.IntN(16))}
		if got := w.WithControl(c).Control(); got != c {
			t.Fatalf("control %+v comes back as %+v", c, got)
		}
		if x := w.WithControl(c); x.Lo != w.Lo || x.Hi&(1<<41-1) != w.Hi&(1<<41-1) || x.Hi>>62 != w.Hi>>62 {
			t.Fatalf("%v: other bits changed: %v", w, x)
		}
	}
}

func TestSet(t *testing.T) {
	var s Set
	s.Add(GPR, 0, 4)
	s.Add(GPR, 8, 1)
	s.Add(GPR, 254, 4) // RZ and what is above are no registers
	s.Add(GPR, 255, 1)
	s.Add(Pred, 6, 2)
	s.Add(UGPR, 62, 4)
	s.Add(Barrier, 15, 1)
	if got, want := s.String(), "R0-R3,R8,R254,P6,UR62-UR65,B15"; got != want {
		t.Errorf("set is %s, want %s", got, want)
	}
	if s.Len(GPR) != 6 || s.highest(GPR) != 254 || s.highest(UPred) != -1 || s.highest(Pred) != 6 {
		t.Errorf("lengths of %s: %d, %d, %d", s.String(), s.Len(GPR), s.highest(GPR), s.highest(Pred))
	}
	all := allRegs()
	u := s
	if u.Union(&s) {
		t.Error("a set grew by itself")
	}
	if !u.Union(&all) || u != all {
		t.Errorf("with all registers it is %s", u.String())
	}
	u.Minus(&s)
	none, some := intersect(&u, &s), intersect(&u, &all)
	if !none.Empty() || some.Empty() {
		t.Error("difference intersects")
	}
}
