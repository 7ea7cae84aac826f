package sass

import (
	"slices"
	"testing"
)

// Words of sm_90 from ptxas, put together by hand below.
var (
	wordLDG  = Word{0x0000000402007981, 0x000ea4000c1e1900} // LDG.E R0, desc[UR4][R2.64], scoreboard 2
	wordIADD = Word{0x0000000600057c10, 0x004fca000fffe0ff} // IADD3 R5, R0, UR6, RZ, waits for 2
	wordSTG  = Word{0x0000000502007986, 0x000fe2000c101904} // STG.E desc[UR4][R2.64], R5, no scoreboard
)

func control(w Word, set func(*Control)) Word {
	c := w.Control()
	set(&c)
	return w.WithControl(c)
}

// Each hazard that a splice can make is found, and what ptxas writes is not one.
func TestPlanted(t *testing.T) {
	wait := func(mask uint8) func(*Control) { return func(c *Control) { c.Wait = mask } }
	stall := func(n uint8) func(*Control) { return func(c *Control) { c.Stall = n } }
	bra := func(d int64) Word {
		w, ok := BRA(90, d)
		if !ok {
			t.Fatal("no BRA")
		}
		return w
	}
	for _, tc := range []struct {
		name string
		code []Word
		regs int
		want []Hazard
	}{
		{"as ptxas wrote it", []Word{wordLDG, wordIADD, wordSTG, exit()}, 8, nil},
		{"a load's result is read without waiting", []Word{wordLDG, control(wordIADD, wait(0)), wordSTG, exit()}, 0, []Hazard{HazardRead}},
		{"a load's result is read after waiting for another scoreboard", []Word{wordLDG, control(wordIADD, wait(1)), wordSTG, exit()}, 0, []Hazard{HazardRead}},
		{"a load's destination is written before it arrives", []Word{wordLDG, MOVImm(0, 1), exit()}, 0, []Hazard{HazardWrite}},
		{"a load's address is written before it is read", []Word{wordLDG, MOVImm(3, 1), exit()}, 0, []Hazard{HazardInFlight}},
		{"a store's data is written, which no scoreboard tells of", []Word{wordSTG, MOVImm(5, 1), exit()}, 0, []Hazard{HazardInFlight}},
		{"a store's data is written, its read barrier not waited for", []Word{control(wordSTG, func(c *Control) { c.ReadBar = 5 }), MOVImm(5, 1), exit()}, 0, []Hazard{HazardInFlight}},
		{"a store's data is written after its read barrier", []Word{control(wordSTG, func(c *Control) { c.ReadBar, c.Stall = 5, 2 }), control(MOVImm(5, 1), wait(1<<5)), exit()}, 0, nil},
		{"the hazard is behind a jump", []Word{wordLDG, bra(16), NOP(), control(wordIADD, wait(0)), exit()}, 0, []Hazard{HazardRead}},
		{"a wait before the jump is enough", []Word{wordLDG, control(bra(16), wait(1<<2)), NOP(), control(wordIADD, wait(0)), exit()}, 0, nil},
		{"the wait is on one of two ways", []Word{wordLDG, bra(16).Guarded(0, false), control(NOP(), wait(1<<2)), control(wordIADD, wait(0)), exit()}, 0, []Hazard{HazardRead}},
		{"a sum is stored before it is there", []Word{control(wordIADD, stall(1)), wordSTG, exit()}, 0, []Hazard{HazardStall}},
		{"a sum is stored before it is there, a jump between", []Word{control(wordIADD, stall(1)), control(bra(0), stall(1)), wordSTG, exit()}, 0, []Hazard{HazardStall}},
		{"a loaded value without a scoreboard", []Word{control(wordLDG, func(c *Control) { c.WriteBar = NoBar; c.Stall = 15 }), wordIADD, exit()}, 0, []Hazard{HazardRead}},
		{"predicates are read back before they are set", []Word{control(R2P(5, 0x7f), stall(1)), exit().Guarded(1, false), exit()}, 0, []Hazard{HazardStall}},
		{"an operand is kept across a jump", []Word{control(wordIADD, func(c *Control) { c.Reuse = 1 }), bra(0), wordSTG, exit()}, 0, []Hazard{HazardReuse}},
		{"a register that the kernel lacks", []Word{MOVImm(8, 1), exit()}, 8, []Hazard{HazardRange}},
		{"a read barrier is waited for before it is busy", []Word{control(wordSTG, func(c *Control) { c.ReadBar, c.Stall = 5, 1 }), control(MOVImm(5, 1), wait(1<<5)), exit()}, 0, []Hazard{HazardBoard}},
	} {
		found, err := check(&Func{Arch: 90, Code: tc.code, Registers: tc.regs, Woven: func(i int) bool { return i > 0 }})
		if err != nil {
			t.Fatal(err)
		}
		var got []Hazard
		for _, f := range found {
			got = append(got, f.Hazard)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: found %v, want %v", tc.name, found, tc.want)
		}
	}
}

