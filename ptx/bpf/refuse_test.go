package bpf

import (
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"
)

// raw is an instruction that asm has no words for.
func raw(op asm.OpCode, dst, src asm.Register, off int16, imm int64) asm.Instruction {
	return asm.Instruction{OpCode: op, Dst: dst, Src: src, Offset: off, Constant: imm}
}

// lookupIn looks up entry 0 of map m and leaves the result, unchecked, in r0.
func lookupIn(m int) asm.Instructions {
	return asm.Instructions{
		asm.StoreImm(asm.R10, -4, 0, asm.Word), asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, m), asm.FnMapLookupElem.Call(),
	}
}

func cat(parts ...asm.Instructions) (all asm.Instructions) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

var (
	unknown = asm.LoadMem(asm.R3, asm.R1, 0, asm.DWord) // a number of which nothing is known, from the context
	end     = asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}
	// checkedRecord moves what reserve returned to r6 and ends the program if it is NULL.
	checkedRecord = asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R0), asm.JNE.Imm(asm.R0, 0, "record"), asm.Return(), asm.Mov.Imm(asm.R9, 0).WithSymbol("record"),
	}
	reserve = asm.Instructions{asm.LoadMapPtr(asm.R1, mapWide), asm.Mov.Imm(asm.R2, 16), asm.BuiltinFunc(131).Call()}
)

// spilled has a helper write to where a pointer is on the stack, with a size in r2, which holds
// any number before.
func spilled(helper asm.BuiltinFunc, size asm.Instruction) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, 0, asm.DWord), size, asm.StoreMem(asm.R10, -8, asm.R10, asm.DWord), asm.Mov.Imm(asm.R3, 2),
		asm.Mov.Reg(asm.R1, asm.R10), asm.Add.Imm(asm.R1, -8), helper.Call(),
	}
}

// leak stores what is there then in a map.
var leak = cat(asm.Instructions{asm.LoadMem(asm.R3, asm.R10, -8, asm.DWord), direct(asm.R2, mapData, 0), asm.StoreMem(asm.R2, 0, asm.R3, asm.DWord)}, end)

// filled puts 64 bytes that are not 0 on the stack.
func filled() (list asm.Instructions) {
	for off := -64; off < 0; off += 4 {
		list = append(list, asm.StoreImm(asm.R10, int16(off), 0x61616161, asm.Word))
	}
	return list
}

// TestWrittenWhole: where a helper writes all of its bytes, what was there is gone.
func TestWrittenWhole(t *testing.T) {
	p := &Program{Name: "p", Insns: cat(spilled(4, asm.Mov.Imm(asm.R2, 8)), leak)}
	if _, err := Verify(p, newWorld(0).env); err != nil {
		t.Error(err)
	}
}

