package bpf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/ebpf/asm"

	"nvtrace/internal/need"
	"nvtrace/ptx"
)

// both runs ins interpreted and compiled, checks that they agree, and returns
// the memory and the report.
func both(t *testing.T, w *world, ins asm.Instructions) ([]byte, Result, *Verified) {
	t.Helper()
	p := &Program{Name: "p", Insns: ins}
	before := newWorld(0)
	copy(before.mem, w.mem)
	v, err := Verify(p, w.env)
	if err != nil {
		t.Fatal(err)
	}
	code, err := v.Emit(w.site())
	if err != nil {
		t.Fatal(err)
	}
	res, err := w.interpret(p)
	if err != nil {
		t.Fatal(err)
	}
	out := run(t, module(1, code), 1, before)
	if !bytes.Equal(out, w.mem) {
		s := &sample{p: p, want: w, res: res, code: code}
		t.Fatal(s.describe(out))
	}
	return out, res, v
}

// index puts a number that the analysis does not know into r3: what .data holds.
func index(w *world, v uint64) asm.Instructions {
	binary.LittleEndian.PutUint64(w.mem[w.at[mapData]+40:], v)
	return asm.Instructions{direct(asm.R3, mapData, 40), asm.LoadMem(asm.R3, asm.R3, 0, asm.DWord)}
}

// TestInlineChecks: what is not proven is tested when the program runs, and what
// fails the test ends the program before it does harm.
func TestInlineChecks(t *testing.T) {
	atIndex := asm.Instructions{direct(asm.R2, mapData, 0), asm.Add.Reg(asm.R2, asm.R3), asm.StoreImm(asm.R2, 0, 77, asm.Word)}
	stack := asm.Instructions{asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Reg(asm.R2, asm.R3), asm.StoreImm(asm.R2, -16, 7, asm.Byte), asm.LoadMem(asm.R0, asm.R10, -16, asm.DWord), asm.Return()}
	masked := asm.Instructions{asm.And.Imm(asm.R3, 7)}
	compared := asm.Instructions{asm.JGT.Imm(asm.R3, 56, "end")}
	signed := asm.Instructions{asm.JSGT.Imm(asm.R3, 56, "end"), asm.JSLT.Imm(asm.R3, 0, "end")}
	labelled := asm.Instructions{asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), asm.Return()}
	for _, c := range []struct {
		name   string
		body   asm.Instructions
		v      uint64
		early  bool
		checks int
	}{
		{"inside, unproven", cat(atIndex, end), 60, false, 1},
		{"just outside", cat(atIndex, end), 61, true, 1},
		{"far outside", cat(atIndex, end), 1 << 40, true, 1},
		{"before", cat(atIndex, end), ones, true, 1},
		{"masked", cat(masked, atIndex, end), ones, false, 0},
		{"compared", cat(compared, atIndex, labelled), 40, false, 0},
		{"compared, outside", cat(compared, atIndex, labelled), 1000, false, 0},
		{"compared as signed", cat(signed, atIndex, labelled), ones, false, 0},
		{"twice, one test", cat(atIndex, asm.Instructions{asm.LoadMem(asm.R0, asm.R2, 0, asm.Word)}, end), 8, false, 1},
		{"stack inside", stack, 8, false, 1},
		{"stack outside", stack, 16, true, 1},
		{"stack below", stack, neg(497), true, 1},
		{"atomic, aligned", cat(masked, asm.Instructions{direct(asm.R2, mapData, 0), asm.Add.Reg(asm.R2, asm.R3), asm.Mov.Imm(asm.R4, 1), asm.AddAtomic.Mem(asm.R2, asm.R4, asm.Word, 0)}, end), 4, false, 1},
		{"atomic, not aligned", cat(masked, asm.Instructions{direct(asm.R2, mapData, 0), asm.Add.Reg(asm.R2, asm.R3), asm.Mov.Imm(asm.R4, 1), asm.AddAtomic.Mem(asm.R2, asm.R4, asm.Word, 0)}, end), 5, true, 1},
		{"atomic, proven", cat(masked, asm.Instructions{asm.LSh.Imm(asm.R3, 2), direct(asm.R2, mapData, 0), asm.Add.Reg(asm.R2, asm.R3), asm.Mov.Imm(asm.R4, 1), asm.AddAtomic.Mem(asm.R2, asm.R4, asm.Word, 0)}, end), 3, false, 0},
		{"NULL not tested for, found", cat(asm.Instructions{asm.And.Imm(asm.R3, 3), asm.StoreMem(asm.R10, -4, asm.R3, asm.Word)}, lookupIn(mapArray)[1:], asm.Instructions{asm.StoreImm(asm.R0, 0, 5, asm.Word)}, end), 3, false, 1},
		{"NULL not tested for", cat(asm.Instructions{asm.StoreMem(asm.R10, -4, asm.R3, asm.Word)}, lookupIn(mapArray)[1:], asm.Instructions{asm.StoreImm(asm.R0, 0, 5, asm.Word)}, end), 4, true, 1},
		{"record held at an early end", cat(asm.Instructions{asm.Mov.Reg(asm.R6, asm.R3)}, reserve, asm.Instructions{
			asm.JNE.Imm(asm.R0, 0, "x"), asm.Return(), asm.Mov.Reg(asm.R7, asm.R0).WithSymbol("x"),
			asm.Mov.Reg(asm.R1, asm.R0), asm.Add.Reg(asm.R1, asm.R6), asm.StoreImm(asm.R1, 0, 9, asm.Byte),
			asm.Mov.Reg(asm.R1, asm.R7), asm.BuiltinFunc(132).Call(),
		}, end), 15, false, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(0)
			_, res, v := both(t, w, cat(index(w, c.v), c.body))
			if res.Early != c.early || v.Report().Checks != c.checks {
				t.Errorf("early %v (%s), %d checks; want %v, %d", res.Early, res.Why, v.Report().Checks, c.early, c.checks)
			}
		})
	}
}