// What compilers do and no splice does: instructions that exclude each other, waits for a
// part of a scoreboard, units that keep an order, numbers of registers that change.
func TestCompilers(t *testing.T) {
	wait := func(mask uint8) func(*Control) { return func(c *Control) { c.Wait = mask } }
	early := control(wordIADD, wait(0)) // reads R0
	depbar := func(board uint8, most uint64) Word {
		return control(Word{Lo: opDEPBAR | guardAlways<<12}.SetBits(depbarLE, 1, 1).SetBits(depbarBoard, 3, uint64(board)).SetBits(depbarMost, 6, most), func(c *Control) {
			*c = Control{Stall: 4, WriteBar: NoBar, ReadBar: NoBar}
		})
	}
	setp := Word{0x000000040600720c, 0x000fda0003f06070} // ISETP.GE.U32.AND P0, PT, R6, R4, PT
	lds := func(reg uint64, board uint8) Word {
		return control(Word{0x0000000005007984, 0x000ea20000000800}.SetBits(16, 8, reg), func(c *Control) { c.WriteBar, c.Stall = board, 2 })
	}
	meet, ok := BSSY(90, 0, 2*WordSize)
	again, ok2 := BRA(90, -3*WordSize)
	if !ok || !ok2 {
		t.Fatal("no BSSY or BRA")
	}
	other := wordLDG.Control()
	other.WriteBar = 3
	exclusive := control(wordIADD, wait(1<<2)).Guarded(0, false)
	convert := Word{0x0000000400027d12, 0x000e240008201c00} // I2F.F64 R2, UR4, of scoreboard 0
	maxreg := Word{0x000000e8000079c8, 0x000e2200080e0500}  // USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xe8
	for _, tc := range []struct {
		name string
		code []Word
		want []Hazard
	}{
		{"the load and what reads its result exclude each other", []Word{wordLDG.Guarded(0, true), early.Guarded(0, false), exit()}, nil},
		{"what is waited for excludes nothing", []Word{wordLDG, wordLDG.Guarded(0, true).WithControl(other), exclusive, exit()}, nil},
		{"one of two is not waited for", []Word{wordLDG, wordLDG.Guarded(0, true).WithControl(other), early.Guarded(0, false), exit()}, []Hazard{HazardRead}},
		{"conversions come in order", []Word{convert, convert, control(exit(), wait(0x3f))}, nil},
		{"they do, threads meet later", []Word{wordLDG.Guarded(0, true), meet, early.Guarded(0, false), exit(), exit()}, nil},
		{"a jump comes between them", []Word{wordLDG.Guarded(0, true), NOP(), early.Guarded(0, false), again.Guarded(1, false), exit()}, []Hazard{HazardRead}},
		{"they don't", []Word{wordLDG.Guarded(0, true), early.Guarded(0, true), exit()}, []Hazard{HazardRead}},
		{"they depend on different predicates", []Word{wordLDG.Guarded(0, true), early.Guarded(1, false), exit()}, []Hazard{HazardRead}},
		{"the predicate changes between", []Word{wordLDG.Guarded(0, true), setp, early.Guarded(0, false), exit()}, []Hazard{HazardRead}},
		{"a load before has no guard", []Word{wordLDG, wordLDG.Guarded(0, true), early.Guarded(0, false), exit()}, []Hazard{HazardRead}},
		{"all but one of a scoreboard", []Word{wordLDG, depbar(2, 1), early, exit()}, nil},
		{"all of a scoreboard", []Word{wordLDG, depbar(2, 0), early, exit()}, nil},
		{"of another scoreboard", []Word{wordLDG, depbar(3, 0), early, exit()}, []Hazard{HazardRead}},
		{"a load behind the wait", []Word{depbar(2, 1), wordLDG, early, exit()}, []Hazard{HazardRead}},
		{"loads from shared memory come in order", []Word{lds(8, 2), lds(8, 1), control(exit(), wait(0x3f))}, nil},
		{"a sum is written before a load from shared memory comes", []Word{lds(8, 2), MOVImm(8, 1), control(exit(), wait(0x3f))}, []Hazard{HazardWrite}},
		{"a register that the kernel gets later", []Word{maxreg, MOVImm(200, 1), exit()}, nil},
		{"a register that it never gets", []Word{maxreg, MOVImm(233, 1), exit()}, []Hazard{HazardRange}},
	} {
		found, err := check(&Func{Arch: 90, Code: tc.code, Registers: 168})
		if err != nil {
			t.Fatal(err)
		}
		var got []Hazard
		for _, f := range found {
			got = append(got, f.Hazard)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: found %v, want %v", tc.name, found, tc.want)
		}
	}
}

