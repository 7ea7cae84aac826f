package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/cilium/ebpf/asm"

	"nvtrace/internal/need"
)

// FuzzVerify: whatever bytes are taken for a program, it is refused with a
// reason or compiled into code that the PTX machine can read; in bounded time.
// What is accepted does nothing in the interpreter that Verify should refuse.
func FuzzVerify(f *testing.F) {
	for seed := range uint64(40) {
		p := newGenerator(seed).program()
		if b, ok := encode(p.Insns); ok {
			f.Add(b)
		}
	}
	if b, ok := encode(sometimesPointer); ok {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		ins, err := asm.AppendInstructions(nil, bytes.NewReader(data), binary.LittleEndian, "linux")
		if err != nil {
			return
		}
		w := newWorld(0)
		p := &Program{Name: "fuzzed", Insns: ins}
		v, err := Verify(p, w.env)
		if err != nil {
			var why *RefusedError
			if !errors.As(err, &why) || why.Reason == "" {
				t.Fatalf("no reason: %v", err)
			}
			return
		}
		code, err := v.Emit(w.site())
		if err != nil {
			t.Fatal(err)
		}
		before := newWorld(0)
		res, err := w.interpret(p)
		if err != nil {
			t.Fatalf("accepted, but %v\n%v", err, ins)
		}
		r := v.Report()
		if r.FueledLoops > 0 || res.Steps > 100_000 || hasMay(ins) {
			return // the two count differently
		}
		out := run(t, module(1, code), 1, before)
		if v.vague { // the code does not tell apart on which paths a number is returned
			copy(out[worldResult:worldResult+8], w.mem[worldResult:])
		}
		if !bytes.Equal(out, w.mem) && !nullArithmetic(res) {
			s := &sample{p: p, want: w, res: res, code: code}
			t.Fatal(s.describe(out))
		}
	})
}

// sometimesPointer returns a value's address or a number.
var sometimesPointer = asm.Instructions{
	asm.StoreImm(asm.RFP, -8, 99, asm.Word),
	asm.Mov.Reg(asm.R2, asm.RFP),
	asm.Add.Imm(asm.R2, -8),
	asm.LoadMapPtr(asm.R1, 2),
	asm.FnMapLookupElem.Call(),
	asm.JNE.Imm(asm.R0, 0, "out"),
	asm.Mov.Imm(asm.R0, 7),
	asm.Return().WithSymbol("out"),
}

func hasMay(ins asm.Instructions) bool {
	for i := range ins {
		if op := ins[i].OpCode; op.Class() == asm.JumpClass && op.JumpOp() == asm.JCOND {
			return true
		}
	}
	return false
}

// nullArithmetic reports whether the run ended for a reason that the compiled
// code sees at another instruction.
func nullArithmetic(r Result) bool { return r.Early && r.Why == nullPointerArithmetic }

// encode writes instructions as an object would have them.
func encode(ins asm.Instructions) ([]byte, bool) {
	at, offsets, symbols := 0, []int{}, map[string]int{}
	for i := range ins {
		if s := ins[i].Symbol(); s != "" {
			symbols[s] = at
		}
		offsets = append(offsets, at)
		at += int(ins[i].Width())
	}
	var out bytes.Buffer
	for i := range ins {
		c := ins[i]
		if ref := c.Reference(); ref != "" {
			off := symbols[ref] - offsets[i] - int(c.Width())
			if c.IsFunctionCall() {
				c.Constant = int64(off)
			} else {
				c.Offset = int16(off)
			}
		}
		if op := c.OpCode.AtomicOp(); op != asm.InvalidAtomic {
			c.Constant = int64(op >> 8) // Marshal takes it from there
		}
		if _, err := c.Marshal(&out, binary.LittleEndian); err != nil {
			return nil, false
		}
	}
	return out.Bytes(), true
}