// TestRecordsAreReleased: a record that is held when the program is ended goes
// back, one that was submitted does not.
func TestRecordsAreReleased(t *testing.T) {
	for _, c := range []struct{ at, submitted, released uint64 }{{3, 1, 0}, {16, 0, 1}} {
		w := newWorld(0)
		binary.LittleEndian.PutUint64(w.mem[w.at[mapData]+48:], 0)
		ins := cat(index(w, c.at), asm.Instructions{asm.Mov.Reg(asm.R6, asm.R3)}, reserve, asm.Instructions{
			asm.Mov.Reg(asm.R7, asm.R0), asm.Mov.Reg(asm.R1, asm.R0), asm.Add.Reg(asm.R1, asm.R6), asm.StoreImm(asm.R1, 0, 9, asm.Byte),
			asm.Mov.Reg(asm.R1, asm.R7),
		})
		// The NULL test is missing: arithmetic makes the check, and r7 must not
		// count as tested by it.
		ins = append(ins, asm.BuiltinFunc(132).Call(), asm.Mov.Imm(asm.R0, 0), asm.Return())
		v, err := Verify(&Program{Name: "p", Insns: ins}, w.env)
		if err != nil {
			t.Fatal(err)
		}
		code, err := v.Emit(w.site())
		if err != nil {
			t.Fatal(err)
		}
		out := run(t, module(1, code), 1, w)
		submitted := binary.LittleEndian.Uint32(out[w.at[mapData]+48:])
		released := binary.LittleEndian.Uint32(out[w.at[mapData]+52:])
		if uint64(submitted) != c.submitted || uint64(released) != c.released {
			t.Errorf("byte %d of 16: %d submitted, %d released; want %d, %d\n%s", c.at, submitted, released, c.submitted, c.released, code)
		}
	}
}