// What callers have on their way is on its way in a function until an instruction there uses
// the registers.
func TestCallersBegan(t *testing.T) {
	const function = 3
	call := Inst{Word: plain(opCALLRel, guardAlways<<(87-64)), Arch: 90}
	to, _ := call.withTarget((function - 2) * WordSize)
	back, ok := RETRel(90, 20, -7*WordSize)
	if !ok {
		t.Fatal("no RET.REL")
	}
	tells := control(wordSTG, func(c *Control) { c.ReadBar, c.Stall = 0, 2 })
	// The store at 0 tells nobody when it has read R2, R3 and R5.
	code := []Word{wordSTG, to, exit(), NOP(), tells, NOP(), MOVImm(5, 1).WithControl(Control{Stall: 5, WriteBar: NoBar, ReadBar: NoBar, Wait: 1}), NOP(), back}
	w, err := NewWeaver(&Func{Arch: 90, Code: code}, &KernelFacts{Registers: 24})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		at   int
		want string
	}{{function, "R2-R3,R5"}, {function + 2, "R2-R3,R5"}, {function + 4, "R2-R3"}} {
		if got := w.a.PendRead[tc.at].String(); got != tc.want {
			t.Errorf("%d: to be read are %s, want %s", tc.at, got, tc.want)
		}
		// To wait for the scoreboard of the function's own store does not help.
		busy, _ := w.silent(tc.at)
		if busy.Minus(&w.never); busy.String() != tc.want {
			t.Errorf("%d: busy are %s, want %s", tc.at, busy.String(), tc.want)
		}
	}
}