// FuzzRandom is TestRandom with seeds of the fuzzer's.
func FuzzRandom(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) {
		s, err := newSample(t, seed, 0)
		if err != nil {
			return
		}
		if out := run(t, module(1, s.code), 1, newWorld(0)); !bytes.Equal(out, s.want.mem) {
			t.Fatal(s.describe(out))
		}
	})
}

// TestEncodedIsTheSame: programs with labels and with raw offsets are one.
func TestEncodedIsTheSame(t *testing.T) {
	need.OneThread(t)
	for seed := range uint64(200) {
		s, err := newSample(t, seed, 0)
		if err != nil {
			continue
		}
		b, ok := encode(s.p.Insns)
		if !ok {
			t.Fatal("not encoded")
		}
		ins, err := asm.AppendInstructions(nil, bytes.NewReader(b), binary.LittleEndian, "linux")
		if err != nil {
			t.Fatal(err)
		}
		v, err := Verify(&Program{Name: "raw", Insns: ins}, s.want.env)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		site := s.want.site()
		site.Prefix = "n"
		code, err := v.Emit(site)
		if err != nil || code != s.code {
			t.Fatalf("seed %d: other code: %v", seed, err)
		}
	}
}

// TestHugePrograms: a megabyte of instructions is refused or compiled, quickly.
func TestHugePrograms(t *testing.T) {
	need.OneThread(t)
	const n = 1 << 17
	shapes := map[string]func(i int) asm.Instruction{
		"moves": func(i int) asm.Instruction { return asm.Mov.Imm(asm.Register(i%10), int32(i)) },
		"jumps": func(int) asm.Instruction {
			return asm.Instruction{OpCode: asm.JEq.Imm(asm.R0, 0, "").OpCode, Offset: 1}
		},
		"back": func(int) asm.Instruction {
			return asm.Instruction{OpCode: asm.JEq.Imm(asm.R0, 0, "").OpCode, Offset: -2}
		},
		"stores": func(i int) asm.Instruction { return asm.StoreMem(asm.R10, int16(-1-i%512), asm.R0, asm.Byte) },
		"calls": func(int) asm.Instruction {
			return asm.Instruction{OpCode: asm.Call.Label("").OpCode, Src: asm.PseudoCall}
		},
		"far jumps": func(i int) asm.Instruction {
			return asm.Instruction{OpCode: asm.JEq.Imm(asm.R0, 0, "").OpCode, Offset: int16(i * 7919)}
		},
	}
	// Every second half jumps back to the first instruction, so that one loop has
	// thousands of ways out and back.
	jump := asm.JEq.Imm(asm.R0, 0, "").OpCode
	shapes["one loop"] = func(i int) asm.Instruction {
		if i < 8000 {
			return asm.Instruction{OpCode: jump, Offset: int16(min(16_375-i, math.MaxInt16))}
		}
		return asm.Instruction{OpCode: jump, Offset: int16(-i - 1)}
	}
	shapes["wide states"] = func(i int) asm.Instruction {
		if i < 500 {
			return asm.StoreMem(asm.R10, int16(-1-i%512), asm.R0, asm.Byte)
		}
		return asm.Instruction{OpCode: jump, Offset: int16(i % 2)}
	}
	for name, shape := range shapes {
		for _, size := range []int{n, DefaultMaxInsns - 2, 3000} {
			if testing.Short() && size == DefaultMaxInsns-2 {
				continue
			}
			ins := asm.Instructions{asm.LoadMem(asm.R0, asm.R1, 0, asm.DWord)}
			for i := range size - 3 {
				ins = append(ins, shape(i))
			}
			ins = append(ins, asm.Return(), asm.Return()) // two, for jumps over one
			start := time.Now()
			_, err := Verify(&Program{Name: name, Insns: ins}, newWorld(0).env)
			t.Logf("%s, %d instructions: %v, %v", name, size, time.Since(start).Round(time.Millisecond), err)
			if size == n && err == nil {
				t.Errorf("%s: %d instructions are accepted", name, size)
			}
		}
	}
}