// TestRefused: what cannot be made safe is refused, with the instruction and
// the reason.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		ins  asm.Instructions
		at   int
		want string
	}{
		{"empty", nil, -1, "no instructions"},
		{"unset register", asm.Instructions{asm.Mov.Reg(asm.R0, asm.R2), asm.Return()}, 0, "reads r2, which was never written"},
		{"unset after a call", cat(lookupIn(0), asm.Instructions{asm.Mov.Reg(asm.R0, asm.R3), asm.Return()}), 5, "never written"},
		{"set on one way only", asm.Instructions{
			unknown, asm.JEq.Imm(asm.R3, 0, "j"), asm.Mov.Imm(asm.R4, 1), asm.Mov.Reg(asm.R0, asm.R4).WithSymbol("j"), asm.Return(),
		}, 3, "never written"},
		{"context past its end", asm.Instructions{asm.LoadMem(asm.R0, asm.R1, 20, asm.Word), asm.Return()}, 0, "no field"},
		{"context between fields", asm.Instructions{asm.LoadMem(asm.R0, asm.R1, 6, asm.Word), asm.Return()}, 0, "no field"},
		{"context at a computed offset", asm.Instructions{unknown, asm.Add.Reg(asm.R1, asm.R3), asm.LoadMem(asm.R0, asm.R1, 0, asm.Byte), asm.Return()}, 2, "computed offset"},
		{"context written", asm.Instructions{asm.StoreImm(asm.R1, 0, 0, asm.Byte), asm.Mov.Imm(asm.R0, 0), asm.Return()}, 0, "read-only"},
		{"a number followed", asm.Instructions{unknown, asm.LoadMem(asm.R0, asm.R3, 0, asm.DWord), asm.Return()}, 1, "which is a number"},
		{"NULL followed", cat(lookupIn(0), asm.Instructions{asm.JNE.Imm(asm.R0, 0, "x"), asm.LoadMem(asm.R0, asm.R0, 0, asm.DWord), asm.Return().WithSymbol("x")}), 6, "through NULL"},
		{"pointer truncated", asm.Instructions{asm.Mov.Reg32(asm.R0, asm.R10), asm.Return()}, 0, "as if it were a number"},
		{"pointer multiplied", asm.Instructions{asm.Mul.Imm(asm.R1, 2), asm.Mov.Imm(asm.R0, 0), asm.Return()}, 0, "as if it were a number"},
		{"pointers added", asm.Instructions{asm.Add.Reg(asm.R1, asm.R10), asm.Mov.Imm(asm.R0, 0), asm.Return()}, 0, "as if it were a number"},
		{"pointer stored", cat(asm.Instructions{direct(asm.R2, mapData, 0), asm.StoreMem(asm.R2, 0, asm.R10, asm.DWord)}, end), 1, "stores a pointer to the stack"},
		{"pointer swapped in", cat(asm.Instructions{direct(asm.R2, mapData, 0), asm.Xchg.Mem(asm.R2, asm.R1, asm.DWord, 0)}, end), 1, "by an atomic operation"},
		{"pointer compared", cat(asm.Instructions{unknown, asm.JEq.Reg(asm.R1, asm.R3, "x"), asm.Mov.Imm(asm.R0, 0).WithSymbol("x"), asm.Return()}), 1, "compares"},
		{"bits of a pointer tested", cat(asm.Instructions{asm.JSet.Reg(asm.R1, asm.R1, "x"), asm.Mov.Imm(asm.R0, 0).WithSymbol("x"), asm.Return()}), 0, "compares"},
		{"half a pointer", cat(asm.Instructions{asm.StoreMem(asm.R10, -8, asm.R1, asm.DWord), asm.LoadMem(asm.R0, asm.R10, -8, asm.Word), asm.Return()}), 1, "part of a pointer"},
		{"one of two objects", cat(asm.Instructions{
			unknown, asm.Mov.Reg(asm.R4, asm.R10), asm.JEq.Imm(asm.R3, 0, "j"), direct(asm.R4, mapData, 0),
			asm.LoadMem(asm.R0, asm.R4, -8, asm.Byte).WithSymbol("j"), asm.Return(),
		}), 4, "different things"},
		{"above the stack", asm.Instructions{asm.LoadMem(asm.R0, asm.R10, 0, asm.Byte), asm.Return()}, 0, "of the stack"},
		{"below the stack", asm.Instructions{asm.LoadMem(asm.R0, asm.R10, -513, asm.Byte), asm.Return()}, 0, "of the stack"},
		{"past a value", cat(lookupIn(0), asm.Instructions{asm.JNE.Imm(asm.R0, 0, "x"), asm.Return(), asm.LoadMem(asm.R0, asm.R0, 8, asm.Byte).WithSymbol("x"), asm.Return()}), 7, "which has 8"},
		{"read-only data", cat(asm.Instructions{direct(asm.R2, mapRodata, 0), asm.StoreImm(asm.R2, 0, 1, asm.Byte)}, end), 1, "read-only"},
		{"address without lookup", cat(asm.Instructions{direct(asm.R2, mapArray, 0)}, end), 0, "takes the address"},
		{"no such map", cat(asm.Instructions{asm.LoadMapPtr(asm.R1, 99)}, end), 0, "not defined"},
		{"map followed", asm.Instructions{asm.LoadMapPtr(asm.R1, 0), asm.LoadMem(asm.R0, asm.R1, 0, asm.Byte), asm.Return()}, 1, "through a map"},
		{"unknown helper", asm.Instructions{asm.BuiltinFunc(999).Call(), asm.Return()}, 0, "helper 999"},
		{"tail call", asm.Instructions{asm.FnTailCall.Call(), asm.Return()}, 0, "a tail call"},
		{"kernel function", asm.Instructions{raw(asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), 0, asm.PseudoKfuncCall, 0, 7), asm.Return()}, 0, "Linux kernel"},
		{"indirect call", asm.Instructions{raw(0x8d, 0, 0, 0, 1), asm.Return()}, 0, "indirect call"},
		{"callback", asm.Instructions{raw(asm.LoadImmOp(asm.DWord), 1, asm.PseudoFunc, 0, 1), asm.Return()}, 0, "address of a function"},
		{"packet", asm.Instructions{asm.LoadAbs(0, asm.Byte), asm.Return()}, 0, "network packet"},
		{"kernel type", asm.Instructions{raw(asm.LoadImmOp(asm.DWord), 1, 3, 0, 1), asm.Return()}, 0, "kind of address"},
		{"recursion", asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Call.Label("f"), asm.Return(), asm.Call.Label("f").WithSymbol("f"), asm.Return()}, 3, "calls itself"},
		{"calls what is not there", asm.Instructions{asm.Call.Label("g"), asm.Return()}, 0, "does not define"},
		{"no end", asm.Instructions{asm.Mov.Imm(asm.R0, 0)}, 0, "none behind it"},
		{"jump past the end", asm.Instructions{raw(0x05, 0, 0, 1, 0), asm.Return()}, 0, "no instruction"},
		{"jump into a constant", asm.Instructions{raw(0x05, 0, 0, 1, 0), asm.LoadImm(asm.R0, 1, asm.DWord), asm.Return()}, 0, "no instruction"},
		{"jump out of the function", asm.Instructions{asm.Call.Label("f"), asm.Return(), raw(0x05, 0, 0, -2, 0).WithSymbol("f"), asm.Return()}, 2, "out of its function"},
		{"r10 written", cat(asm.Instructions{asm.Add.Imm(asm.R10, 1)}, end), 0, "r10 is read-only"},
		{"r11", cat(asm.Instructions{asm.Mov.Imm(11, 1)}, end), 0, "above r10"},
		{"unknown opcode", cat(asm.Instructions{raw(0xe7, 0, 0, 0, 0)}, end), 0, "opcode 0xe7"},
		{"atomic on a byte", cat(asm.Instructions{direct(asm.R2, mapData, 0), asm.Mov.Imm(asm.R3, 1), raw(asm.OpCode(asm.StXClass)|asm.OpCode(asm.AtomicMode)|asm.OpCode(asm.Byte), asm.R2, asm.R3, 0, 0)}, end), 2, "1 bytes"},
		{"atomic across words", cat(asm.Instructions{direct(asm.R2, mapData, 4), asm.Mov.Imm(asm.R3, 1), asm.AddAtomic.Mem(asm.R2, asm.R3, asm.DWord, 0)}, end), 2, "no multiple of 8"},
		{"argument is no map", cat(asm.Instructions{asm.Mov.Imm(asm.R1, 0), asm.Mov.Reg(asm.R2, asm.R10), asm.FnMapLookupElem.Call()}, end), 2, "not a map"},
		{"key above the stack", cat(asm.Instructions{asm.LoadMapPtr(asm.R1, 0), asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -3), asm.FnMapLookupElem.Call()}, end), 3, "4 bytes at offset 509 of the stack"},
		{"key with a pointer", cat(asm.Instructions{
			asm.StoreMem(asm.R10, -8, asm.R1, asm.DWord), asm.LoadMapPtr(asm.R1, 0), asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -8), asm.FnMapLookupElem.Call(),
		}, end), 4, "has a pointer in it"},
		{"pointer left by a helper that writes a part", cat(spilled(45, asm.Mov.Imm(asm.R2, 8)), leak), 9, "stores a register that holds different things"},
		{"pointer left by a size that varies", cat(spilled(4, asm.And.Imm(asm.R2, 8)), leak), 9, "stores a register that holds different things"},
		{"text under what is written", cat(asm.Instructions{
			asm.StoreImm(asm.R10, -4, 0x6261, asm.Word), asm.Mov.Reg(asm.R1, asm.R10), asm.Add.Imm(asm.R1, -16), asm.Mov.Imm(asm.R2, 13), asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, -4),
			asm.Mov.Imm(asm.R4, 0), asm.Mov.Imm(asm.R5, 0), asm.BuiltinFunc(165).Call(),
		}, end), 8, "writes over the text in argument 3"},
		{"text without an end", cat(filled(), asm.Instructions{asm.Mov.Reg(asm.R1, asm.R10), asm.Add.Imm(asm.R1, -64), asm.BuiltinFunc(6).Call()}, end), 18, "not known before"},
		{"pointer as number", cat(asm.Instructions{asm.Mov.Reg(asm.R2, asm.R1), asm.BuiltinFunc(5).Call()}, end), 1, "not a number"},
		{"size not constant", cat(asm.Instructions{unknown, asm.Mov.Imm(asm.R1, 0), asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -8), asm.BuiltinFunc(25).Call()}, end), 4, "no bound"},
		{"unknown text", cat(asm.Instructions{unknown, asm.StoreMem(asm.R10, -8, asm.R3, asm.DWord), asm.Mov.Reg(asm.R1, asm.R10), asm.Add.Imm(asm.R1, -8), asm.BuiltinFunc(6).Call()}, end), 4, "not known before"},
		{"record kept", cat(reserve, asm.Instructions{asm.Return()}), 3, "not given back"},
		{"record kept at the thread's end", cat(reserve, asm.Instructions{asm.BuiltinFunc(507).Call()}, end), 3, "not given back"},
		{"record given back twice", cat(reserve, asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R0), asm.JNE.Imm(asm.R0, 0, "x"), asm.Return(), asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("x"), asm.BuiltinFunc(132).Call(),
			asm.Mov.Reg(asm.R1, asm.R6), asm.BuiltinFunc(132).Call(),
		}, end), 9, "not a record"},
		{"record given back by another address", cat(reserve, checkedRecord, asm.Instructions{
			asm.Add.Imm(asm.R6, 8), asm.Mov.Reg(asm.R1, asm.R6), asm.BuiltinFunc(132).Call(),
		}, end), 9, "not to its first byte"},
		{"record given back by an address moved twice", cat(reserve, checkedRecord, asm.Instructions{
			asm.Add.Imm(asm.R6, 8), asm.Add.Imm(asm.R6, 8), asm.Mov.Reg(asm.R1, asm.R6), asm.BuiltinFunc(132).Call(),
		}, end), 10, "not to its first byte"},
		{"record given back by an address that was computed", cat(asm.Instructions{unknown, asm.Mov.Reg(asm.R7, asm.R3)}, reserve, checkedRecord, asm.Instructions{
			asm.Add.Reg(asm.R6, asm.R7), asm.Add.Reg(asm.R6, asm.R7), asm.Mov.Reg(asm.R1, asm.R6), asm.BuiltinFunc(132).Call(),
		}, end), 12, "not to its first byte"},
		{"record used by another address after it was given back", cat(reserve, checkedRecord, asm.Instructions{
			asm.Mov.Reg(asm.R7, asm.R6), asm.Add.Imm(asm.R7, 8), asm.Mov.Reg(asm.R1, asm.R6), asm.BuiltinFunc(132).Call(), asm.StoreImm(asm.R7, 0, 0, asm.Byte),
		}, end), 11, "different things"},
		{"atomic with what was never written", cat(asm.Instructions{direct(asm.R2, mapData, 0), asm.AddAtomic.Mem(asm.R2, asm.R0, asm.DWord, 0)}, end), 1, "reads r0, which was never written"},
		{"atomic with a pointer in r0", cat(asm.Instructions{direct(asm.R2, mapData, 0), asm.Mov.Reg(asm.R0, asm.R2), asm.AddAtomic.Mem(asm.R2, asm.R0, asm.DWord, 0)}, end), 2, "by an atomic operation"},
		{"comparing exchange with a pointer in r0", cat(asm.Instructions{direct(asm.R2, mapData, 0), asm.Mov.Reg(asm.R0, asm.R2), asm.Mov.Imm(asm.R3, 0), asm.CmpXchg.Mem(asm.R2, asm.R3, asm.DWord, 0)}, end), 3, "by an atomic operation"},
		{"record or NULL, kept on the stack, after it was given back", cat(asm.Instructions{unknown, asm.Mov.Reg(asm.R7, asm.R3)}, reserve, checkedRecord, asm.Instructions{
			asm.JEq.Imm(asm.R7, 0, "j"), asm.StoreMem(asm.R10, -8, asm.R6, asm.DWord),
			asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("j"), asm.BuiltinFunc(132).Call(),
			asm.LoadMem(asm.R0, asm.R10, -8, asm.DWord), asm.JEq.Imm(asm.R0, 0, "x"), asm.StoreImm(asm.R0, 0, 0, asm.Byte), asm.Mov.Imm(asm.R0, 0).WithSymbol("x"), asm.Return(),
		}), -2, "different things"},
		{"record used after", cat(reserve, asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R0), asm.JNE.Imm(asm.R0, 0, "x"), asm.Return(), asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("x"), asm.BuiltinFunc(132).Call(),
			asm.StoreImm(asm.R6, 0, 0, asm.Byte),
		}, end), 8, "different things"},
		{"record in a loop", cat(asm.Instructions{asm.Mov.Imm(asm.R7, 3)}, asm.Instructions{asm.LoadMapPtr(asm.R1, mapWide).WithSymbol("l"), asm.Mov.Imm(asm.R2, 16), asm.BuiltinFunc(131).Call(), asm.Sub.Imm(asm.R7, 1), asm.JNE.Imm(asm.R7, 0, "l"), asm.Return()}), -2, "record"},
		{"callee's stack", cat(asm.Instructions{asm.Call.Label("f"), asm.LoadMem(asm.R0, asm.R0, -8, asm.Byte), asm.Return(), asm.Mov.Reg(asm.R0, asm.R10).WithSymbol("f"), asm.Return()}), 1, "different things"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for i := range c.ins {
				c.ins[i] = c.ins[i].WithSource(asm.Comment("line of " + c.name))
			}
			w := newWorld(0)
			w.env.Helpers[1].NeverNull = nil
			_, err := Verify(&Program{Name: "p", Insns: c.ins}, w.env)
			var why *RefusedError
			if !errors.As(err, &why) {
				t.Fatalf("not refused: %v\n%v", err, c.ins)
			}
			if !strings.Contains(why.Reason, c.want) || c.at != -2 && why.Insn != c.at {
				t.Errorf("instruction %d: %v; want %d: %s", why.Insn, err, c.at, c.want)
			}
			if c.at >= 0 && (why.Source != "line of "+c.name || why.Text == "" || !strings.Contains(err.Error(), why.Source)) {
				t.Errorf("without the source line: %+v", why)
			}
		})
	}
}