// TestLoops: which loops are proven, and that the others end for want of fuel.
func TestLoops(t *testing.T) {
	count := func(start int32, step asm.Instruction, test asm.Instruction) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Imm(asm.R0, 0), asm.Mov.Imm(asm.R6, start), asm.Add.Imm(asm.R0, 1).WithSymbol("l"), step, test, asm.Return(),
		}
	}
	top := asm.Instructions{
		asm.Mov.Imm(asm.R0, 0), asm.Mov.Imm(asm.R6, 0), asm.JGE.Imm(asm.R6, 10, "x").WithSymbol("l"), asm.Add.Imm(asm.R0, 1),
		asm.Add.Imm(asm.R6, 1), asm.Ja.Label("l"), asm.Return().WithSymbol("x"),
	}
	nested := asm.Instructions{
		asm.Mov.Imm(asm.R0, 0), asm.Mov.Imm(asm.R6, 7), asm.Mov.Imm(asm.R7, 5).WithSymbol("o"), asm.Add.Imm(asm.R0, 1).WithSymbol("i"),
		asm.Add.Imm(asm.R7, -1), asm.JNE.Imm(asm.R7, 0, "i"), asm.Add.Imm(asm.R6, -1), asm.JNE.Imm(asm.R6, 0, "o"), asm.Return(),
	}
	for _, c := range []struct {
		name           string
		ins            asm.Instructions
		proven, fueled int
		early          bool
	}{
		{"up to", count(0, asm.Add.Imm(asm.R6, 1), asm.JLT.Imm(asm.R6, 100, "l")), 1, 0, false},
		{"up to, equal", count(0, asm.Add.Imm(asm.R6, 3), asm.JNE.Imm(asm.R6, 300, "l")), 1, 0, false},
		{"up to, in 32 bits", count(0, asm.Add.Imm32(asm.R6, 1), asm.JSLT.Imm32(asm.R6, 100, "l")), 1, 0, false},
		{"down to", count(50, asm.Add.Imm(asm.R6, -1), asm.JNE.Imm(asm.R6, 0, "l")), 1, 0, false},
		{"down to, signed", count(50, asm.Sub.Imm(asm.R6, 7), asm.JSGT.Imm(asm.R6, 0, "l")), 1, 0, false},
		{"tested at its top", top, 1, 0, false},
		{"nested", nested, 2, 0, false},
		{"steps over the end", count(0, asm.Add.Imm(asm.R6, 3), asm.JNE.Imm(asm.R6, 100, "l")), 0, 1, true},
		{"never moves", count(0, asm.Add.Imm(asm.R6, 0), asm.JNE.Imm(asm.R6, 100, "l")), 0, 1, true},
		{"goes the other way", count(1, asm.Add.Imm(asm.R6, -1), asm.JLT.Imm(asm.R6, 100, "l")), 0, 1, false},
		{"wraps below", count(0, asm.Add.Imm(asm.R6, -1), asm.JGE.Imm(asm.R6, 5, "l")), 0, 1, true},
		{"too long to be proven", count(0, asm.Add.Imm(asm.R6, 1), asm.JNE.Imm(asm.R6, 1<<30, "l")), 0, 1, true},
		{"as far as it goes", count(0, asm.Add.Imm(asm.R6, 1), asm.JNE.Imm(asm.R6, -1, "l")), 0, 1, true},
		{"as far as it goes, down", count(-1, asm.Add.Imm(asm.R6, -1), asm.JNE.Imm(asm.R6, 0, "l")), 0, 1, true},
		{"multiplies", count(1, asm.Mul.Imm(asm.R6, 2), asm.JLT.Imm(asm.R6, 1<<20, "l")), 0, 1, false},
		{"for ever", asm.Instructions{asm.Mov.Imm(asm.R0, 1).WithSymbol("l"), asm.Ja.Label("l"), asm.Return()}, 0, 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(0)
			w.env.Fuel = 1000
			v, err := Verify(&Program{Name: "p", Insns: c.ins}, w.env)
			if err != nil {
				t.Fatal(err)
			}
			if r := v.Report(); r.ProvenLoops != c.proven || r.FueledLoops != c.fueled {
				t.Errorf("%d loops proven, %d with fuel; want %d, %d", r.ProvenLoops, r.FueledLoops, c.proven, c.fueled)
			}
			code, err := v.Emit(w.site())
			if err != nil {
				t.Fatal(err)
			}
			out := run(t, module(1, code), 1, newWorld(0))
			if got := out[worldEarly] == 1; got != c.early {
				t.Fatalf("ended early: %v\n%s", got, code)
			}
			if in, err := w.interpret(&Program{Name: "p", Insns: c.ins}); err != nil {
				t.Fatal(err)
			} else if got := binary.LittleEndian.Uint64(out); !c.early && got != in.R0 {
				t.Errorf("%d rounds, want %d", got, in.R0)
			}
		})
	}
}