// Loads of matrices that only tell when their operands are read have written when a later one has,
// as those that tell nothing: here those to R24 and R28, behind the one to R32.
func TestResultsUntold(t *testing.T) {
	load := func(dst uint8, set func(*Control)) Word {
		w := Word{0x000000000800783b, 0x000fe20000000200}.SetBits(16, 8, uint64(dst)) // LDSM.16.M88.4 R, [R8]
		return control(w, func(c *Control) { c.ReadBar, c.WriteBar, c.Wait = NoBar, NoBar, 0; set(c) })
	}
	waits := func(mask uint8) Word { return control(NOP(), func(c *Control) { c.Wait = mask }) }
	code := []Word{
		load(24, func(c *Control) { c.ReadBar = 2 }),
		load(28, func(*Control) {}),
		waits(1 << 2),
		load(32, func(c *Control) { c.ReadBar, c.WriteBar = 3, 1 }),
		waits(1 << 3),
		waits(1 << 1),
		exit(),
	}
	w, err := NewWeaver(&Func{Arch: 90, Code: code}, &KernelFacts{Registers: 40})
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range []string{"", "R24-R27", "R24-R31", "R24-R31", "R24-R35", ""} {
		if got := w.a.PendWrite[at].String(); got != want {
			t.Errorf("%d: to be written are %q, want %q", at, got, want)
		}
	}
	// So has the unit for conversions, and for functions: R5 is written when the later MUFU has.
	root := func(dst uint8, board uint8) Word {
		w := Word{0x0000000400000308 | guardAlways<<12, 0x0000000000001000}.SetBits(12, 4, guardAlways).SetBits(16, 8, uint64(dst)) // MUFU.RCP R, R4
		return control(w, func(c *Control) { c.WriteBar, c.ReadBar, c.Wait, c.Stall = board, NoBar, 0, 2 })
	}
	a, err := Analyze(&Func{Arch: 90, Code: []Word{root(5, NoBar), root(6, 1), waits(1 << 1), exit()}})
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range []string{"", "R5", "", ""} {
		if got := a.PendWrite[at].String(); got != want {
			t.Errorf("conversions, %d: to be written are %q, want %q", at, got, want)
		}
	}
	// They can't be saved where nothing that is there to be waited for tells of them.
	if busy, _ := w.silent(2); !busy.Has(GPR, 24) || !busy.Has(GPR, 31) {
		t.Errorf("busy are %s, and what the loads write is not among them", busy.String())
	}
}

// A call with a guard for which no instruction sets an address to come back to is a jump:
// the returns of functions do not lead behind it. Hazards on the way that it takes are found.
func TestJumpingCall(t *testing.T) {
	idle := Control{Stall: 5, WriteBar: NoBar, ReadBar: NoBar}
	call := func(from, to int) Word {
		in := Inst{Word: plain(opCALLRel, guardAlways<<(87-64)).WithControl(idle), Arch: 90}
		w, ok := in.withTarget(int64(to-from-1) * WordSize)
		if !ok {
			t.Fatal("no CALL.REL")
		}
		return w
	}
	back, ok := RETRel(90, 20, -11*WordSize)
	again, ok2 := BRA(90, -4*WordSize)
	if !ok || !ok2 {
		t.Fatal("no RET.REL or BRA")
	}
	waits := control(wordIADD, func(c *Control) { c.Wait = 1 << 2 })
	early := control(wordIADD, func(c *Control) { c.Wait = 0 })
	nop := NOP().WithControl(idle)
	end := control(exit(), func(c *Control) { c.Wait = 0x3f })
	for _, tc := range []struct {
		name string
		code []Word
		jump bool
		want []Hazard
	}{
		// The loop reads what the function loads, which was waited for behind the call.
		{"a jump", []Word{
			MOVImm(20, 2*WordSize).WithControl(idle), call(1, 8), waits, early, nop,
			call(5, 7).Guarded(0, false), again, end, wordLDG, nop, back,
		}, true, nil},
		{"a call, since an address to come back to is set", []Word{
			MOVImm(20, 2*WordSize).WithControl(idle), call(1, 8), waits, early, MOVImm(20, 6*WordSize).WithControl(idle),
			call(5, 8).Guarded(0, false), again, end, wordLDG, nop, back,
		}, false, []Hazard{HazardRead}},
		{"a jump to what reads too early", []Word{
			nop, nop, nop, nop, wordLDG,
			call(5, 7).Guarded(0, false), NOP(), early, end, nop, nop,
		}, true, []Hazard{HazardRead}},
		{"a jump to what comes too early", []Word{
			nop, nop, nop, nop, control(wordIADD, func(c *Control) { c.Stall, c.Wait = 1, 0 }),
			control(call(5, 6).Guarded(0, false), func(c *Control) { c.Stall = 1 }), wordSTG, end, end, nop, nop,
		}, true, []Hazard{HazardStall}},
	} {
		a, err := Analyze(&Func{Arch: 90, Code: tc.code, Registers: 24})
		if err != nil {
			t.Fatal(err)
		}
		var got []Hazard
		for _, f := range a.Check(0) {
			got = append(got, f.Hazard)
		}
		if !slices.Equal(got, tc.want) || a.jumps[5] != tc.jump {
			t.Errorf("%s: found %v, want %v, jump %v", tc.name, a.Check(0), tc.want, a.jumps[5])
		}
	}
}

