package bpf

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"

	"nvtrace/ptx"
)

// ownWorld is a world in which .data is a variable that each thread has.
func ownWorld() *world {
	w := newWorld(0)
	w.env.Maps[mapData].Thread = true
	return w
}

// inRegisters is a program's code with .data in registers: loaded before it, and
// stored behind it.
func (w *world) inRegisters(code string) string {
	var before, after strings.Builder
	fmt.Fprintf(&before, "\t.reg .b64 %%own<8>;\n\t.reg .b64 %%at;\n\tmov.u64 %%at, nvm;\n")
	for i := range 8 {
		at := w.at[mapData] + 8*i
		fmt.Fprintf(&before, "\tld.global.u64 %%own%d, [%%at+%d];\n", i, at)
		fmt.Fprintf(&after, "\tst.global.u64 [%%at+%d], %%own%d;\n", at, i)
	}
	return before.String() + "\t{\n" + code + "\t}\n" + after.String()
}

// TestOwn: loads, stores and atomic operations of all sizes on what is in registers do
// what they do on memory.
func TestOwn(t *testing.T) {
	sizes := []asm.Size{asm.Byte, asm.Half, asm.Word, asm.DWord}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 4))
		ins := asm.Instructions{asm.LoadMem(asm.R6, asm.R1, 0, asm.DWord), asm.Mov.Imm(asm.R7, 5), asm.Mov.Imm(asm.R0, 0)}
		for range 12 {
			size := sizes[r.IntN(4)]
			n := size.Sizeof()
			off := int16(r.IntN(64 - n + 1))
			if r.IntN(3) > 0 {
				off = off / int16(n) * int16(n)
			}
			ins = append(ins, direct(asm.R2, mapData, 0))
			switch r.IntN(6) {
			case 0:
				ins = append(ins, asm.StoreMem(asm.R2, off, asm.R6, size))
			case 1:
				ins = append(ins, asm.Mov.Imm(asm.R4, r.Int32()), asm.StoreMem(asm.R2, off, asm.R4, size))
			case 2:
				ins = append(ins, asm.LoadMem(asm.R7, asm.R2, off, size), asm.Xor.Reg(asm.R6, asm.R7))
			case 3:
				x := asm.StoreXAdd(asm.R2, asm.R6, []asm.Size{asm.Word, asm.DWord}[r.IntN(2)])
				x.Offset = int16(8 * r.IntN(8))
				ins = append(ins, x)
			case 4: // as a key
				ins = append(ins, asm.Add.Imm(asm.R2, int32(off/4*4%60)), asm.LoadMapPtr(asm.R1, mapArray), asm.FnMapLookupElem.Call(),
					asm.JEq.Imm(asm.R0, 0, fmt.Sprint("n", len(ins))), asm.StoreMem(asm.R0, 0, asm.R6, asm.DWord), asm.Mov.Imm(asm.R0, 0).WithSymbol(fmt.Sprint("n", len(ins))))
			default: // through a register and the stack
				ins = append(ins, asm.Add.Imm(asm.R2, int32(off)), asm.StoreMem(asm.R10, -8, asm.R2, asm.DWord), asm.LoadMem(asm.R3, asm.R10, -8, asm.DWord), asm.StoreMem(asm.R3, 0, asm.R7, size))
			}
		}
		ins = append(ins, asm.Mov.Reg(asm.R0, asm.R6), asm.Return())
		w := ownWorld()
		w.env.Helpers[1].NeverNull = nil
		before := newWorld(0)
		p := &Program{Name: "own", Insns: ins}
		v, err := Verify(p, w.env)
		if err != nil {
			t.Fatalf("seed %d: %v\n%v", seed, err, ins)
		}
		site := w.site()
		site.Maps[mapData] = Addr{Symbol: "%own"}
		code, err := v.Emit(site)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.interpret(p); err != nil {
			t.Fatal(err)
		}
		out := run(t, module(1, w.inRegisters(code)), 1, before)
		if !bytes.Equal(out, w.mem) {
			t.Fatalf("seed %d: another result\n%v\n%s", seed, ins, code)
		}
	}
}