// TestMayGoto: may_goto leaves the loop when the fuel is spent, and the program
// goes on.
func TestMayGoto(t *testing.T) {
	w := newWorld(0)
	w.env.Fuel = 500
	may := asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.JCOND), Offset: 2}
	ins := asm.Instructions{asm.Mov.Imm(asm.R0, 0), may, asm.Add.Imm(asm.R0, 1), raw(0x05, 0, 0, -3, 0), asm.Return()}
	v, err := Verify(&Program{Name: "p", Insns: ins}, w.env)
	if err != nil {
		t.Fatal(err)
	}
	code, err := v.Emit(w.site())
	if err != nil {
		t.Fatal(err)
	}
	out := run(t, module(1, code), 1, newWorld(0))
	if n := binary.LittleEndian.Uint64(out); out[worldEarly] != 0 || n < 100 || n > 500 {
		t.Errorf("%d rounds, early %d\n%s", n, out[worldEarly], code)
	}
}

// TestText: a context that is a string.
func TestText(t *testing.T) {
	fixed := asm.Instructions{asm.LoadMem(asm.R0, asm.R1, 4, asm.Word), asm.Return()}
	computed := asm.Instructions{asm.Add.Reg(asm.R1, asm.R3), asm.LoadMem(asm.R0, asm.R1, 0, asm.Byte), asm.Return()}
	printed := asm.Instructions{asm.BuiltinFunc(6).Call(), asm.Return()}
	output := asm.Instructions{asm.Mov.Reg(asm.R2, asm.R1), asm.Mov.Imm(asm.R1, 0), asm.Mov.Imm(asm.R3, 5), asm.BuiltinFunc(25).Call(), asm.Mov.Imm(asm.R0, 0), asm.Return()}
	for name, c := range map[string]struct {
		ins    asm.Instructions
		memory bool
	}{"fixed": {fixed, false}, "printed": {printed, false}, "output": {output, false}, "computed": {computed, true}} {
		w := newWorld(0)
		w.env.Context = &Context{Text: 32}
		p := &Program{Name: name, Insns: cat(index(w, 6), c.ins)}
		v, err := Verify(p, w.env)
		if err != nil {
			t.Fatal(err)
		}
		if v.Report().TextInMemory != c.memory {
			t.Errorf("%s: in memory: %v", name, v.Report().TextInMemory)
		}
		in := w.interpreter()
		in.Text = []byte("ld.global.u32")
		site := w.site()
		site.Text = in.Text
		before := newWorld(0)
		copy(before.mem, w.mem)
		copy(before.mem[w.at[mapWide]:], append(bytes.Clone(in.Text), make([]byte, 19)...))
		if c.memory {
			if _, err := v.Emit(site); err == nil {
				t.Error("the text's address is not asked for")
			}
			site.TextAddr = w.addr(mapWide, 0)
		}
		code, err := v.Emit(site)
		if err != nil {
			t.Fatal(err)
		}
		out := run(t, module(1, code), 1, before)
		res, err := in.Run(p)
		if err != nil {
			t.Fatal(err)
		}
		want := res.R0
		if name == "printed" {
			want = uint64(len(site.Text))
		}
		if got := binary.LittleEndian.Uint64(out); got != want {
			t.Errorf("%s: %#x, want %#x\n%s", name, got, want, code)
		}
	}
}

