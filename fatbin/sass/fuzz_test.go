package sass

import "testing"

// Any word decodes to something whose operands can be put back.
func FuzzDecode(f *testing.F) {
	for _, file := range cubins(f) {
		arch, secs := readCubin(f, file)
		for _, code := range secs {
			for i, w := range Words(code) {
				if i%7 == 0 {
					f.Add(uint16(arch), w.Lo, w.Hi)
				}
			}
		}
	}
	f.Fuzz(func(t *testing.T, arch uint16, lo, hi uint64) {
		w := Word{lo, hi}
		in, ok := Decode(Arch(arch), w)
		if in.Word != w || ok != in.Known() {
			t.Fatalf("%v becomes %v", w, in.Word)
		}
		read, write := in.Uses()
		for _, o := range in.Operands(nil) {
			var s Set
			s.addOperand(&o)
			if op := w.Opcode(); op == opP2R || op == opR2P {
				s.P &= uint8(w.Bits(32, 7)) // those of its mask
			}
			if o.Read && intersect(&s, &read) != s || o.Write && intersect(&s, &write) != s {
				t.Fatalf("%v: operand %v is not among its registers", w, o)
			}
			if o.Len > 0 && in.Set(&o, o.Reg) != w {
				t.Fatalf("%v: operand %v can't be put back", w, o)
			}
		}
		if fl := in.Flow(); fl.HasTarget {
			if x, ok := in.withTarget(fl.Target); !ok || x != w {
				t.Fatalf("%v: target %d encodes as %v", w, fl.Target, x)
			}
		}
		_ = in.String()
		if w.WithControl(w.Control()) != w {
			t.Fatalf("%v: control half changes", w)
		}
	})
}

// Any code can be analyzed: what an instruction reads is live before it.
func FuzzAnalyze(f *testing.F) {
	for _, file := range cubins(f) {
		arch, secs := readCubin(f, file)
		for _, code := range secs {
			f.Add(uint16(arch), code)
		}
	}
	f.Fuzz(func(t *testing.T, arch uint16, code []byte) {
		if len(code) > 1<<14 {
			return
		}
		a, err := Analyze(&Func{Arch: Arch(arch), Code: Words(code), Registers: 32})
		if err != nil {
			t.Fatal(err)
		}
		for i := range a.Insts {
			read, _ := a.Insts[i].Uses()
			if x := intersect(&read, &a.LiveIn[i]); x != read {
				t.Fatalf("%d: reads %s, live is %s", i, read.String(), a.LiveIn[i].String())
			}
		}
		a.Check(100)
		a.Sites([]uint32{0, 16, 1 << 31})
	})
}

func BenchmarkAnalyze(b *testing.B) {
	arch, secs := readCubin(b, "testdata/kernels_sm_90.cubin")
	var funcs []*Func
	size := 0
	for _, code := range secs {
		funcs = append(funcs, &Func{Arch: arch, Code: Words(code)})
		size += len(code)
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		for _, f := range funcs {
			if _, err := Analyze(f); err != nil {
				b.Fatal(err)
			}
		}
	}
}
