package sass

import (
	"slices"
	"strings"
	"testing"
)

// TestTotals: an addition is one instruction at its place, under the guard of what stands there, and
// each exit goes to what is done with the sum.
func TestTotals(t *testing.T) {
	load := Word{0x0000000402037981, 0x000e22000c1e1900} // LDG.E R3, desc[UR4][R2.64], of scoreboard 0
	code := []Word{
		NOP(),
		load.Guarded(2, true),
		exit().Guarded(0, false),
		iadd3(5, 3, 3).WithControl(Control{Stall: 15, Wait: 1, WriteBar: NoBar, ReadBar: NoBar}),
		must(BRA(90, -4*WordSize)).Guarded(1, false),
		exit(),
	}
	body := testBody(t, "flush", 90)
	for _, registers := range []int{24, 25} { // of which the kernel can name 2 less
		w, err := NewWeaver(&Func{Arch: 90, Code: code}, &KernelFacts{Registers: registers, MaxRegisters: 40})
		if err != nil {
			t.Fatal(err)
		}
		v, err := w.Totals(1, body, ConstWide(0, 0x210), Imm(1))
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{w.Add(1*WordSize, v, 0, 5, true), w.Add(1*WordSize, v, 0, 7, false), w.Add(3*WordSize, v, 0, -1, false), w.Add(5*WordSize, v, 0, 9, true)} {
			if err != nil {
				t.Error(err)
			}
		}
		if err := w.Add(0x1000, v, 0, 1, false); err == nil || !strings.Contains(err.Error(), "no instruction is there") {
			t.Errorf("behind the end: %v", err)
		}
		if err := w.Exits(testBody(t, "count", 90), ConstWide(0, 0x210), Imm(2)); err != nil || len(w.exits) != 2 || w.exits[1].body != body {
			t.Errorf("what is done with totals is not the last thing: %v", err)
		}
		res, err := w.Finish()
		if err != nil {
			t.Fatal(err)
		}
		plain := func(w Word) Word { return w.WithControl(Control{}) }
		jump := func(i int) int { // to where
			in, _ := Decode(90, res.Code[i])
			if d, ok := in.target(); ok && in.Name() == "BRA" {
				return i + 1 + int(d/WordSize)
			}
			t.Fatalf("%s is no jump", res.Code[i])
			return 0
		}
		pair, one := uint8(22), uint8(24)
		if registers == 25 {
			pair, one = 24, 23
		}
		add := func(n uint32) Word { return imadWide(pair, one, n, pair) }
		at := jump(1)
		if got := []Word{plain(res.Code[at]), plain(res.Code[at+1]), plain(res.Code[at+2])}; !slices.Equal(got, []Word{plain(add(5).Guarded(2, true)), plain(add(7)), plain(code[1])}) {
			t.Errorf("at the load: %s", got)
		}
		if c := res.Code[at].Control(); c.Stall < settle {
			t.Errorf("two additions to one register, %d cycles apart", c.Stall)
		}
		at = jump(3)
		if got := []Word{plain(res.Code[at]), plain(res.Code[at+1])}; !slices.Equal(got, []Word{plain(add(0xffffffff)), plain(code[3])}) {
			t.Errorf("behind it: %s", got)
		}
		ends := jump(2)
		if res.Code[2].Bits(12, 4) != code[2].Bits(12, 4) {
			t.Errorf("%s has another guard than the exit", res.Code[2])
		}
		if at = jump(5); plain(res.Code[at]) != plain(add(9)) || jump(at+1) != ends {
			t.Errorf("at the exit: %s, %s", res.Code[at], res.Code[at+1])
		}
		if len(res.Exits) != 1 || int(res.Exits[0])/WordSize < ends {
			t.Errorf("exits at %#x, and all should be behind %#x", res.Exits, ends*WordSize)
		}
		begins := make(map[uint8]uint32)
		for i := jump(0); i < len(res.Code) && res.Code[i].Opcode() == opMOVImm; i++ {
			begins[uint8(res.Code[i].Bits(16, 8))] = uint32(res.Code[i].Bits(32, 32))
		}
		if len(begins) != 3 || begins[pair] != 0 || begins[pair+1] != 0 || begins[one] != 1 {
			t.Errorf("registers begin with %v", begins)
		}
	}
}

// TestTotalsRefused: where there are no registers, or not all exits can be had, nothing changes.
func TestTotalsRefused(t *testing.T) {
	body := testBody(t, "flush", 90)
	strange := exit()
	strange.Hi |= 1 << (84 - 64) // a modifier that compilers don't write
	for _, tt := range []struct {
		name  string
		facts KernelFacts
		first Word
		last  Word
		want  string
	}{
		{"two registers", KernelFacts{Registers: 24, MaxRegisters: 26}, NOP(), exit(), "no 3 registers"},
		{"three, of which the pair would be odd", KernelFacts{Registers: 25, MaxRegisters: 27}, NOP(), exit(), "no 3 registers"},
		{"an exit that is not known", KernelFacts{Registers: 24, MaxRegisters: 40}, NOP(), strange, "an exit with unknown modifiers"},
		{"a kernel of its own way", KernelFacts{Registers: 24, MaxRegisters: 40, Special: "x"}, NOP(), exit(), "an unusual way"},
	} {
		w, err := NewWeaver(&Func{Arch: 90, Code: []Word{tt.first, NOP(), tt.last}}, &tt.facts)
		if err != nil {
			t.Fatal(err)
		}
		fresh, never := w.fresh, w.never
		if _, err := w.Totals(1, body, ConstWide(0, 0x210), Imm(1)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
		if w.fresh != fresh || w.never != never || len(w.own) > 0 || w.one != nil || len(w.exits) > 0 || w.top >= 0 {
			t.Errorf("%s: something is left", tt.name)
		}
	}
}