// TestFunctions: callees see their caller's stack through pointers, and have
// their own.
func TestFunctions(t *testing.T) {
	w := newWorld(0)
	_, res, v := both(t, w, asm.Instructions{
		asm.StoreImm(asm.R10, -8, 5, asm.Word), asm.StoreImm(asm.R10, -4, 6, asm.Word), asm.Mov.Imm(asm.R6, 100),
		asm.Mov.Reg(asm.R1, asm.R10), asm.Add.Imm(asm.R1, -8), asm.Call.Label("f"),
		asm.LoadMem(asm.R1, asm.R10, -8, asm.DWord), asm.Add.Reg(asm.R0, asm.R1), asm.Add.Reg(asm.R0, asm.R6), asm.Return(),
		asm.StoreImm(asm.R10, -8, 9, asm.Word).WithSymbol("f"), asm.Mov.Imm(asm.R6, 1), asm.LoadMem(asm.R0, asm.R1, 4, asm.Word),
		asm.StoreMem(asm.R1, 0, asm.R0, asm.Word), asm.LoadMem(asm.R2, asm.R10, -8, asm.DWord), asm.Add.Reg(asm.R0, asm.R2), asm.Return(),
	})
	if want := uint64(6+9) + (6<<32 | 6) + 100; res.R0 != want {
		t.Errorf("%#x, want %#x", res.R0, want)
	}
	if v.Report().LocalBytes != 0 {
		t.Error("the stack is in memory")
	}
}

// TestThreads: threads of a warp that go different ways do what each alone
// would, with and without reconvergence.
func TestThreads(t *testing.T) {
	ins := asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, 16, asm.Word), asm.Mov.Imm(asm.R0, 0), asm.Mov.Reg(asm.R7, asm.R6), asm.And.Imm(asm.R7, 7),
		asm.JEq.Imm(asm.R7, 0, "x"), asm.Add.Reg(asm.R0, asm.R6).WithSymbol("l"), asm.Sub.Imm(asm.R7, 1), asm.JNE.Imm(asm.R7, 0, "l"),
		asm.Return().WithSymbol("x"),
	}
	w := newWorld(0)
	v, err := Verify(&Program{Name: "p", Insns: ins}, w.env)
	if err != nil {
		t.Fatal(err)
	}
	for _, together := range []bool{false, true} {
		site := w.site()
		site.Reconverge = together
		site.Result = func(g *Gen, r0 ptx.Arg) error {
			at, tid := g.Reg(ptx.U64), g.Reg(ptx.U32)
			g.Mov(ptx.U32, tid, ptx.Name("%tid.x"))
			g.Cvt("", ptx.U64, ptx.U32, at, tid)
			g.Mad(ptx.U64, at, at, ptx.Imm(8), g.Address(Addr{Symbol: "nvm", Value: 256}))
			g.St("", ptx.SpaceGlobal, ptx.U64, ptx.Addr(at, 0), r0)
			return nil
		}
		code, err := v.Emit(site)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(code, "bar.warp.sync") != together {
			t.Errorf("reconverges: %v\n%s", !together, code)
		}
		out := run(t, module(1, code), 32, newWorld(0))
		for tid := range uint64(32) {
			if got := binary.LittleEndian.Uint64(out[256+8*tid:]); got != tid*(tid&7) {
				t.Errorf("thread %d: %d", tid, got)
			}
		}
	}
}