// TestOwnRefused: what is in registers can't be indexed with what is known only when the
// program runs, nor be reached through a pointer that may lead elsewhere.
func TestOwnRefused(t *testing.T) {
	w := ownWorld()
	for _, ins := range []asm.Instructions{
		cat(asm.Instructions{unknown, asm.And.Imm(asm.R3, 7), direct(asm.R2, mapData, 0), asm.Add.Reg(asm.R2, asm.R3), asm.LoadMem(asm.R0, asm.R2, 0, asm.Byte), asm.Return()}),
		cat(lookupIn(mapWide), asm.Instructions{
			asm.JNE.Imm(asm.R0, 0, "x"), direct(asm.R0, mapData, 0), asm.LoadMem(asm.R0, asm.R0, 0, asm.Byte).WithSymbol("x"), asm.Return(),
		}),
	} {
		w.env.Helpers[1].NeverNull = nil
		if _, err := Verify(&Program{Name: "own", Insns: ins}, w.env); err == nil || !strings.Contains(err.Error(), "in registers at a computed place") {
			t.Errorf("%v\n%v", err, ins)
		}
	}
}

// TestApart: which additions get code that groups the threads of a warp.
func TestApart(t *testing.T) {
	w := newWorld(0)
	w.env.Helpers[1].NeverNull = nil
	w.env.Helpers[1].Uniform = func(*CallInfo) bool { return true }
	w.env.Context.Fields[0].Uniform = true // at 0
	w.env.Context.Fields[1].Clock = true   // at 8
	add := func(key asm.Instruction, n ...asm.Instruction) asm.Instructions {
		return cat(asm.Instructions{asm.Mov.Reg(asm.R9, asm.R1), key, asm.StoreMem(asm.R10, -4, asm.R6, asm.Word), asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -4), asm.LoadMapPtr(asm.R1, mapArray), asm.FnMapLookupElem.Call(), asm.JEq.Imm(asm.R0, 0, "end")},
			n, asm.Instructions{asm.StoreXAdd(asm.R0, asm.R7, asm.DWord), asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), asm.Return()})
	}
	one, tid := asm.Mov.Imm(asm.R7, 1), asm.LoadMem(asm.R6, asm.R1, 16, asm.Word)
	for _, c := range []struct {
		name string
		ins  asm.Instructions
		want string // "each": an addition for each address, "one": one addition
	}{
		{"by thread", add(tid, one), "each"},
		{"by what all have", add(asm.LoadMem(asm.R6, asm.R1, 0, asm.Word), one), ""},
		{"by clock", add(asm.LoadMem(asm.R6, asm.R1, 8, asm.Word), one), ""},
		{"a number of its own", add(tid, asm.LoadMem(asm.R7, asm.R9, 16, asm.Word)), ""},
		{"a clock", add(tid, asm.LoadMem(asm.R7, asm.R9, 8, asm.Word)), ""},
		{"a number that all have", add(tid, asm.LoadMem(asm.R7, asm.R9, 0, asm.Word)), "each"},
		{"a number that all have, by what all have", add(asm.LoadMem(asm.R6, asm.R1, 0, asm.Word), asm.LoadMem(asm.R7, asm.R9, 0, asm.Word)), "one"},
		{"a number that all have, by clock", add(asm.LoadMem(asm.R6, asm.R1, 8, asm.Word), asm.LoadMem(asm.R7, asm.R9, 0, asm.Word)), ""},
		{"a clock, by what all have", add(asm.LoadMem(asm.R6, asm.R1, 0, asm.Word), asm.LoadMem(asm.R7, asm.R9, 8, asm.Word)), ""},
		{"one of two numbers", add(tid, asm.LoadMem(asm.R7, asm.R9, 16, asm.Word), asm.JEq.Imm(asm.R7, 5, "x"), asm.Mov.Imm(asm.R7, 2), asm.Ja.Label("y"), asm.Mov.Imm(asm.R7, 1).WithSymbol("x"), asm.Mov.Reg(asm.R8, asm.R7).WithSymbol("y"), asm.Mov.Reg(asm.R7, asm.R8)), ""},
		{"written before and behind", add(tid, asm.LoadMem(asm.R7, asm.R9, 16, asm.Word), asm.StoreMem(asm.R10, -16, asm.R7, asm.DWord), asm.Mov.Imm(asm.R7, 3)), "each"},
	} {
		v, err := Verify(&Program{Name: c.name, Insns: c.ins}, w.env)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		site := w.site()
		code, err := v.Emit(site)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		switch {
		case strings.Contains(code, "match.any.sync"):
			got = "each"
		case strings.Contains(code, "popc"):
			got = "one"
		}
		if got != c.want {
			t.Errorf("%s: additions are made for %q, want %q\n%s", c.name, got, c.want, code)
		}
		site.Target = ptx.Target{SM: 60}
		if code, err = v.Emit(site); err != nil || strings.Contains(code, "match") {
			t.Errorf("%s: for sm_60: %v\n%s", c.name, err, code)
		}
	}
}