// Descriptors of matrix instructions of sm_100 have two uniform registers, whatever the one
// behind them has.
func TestUniformMatrix(t *testing.T) {
	word := Word{0x00ff1c201e0075ea, 0x0005e20009a0030a} // UTCQMMA.2CTA gdesc[UR30], gdesc[UR32], tmem[UR10], tmem[UR28], idesc[UR29], UP3
	for _, tc := range []struct {
		word Word
		want string
	}{
		{word, "UR10,UR28-UR33,UP3"},
		{word.SetBits(48, 8, 48), "UR10,UR28-UR33,UR48-UR55,UP3"},
		{word.SetBits(48, 8, 48).SetBits(85, 1, 0), "UR10,UR28-UR33,UR48-UR51,UP3"},
	} {
		in, ok := Decode(100, tc.word)
		if read, _ := in.Uses(); !ok || read.String() != tc.want {
			t.Errorf("%v: known %v, reads %s, want %s", tc.word, ok, read.String(), tc.want)
		}
	}
}

// Code of ptxas, on each architecture, has no hazard.
func TestUnmodified(t *testing.T) {
	for _, file := range cubins(t) {
		arch, secs := readCubin(t, file)
		for name, code := range secs {
			found, err := check(&Func{Arch: arch, Name: name, Code: Words(code)})
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range found {
				t.Errorf("%s %s: %s", file, name, f)
			}
		}
	}
}

// All instructions of the fixtures are in the table, and come back as they were.
func TestKnown(t *testing.T) {
	for _, file := range cubins(t) {
		arch, secs := readCubin(t, file)
		for name, code := range secs {
			var back []byte
			for i, w := range Words(code) {
				in, ok := Decode(arch, w)
				if !ok {
					t.Errorf("%s %s %#x: %v is unknown", file, name, i*WordSize, w)
				}
				back = in.Word.Append(back)
				// Putting each register back where it was found changes nothing.
				for _, o := range in.Operands(nil) {
					if in.Set(&o, o.Reg) != w {
						t.Errorf("%s %s %#x: %v: operand %v is not where it is said to be", file, name, i*WordSize, w, o)
					}
				}
			}
			if !slices.Equal(back, code) {
				t.Errorf("%s %s: not the same after decoding", file, name)
			}
		}
	}
}

// Integer matrix instructions of warpgroups use as many registers as their size says.
func TestIntegerMatrix(t *testing.T) {
	word := Word{0x01e000000c1879f1, 0x000fe20008041018} // IGMMA.64x64x32.S8.S8 R24, gdesc[UR12], R24
	const sizePos, sparsePos = 53, 73
	for i, columns := range []int{8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256} {
		for sparse := range uint64(2) {
			in, ok := Decode(90, word.SetBits(sizePos, 6, 3*uint64(i)+sparse).SetBits(sparsePos, 1, sparse))
			if _, write := in.Uses(); !ok || write.Len(GPR) != columns/2 || !write.Has(GPR, 24) {
				t.Errorf("64x%d, sparse %d: known %v, writes %s", columns, sparse, ok, write.String())
			}
		}
	}
}

// check analyzes a function and returns the findings.
func check(f *Func) ([]Finding, error) {
	a, err := Analyze(f)
	if err != nil {
		return nil, err
	}
	return a.Check(0), nil
}

// Of code whose architecture is not known nothing is said, however it looks.
func TestCheckForeign(t *testing.T) {
	code := []Word{{0x001fd842fec20ff1, 0x4f107f8000270003}, {0x50b0000000070f00, 0xe30000000000000f}}
	a, err := Analyze(&Func{Arch: 61, Code: code})
	if err != nil || !a.Foreign() || len(a.Check(0)) > 0 {
		t.Errorf("sm_61: foreign %v, findings %v, %v", a.Foreign(), a.Check(0), err)
	}
	if a, err = Analyze(&Func{Arch: 90, Code: code}); err != nil || a.Foreign() {
		t.Errorf("sm_90: foreign %v, %v", a.Foreign(), err)
	}
}