// TestMapUses: what is said of maps.
func TestMapUses(t *testing.T) {
	checked := asm.Instructions{asm.JEq.Imm(asm.R0, 0, "x"), asm.Mov.Imm(asm.R1, 1)}
	tail := asm.Instructions{asm.Mov.Imm(asm.R0, 0).WithSymbol("x"), asm.Return()}
	add := asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0)
	for _, c := range []struct {
		name    string
		body    asm.Instructions
		addOnly bool
	}{ // "for nobody": left out of code for GPUs, not of machine code for the host
		{"adds", asm.Instructions{add}, true},
		{"adds, fetching for nobody", asm.Instructions{asm.FetchAdd.Mem(asm.R0, asm.R1, asm.DWord, 0)}, true},
		{"adds and loads", asm.Instructions{add, asm.LoadMem(asm.R2, asm.R0, 0, asm.DWord), asm.StoreMem(asm.R10, -16, asm.R2, asm.DWord), asm.Mov.Imm(asm.R1, 0), asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -16), asm.Mov.Imm(asm.R3, 8), asm.BuiltinFunc(25).Call()}, false},
		{"adds; a load for nobody", asm.Instructions{add, asm.LoadMem(asm.R2, asm.R0, 0, asm.DWord)}, true},
		{"stores", asm.Instructions{add, asm.StoreImm(asm.R0, 0, 0, asm.Word)}, false},
		{"exclusive ors", asm.Instructions{add, asm.XorAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0)}, false},
		{"ors", asm.Instructions{add, asm.OrAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0)}, false},
		{"adds and looks at the sum", asm.Instructions{asm.FetchAdd.Mem(asm.R0, asm.R1, asm.DWord, 0), asm.JEq.Imm(asm.R1, 3, "x"), add}, false},
		{"only looks", nil, false},
		{"hands it to a helper", asm.Instructions{asm.Mov.Reg(asm.R2, asm.R0), asm.Mov.Imm(asm.R1, 0), asm.Mov.Imm(asm.R3, 8), asm.BuiltinFunc(25).Call()}, false},
	} {
		w := newWorld(0)
		w.env.Helpers[1].NeverNull = nil
		v, err := Verify(&Program{Name: c.name, Insns: cat(lookupIn(mapArray), checked, c.body, tail)}, w.env)
		if err != nil {
			t.Fatal(err)
		}
		u := &v.Report().Maps[mapArray]
		if u.AddOnly() != c.addOnly || !u.Used || !u.Lookups {
			t.Errorf("%s: %+v", c.name, u)
		}
		if c.addOnly && fmt.Sprint(u.Adds) != "[{0 8 8}]" {
			t.Errorf("%s: %+v", c.name, u.Adds)
		}
		if u.MergeOnly() != (c.addOnly || c.name == "ors") || c.name == "ors" && fmt.Sprint(u.Merges) != "[{0 {0 8 8}}]" {
			t.Errorf("%s: %+v", c.name, u)
		}
		if v.Report().Maps[mapWide].Used {
			t.Error("another map is used")
		}
		m, err := Assemble(&Program{Name: c.name, Insns: cat(lookupIn(mapArray), checked, c.body, tail)}, w.env)
		if err != nil {
			t.Fatal(err)
		}
		on := &m.Maps[mapArray]
		if on.MergeOnly() != on.AddOnly() && c.name != "ors" || c.name == "ors" && fmt.Sprint(on.Merges) != "[{0 {0 8 8}}]" {
			t.Errorf("%s, on the host: %+v", c.name, on)
		}
		if on.AddOnly() != (c.addOnly && !strings.Contains(c.name, "for nobody")) || !on.Used || !on.Lookups || m.Maps[mapWide].Used {
			t.Errorf("%s, on the host: %+v", c.name, m.Maps)
		}
		if c.name == "adds" && fmt.Sprint(on.Adds) != "[{0 8 8}]" {
			t.Errorf("%s, on the host: %+v", c.name, on.Adds)
		}
	}
}