// lineAt is a line of a source file, as BTF has it.
type lineAt struct{ file, text string }

func (l lineAt) String() string   { return l.text }
func (l lineAt) FileName() string { return l.file }
func (lineAt) LineNumber() uint32 { return 12 }

// TestRefusedSource: a compiler names a line at its first instruction only, and the
// line before a function is not one of the function's.
func TestRefusedSource(t *testing.T) {
	w := newWorld(0)
	main := asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Call.Label("f"), asm.Return()}
	main[0] = main[0].WithSource(lineAt{"/src/probe.bpf.c", "  here();"})
	callee := asm.Instructions{asm.Mov.Imm(asm.R0, 0).WithSymbol("f"), asm.BuiltinFunc(4711).Call(), asm.Return()}
	for _, c := range []struct {
		name                     string
		insns                    asm.Instructions
		source, position, suffix string
	}{
		{"in the program", cat(asm.Instructions{main[0], asm.BuiltinFunc(4711).Call()}, end), "  here();", "probe.bpf.c:12", " [probe.bpf.c:12: here();]"},
		{"in a function without lines", cat(main, callee), "", "", "and where each can be called"},
	} {
		_, err := Verify(&Program{Name: "p", Insns: c.insns}, w.env)
		var why *RefusedError
		if !errors.As(err, &why) {
			t.Fatalf("%s: not refused: %v", c.name, err)
		}
		if why.Source != c.source || why.Position != c.position || !strings.HasSuffix(err.Error(), c.suffix) {
			t.Errorf("%s: %v; source %q at %q, want %q at %q", c.name, err, why.Source, why.Position, c.source, c.position)
		}
	}
}