// TestTogether: additions that one thread makes for others add up, whoever comes.
func TestTogether(t *testing.T) {
	w := newWorld(0)
	w.env.Helpers[1].NeverNull = nil
	ins := asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, 16, asm.Word), asm.JEq.Imm(asm.R6, 7, "end"), asm.And.Imm(asm.R6, 3), asm.StoreMem(asm.R10, -4, asm.R6, asm.Word), asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, mapArray), asm.FnMapLookupElem.Call(), asm.JEq.Imm(asm.R0, 0, "end"), asm.Mov.Imm(asm.R7, 5), asm.StoreXAdd(asm.R0, asm.R7, asm.DWord),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), asm.Return(),
	}
	v, err := Verify(&Program{Name: "p", Insns: ins}, w.env)
	if err != nil {
		t.Fatal(err)
	}
	code, err := v.Emit(w.site())
	if err != nil {
		t.Fatal(err)
	}
	clear(w.mem[w.at[mapArray] : w.at[mapArray]+32])
	out := run(t, module(1, code), 45, w)
	for key, threads := range []uint64{12, 11, 11, 10} { // of 0 to 44 but 7
		if got := little(out[w.at[mapArray]+8*key:][:8]); got != 5*threads {
			t.Errorf("entry %d: %d, want %d", key, got, 5*threads)
		}
	}
}

// TestSum: numbers that differ are added up by the threads of a warp where they go to the
// same place, and by themselves where they do not.
func TestSum(t *testing.T) {
	for _, c := range []struct {
		name string
		mask int32 // of the thread's number: the entry that it adds to
		size asm.Size
		wide bool // numbers of 64 bits
	}{{"one place", 0, asm.DWord, false}, {"four places", 3, asm.DWord, false}, {"64 bits", 0, asm.DWord, true}, {"32 bits", 0, asm.Word, true}, {"32 bits, two places", 1, asm.Word, false}} {
		w := newWorld(0)
		w.env.Helpers[1].NeverNull = nil
		ins := asm.Instructions{asm.LoadMem(asm.R6, asm.R1, 16, asm.Word), asm.JEq.Imm(asm.R6, 7, "end"), asm.Mov.Reg(asm.R7, asm.R6)}
		if c.wide {
			ins = append(ins, asm.Mul.Imm(asm.R7, 0x7654321), asm.Mul.Imm(asm.R7, 0x7654321), asm.Xor.Reg(asm.R7, asm.R6))
		}
		ins = append(ins, asm.And.Imm(asm.R6, c.mask), asm.StoreMem(asm.R10, -4, asm.R6, asm.Word), asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -4),
			asm.LoadMapPtr(asm.R1, mapArray), asm.FnMapLookupElem.Call(), asm.JEq.Imm(asm.R0, 0, "end"), asm.StoreXAdd(asm.R0, asm.R7, c.size),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), asm.Return())
		v, err := Verify(&Program{Name: "p", Insns: ins}, w.env)
		if err != nil {
			t.Fatal(err)
		}
		code, err := v.Emit(w.site())
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(code, "redux.sync") {
			t.Errorf("%s: nothing is added up\n%s", c.name, code)
		}
		clear(w.mem[w.at[mapArray] : w.at[mapArray]+32])
		out := run(t, module(1, code), 45, w)
		var want [4]uint64
		for tid := range uint64(45) {
			x := tid
			if c.wide {
				x = tid*0x7654321*0x7654321 ^ tid
			}
			if tid != 7 {
				want[tid&uint64(c.mask)] += x
			}
		}
		for key, sum := range want {
			if c.size == asm.Word {
				sum &= 1<<32 - 1
			}
			if got := little(out[w.at[mapArray]+8*key:][:8]); got != sum {
				t.Errorf("%s: entry %d: %#x, want %#x", c.name, key, got, sum)
			}
		}
	}
}