// TestMachineUses: what code for GPUs does with maps, machine code does, too, for which nothing is
// left out.
func TestMachineUses(t *testing.T) {
	need.OneThread(t)
	n, used, added := 2000, 0, 0
	if testing.Short() {
		n = 300
	}
	for seed := range uint64(n) {
		p, w := newGenerator(seed).program(), newWorld(0)
		v, err := Verify(p, w.env)
		if err != nil {
			continue
		}
		m, err := Assemble(p, w.env)
		if err != nil {
			continue
		}
		for i := range v.Report().Maps {
			u, on := &v.Report().Maps[i], &m.Maps[i]
			if u.Used {
				used++
			}
			if u.Used && !on.Used || u.Lookups && !on.Lookups || u.Helpers && !on.Helpers || u.Loads && !on.Loads || u.Stores && !on.Stores ||
				u.Atomics && !on.Atomics || u.Strays && !on.Strays || len(u.Calls) > len(on.Calls) {
				t.Fatalf("seed %d, map %d: %+v, as machine code %+v", seed, i, u, on)
			}
			for _, x := range u.Adds {
				added++
				if !on.Atomics && !slices.ContainsFunc(on.Adds, func(y AddRange) bool { return y.Offset <= x.Offset && y.End >= x.End && y.Size == x.Size }) {
					t.Fatalf("seed %d, map %d: adds at %+v, as machine code at %+v", seed, i, x, on.Adds)
				}
			}
		}
	}
	if used < n/4 || added < n/100 {
		t.Errorf("of %d programs %d use maps, %d add to them: the generator has lost its way", n, used, added)
	}
}

// TestConcurrentEmit: one program is written at many sites at once, always the
// same.
func TestConcurrentEmit(t *testing.T) {
	w := newWorld(0)
	v, err := Verify(newGenerator(7).program(), w.env)
	if err != nil {
		t.Fatal(err)
	}
	want, err := v.Emit(w.site())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if got, err := v.Emit(w.site()); err != nil || got != want {
				t.Errorf("differs: %v", err)
			}
		})
	}
	wg.Wait()
}

// TestLoopNeverReached: a loop whose test is never come to is no loop.
func TestLoopNeverReached(t *testing.T) {
	ins := asm.Instructions{
		asm.Mov.Imm(asm.R0, 0), asm.Mov.Imm(asm.R6, 0), asm.Mov.Imm(asm.R7, 9),
		asm.JEq.Imm(asm.R0, 0, "x").WithSymbol("l"), asm.Add.Imm(asm.R6, 1), asm.JLT.Reg(asm.R6, asm.R7, "l"),
		asm.Return().WithSymbol("x"),
	}
	if _, err := Verify(&Program{Name: "p", Insns: ins}, newWorld(0).env); err != nil {
		t.Fatal(err)
	}
}

// nest is two loops that are proven, of outer and inner rounds.
func nest(outer, inner int32) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Imm(asm.R0, 0), asm.Mov.Imm(asm.R6, outer),
		asm.Mov.Imm(asm.R7, inner).WithSymbol("o").WithSource(lineAt{"/src/nest.bpf.c", "for (…)"}),
		asm.Add.Imm(asm.R0, 1).WithSymbol("i").WithSource(lineAt{"/src/nest.bpf.c", "n++"}), asm.Add.Imm(asm.R7, -1), asm.JNE.Imm(asm.R7, 0, "i"),
		asm.Add.Imm(asm.R6, -1), asm.JNE.Imm(asm.R6, 0, "o"), asm.Return(),
	}
}