// TestNoContext: without a context r1 can be passed on, and nothing else.
func TestNoContext(t *testing.T) {
	w := newWorld(0)
	w.env.Context = nil
	ok := cat(asm.Instructions{asm.StoreImm(asm.R10, -8, 7, asm.Word), asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -8), asm.Mov.Imm(asm.R3, 4), asm.BuiltinFunc(25).Call()}, end)
	if _, err := Verify(&Program{Name: "p", Insns: ok}, w.env); err != nil {
		t.Error(err)
	}
	_, err := Verify(&Program{Name: "p", Insns: asm.Instructions{asm.LoadMem(asm.R0, asm.R1, 0, asm.DWord), asm.Return()}}, w.env)
	if err == nil || !strings.Contains(err.Error(), "has none") {
		t.Error(err)
	}
}

// TestHelperHints: a helper that is not allowed says how it could be.
func TestHelperHints(t *testing.T) {
	w := newWorld(0)
	w.env.Helpers[507].Refuse, w.env.Helpers[507].Hint = "ends the thread", "allow it with --allow-exit"
	_, err := Verify(&Program{Name: "p", Insns: asm.Instructions{asm.BuiltinFunc(507).Call(), asm.Return()}}, w.env)
	if err == nil || !strings.Contains(err.Error(), "ends the thread; allow it with --allow-exit") {
		t.Error(err)
	}
	w.env.Helpers[1].Check = func(c *CallInfo) error {
		if c.Map != 0 || c.Consts[4].Known {
			t.Errorf("%+v", c)
		}
		return errors.New("not this map")
	}
	_, err = Verify(&Program{Name: "p", Insns: cat(lookupIn(0), end)}, w.env)
	if err == nil || !strings.Contains(err.Error(), "lookup: not this map") {
		t.Error(err)
	}
}

// TestInnerRefused: maps of maps are the host's, and what a lookup in one gives may be NULL.
func TestInnerRefused(t *testing.T) {
	w := newWorld(0)
	w.env.Maps[mapArray].Inner = mapWide + 1
	p := &Program{Name: "p", Insns: cat(lookupIn(mapArray), asm.Instructions{asm.Mov.Reg(asm.R1, asm.R0), asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -4), asm.FnMapLookupElem.Call()}, end)}
	_, err := Verify(p, w.env)
	if why, ok := errors.AsType[*RefusedError](err); !ok || why.Insn != 3 || !strings.Contains(why.Error(), "on the host only") {
		t.Error(err)
	}
	_, err = Assemble(p, w.env)
	if why, ok := errors.AsType[*RefusedError](err); !ok || why.Insn != 8 || !strings.Contains(why.Error(), "may be NULL") {
		t.Error(err)
	}
}
