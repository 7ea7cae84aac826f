package bpf

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"
)

// Divisions in code that is compiled as a tool's patch are what the interpreter says, and
// no instruction for which the compiler calls a function.
func TestWideDivisions(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	edges := []uint64{1, 8, neg(8), neg(1 << 31), 2, 3, 5, 10, 1000, 641, 1<<31 - 1, 1 << 31, 1<<32 + 1, 1<<63 - 1, 1 << 63, 1<<63 + 1, ones - 1, ones, neg(7)}
	numbers := append([]uint64{0}, edges...)
	for range 8 {
		numbers = append(numbers, rnd.Uint64(), rnd.Uint64()>>rnd.IntN(64))
	}
	for _, op := range []asm.ALUOp{asm.Div, asm.Mod, asm.SDiv, asm.SMod} {
		for _, y := range append(edges, rnd.Uint64(), rnd.Uint64()>>rnd.IntN(64), 0) {
			for _, constant := range []bool{false, true} {
				if constant && y != uint64(int64(int32(y))) {
					continue
				}
				ins := aluInstruction(op, false, !constant, y)
				for some := range slices.Chunk(numbers, 7) { // as many as the map's value has room for
					w := newWorld(0)
					insns := asm.Instructions{direct(asm.R3, mapData, 0)}
					// Each number is replaced by the result.
					for i, x := range some {
						at := int16(8 * (i + 1))
						binary.LittleEndian.PutUint64(w.mem[w.at[mapData]+int(at):], x)
						insns = append(insns, asm.LoadMem(asm.R1, asm.R3, at, asm.DWord), asm.LoadMem(asm.R2, asm.R3, 0, asm.DWord), ins, asm.StoreMem(asm.R3, at, asm.R1, asm.DWord))
					}
					binary.LittleEndian.PutUint64(w.mem[w.at[mapData]:], y)
					p := &Program{Name: "divide", Insns: append(insns, asm.Mov.Imm(asm.R0, 0), asm.Return())}
					before := newWorld(0)
					copy(before.mem, w.mem)
					v, err := Verify(p, w.env)
					if err != nil {
						t.Fatal(err)
					}
					site := w.site()
					site.ToolsPatch = true
					code, err := v.Emit(site)
					if err != nil {
						t.Fatal(err)
					}
					if strings.Contains(code, "div.") || strings.Contains(code, "rem.") {
						t.Fatalf("a division remains:\n%s", code)
					}
					if _, err := w.interpret(p); err != nil {
						t.Fatal(err)
					}
					got := run(t, module(1, code), 1, before)
					for i, x := range some {
						at := w.at[mapData] + 8*(i+1)
						if a, b := binary.LittleEndian.Uint64(got[at:]), binary.LittleEndian.Uint64(w.mem[at:]); a != b {
							t.Errorf("%v, constant %v: %#x by %#x is %#x, want %#x", op, constant, x, y, a, b)
						}
					}
				}
			}
		}
	}
}