// TestFuel: all loops together, proven or not, execute no more instructions than the
// fuel says; and the run's end is named.
func TestFuel(t *testing.T) {
	after := func(ins asm.Instructions) asm.Instructions { // one loop behind another
		second := asm.Instructions{
			asm.Mov.Imm(asm.R8, 5000), asm.Add.Imm(asm.R0, 1).WithSymbol("s"), asm.Add.Imm(asm.R8, -1), asm.JNE.Imm(asm.R8, 0, "s"), asm.Return(),
		}
		return cat(ins[:len(ins)-1], second)
	}
	for _, c := range []struct {
		name   string
		ins    asm.Instructions
		fuel   uint32
		early  bool
		proven int
	}{
		{"a million times sixty", nest(1_000_000, 60), 0, true, 0},
		{"ten times sixty", nest(10, 60), 0, false, 2},
		{"ten times sixty, with little", nest(10, 60), 1000, true, 0},
		{"as much as it takes", nest(10, 60), 2500, false, 2},
		{"two loops, each of which fits", after(nest(40, 100)), 20_000, true, 2},
		{"two loops that fit", after(nest(40, 100)), 40_000, false, 3},
		{"rounds that are not what is proven", cat(index(newWorld(0), 1), asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R3), asm.And.Imm(asm.R6, 0xffff), asm.Mov.Imm(asm.R0, 0), asm.Mov.Imm(asm.R5, 1),
			asm.Mov.Imm(asm.R7, 0).WithSymbol("o"), asm.Add.Imm(asm.R0, 1).WithSymbol("i"), asm.Add.Imm(asm.R7, 1), asm.JLT.Reg(asm.R7, asm.R6, "i"),
			asm.LSh.Imm(asm.R5, 1), asm.JLT.Imm(asm.R5, 1<<10, "o"), asm.Return(),
		}), 0, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(0)
			w.env.Fuel = c.fuel
			p := &Program{Name: "p", Insns: c.ins}
			v, err := Verify(p, w.env)
			if err != nil {
				t.Fatal(err)
			}
			if v.Report().ProvenLoops != c.proven {
				t.Errorf("%d loops are not counted, want %d", v.Report().ProvenLoops, c.proven)
			}
			code, err := v.Emit(w.site())
			if err != nil {
				t.Fatal(err)
			}
			out := run(t, module(1, code), 1, newWorld(0))
			if got := out[worldEarly] == 1; got != c.early {
				t.Fatalf("ended early: %v\n%s", got, code)
			}
			res, err := w.interpret(p)
			if err != nil || !c.early && (res.Early || res.R0 != binary.LittleEndian.Uint64(out)) {
				t.Errorf("%d, the interpreter %+v, %v", binary.LittleEndian.Uint64(out), res, err)
			}
			if err := sameCompiled(t, p, w.env); err != nil {
				t.Error(err)
			}
			for _, e := range v.Report().Ends {
				if e.Kind != EndLoop || strings.Contains(c.name, "times") && e.Where() != "nest.bpf.c:12" {
					t.Errorf("%v at %s", e.Kind, e.Where())
				}
			}
		})
	}
}

// TestPointerOrder: pointers into one object have the order of their addresses, also in
// front of it.
func TestPointerOrder(t *testing.T) {
	for _, c := range []struct {
		name string
		jump asm.JumpOp
		want uint64
	}{{"lower", asm.JLT, 1}, {"higher", asm.JGT, 0}, {"lower, signed", asm.JSLT, 1}} {
		for object, base := range map[string]asm.Register{"the context": asm.R1, "the stack": asm.R10} {
			_, res, _ := both(t, newWorld(0), asm.Instructions{
				asm.Mov.Reg(asm.R2, base), asm.Add.Imm(asm.R2, -600), asm.Mov.Imm(asm.R0, 1), asm.Mov.Reg(asm.R3, base), c.jump.Reg(asm.R2, asm.R3, "x"),
				asm.Mov.Imm(asm.R0, 0), asm.Return().WithSymbol("x"),
			})
			if res.R0 != c.want {
				t.Errorf("%s, %s: %d, want %d", c.name, object, res.R0, c.want)
			}
		}
	}
}
