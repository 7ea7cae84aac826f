package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf/asm"
	"golang.org/x/arch/x86/x86asm"

	"nvtrace/internal/need"
)

// A runner is a process that runs machine code: testdata/machine.c.
type runner struct {
	mu  sync.Mutex
	cmd *exec.Cmd
	in  io.WriteCloser
	out io.Reader
}

var theRunner struct {
	mu   sync.Mutex
	path string
	*runner
}

// TestMain removes what startRunner made.
func TestMain(m *testing.M) {
	code := m.Run()
	if theRunner.path != "" {
		_ = os.RemoveAll(filepath.Dir(theRunner.path))
	}
	os.Exit(code)
}

// startRunner returns the runner, which all tests share.
func startRunner(tb testing.TB) *runner {
	tb.Helper()
	gcc := need.Tool(tb, "gcc", "")
	theRunner.mu.Lock()
	defer theRunner.mu.Unlock()
	if theRunner.path == "" {
		dir, err := os.MkdirTemp("", "nvtrace-machine") //nolint:usetesting // it outlives the test
		if err != nil {
			tb.Fatal(err)
		}
		path := filepath.Join(dir, "machine")
		if out, err := exec.Command(gcc, "-O1", "-fno-omit-frame-pointer", "-mno-red-zone", "-o", path, "testdata/machine.c").CombinedOutput(); err != nil {
			_ = os.RemoveAll(dir)
			tb.Fatalf("gcc: %v\n%s", err, out)
		}
		theRunner.path = path
	}
	if theRunner.runner != nil {
		return theRunner.runner
	}
	r := &runner{cmd: exec.Command(theRunner.path)}
	r.cmd.Stderr = os.Stderr
	var err error
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		tb.Fatal(err)
	}
	if r.out, err = r.cmd.StdoutPipe(); err != nil {
		tb.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	theRunner.runner = r
	return r
}

// run runs code in the world w with a context, and returns what the program returned, what
// ended it, and the world's memory then.
func (r *runner) run(m *Machine, w *world, context []byte) (r0, end uint64, mem []byte, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b []byte
	put := func(list ...uint64) {
		for _, v := range list {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	put(uint64(len(m.Code)), uint64(len(m.Slots)), uint64(len(context)), uint64(len(w.mem)), uint64(len(w.at)))
	b = append(b, m.Code...)
	for _, s := range m.Slots {
		put(uint64(s.Kind), uint64(s.N))
	}
	b = append(append(b, context...), w.mem...)
	for i, at := range w.at {
		put(uint64(at), uint64(w.env.Maps[i].ValueSize), uint64(w.env.Maps[i].MaxEntries))
	}
	mem = make([]byte, 16+len(w.mem))
	_, err = r.in.Write(b)
	if err == nil {
		_, err = io.ReadFull(r.out, mem)
	}
	if err != nil {
		_ = r.in.Close()
		theRunner.mu.Lock()
		theRunner.runner = nil
		theRunner.mu.Unlock()
		return 0, 0, nil, errors.Join(err, r.cmd.Wait())
	}
	return binary.LittleEndian.Uint64(mem), binary.LittleEndian.Uint64(mem[8:]), mem[16:], nil
}

// contextOf is a context in memory.
func contextOf(env *Env, in *Interpreter) []byte {
	c := env.Context
	if c.Text > 0 {
		b := make([]byte, c.Text)
		copy(b, in.Text)
		return b
	}
	b := make([]byte, 32)
	for i, f := range c.Fields {
		var v [8]byte
		binary.LittleEndian.PutUint64(v[:], in.Field(i))
		copy(b[f.Offset:], v[:f.Size])
	}
	return b
}

// sameMachine runs a program in the interpreter and as machine code: both end for the same
// reason at the same place, and leave the same.
func sameMachine(tb testing.TB, p *Program, env *Env, prepare func(*world, *Interpreter)) error {
	tb.Helper()
	if hasMay(p.Insns) {
		return nil // the two leave such a loop at different times
	}
	for i := range p.Insns {
		if p.Insns[i].IsBuiltinCall() && p.Insns[i].Constant == 507 {
			return nil // refused, see TestMachineRefused
		}
	}
	w := newWorld(0)
	w.env.Helpers[1].NeverNull, w.env.Fuel, w.env.Narrow, w.env.Context = env.Helpers[1].NeverNull, env.Fuel, env.Narrow, env.Context
	m, err := Assemble(p, w.env)
	if err != nil {
		return err
	}
	in := w.interpreter()
	in.MaxSteps = 20_000
	if prepare != nil {
		prepare(w, in)
	}
	before := *w
	before.mem = bytes.Clone(w.mem)
	c, err := newConformance(p, w.env)
	if err != nil {
		return err
	}
	c.watch(in)
	res, err := in.Run(p)
	if err == nil {
		err = w.finish(res)
	}
	if err != nil {
		return fmt.Errorf("interpreted: %w", err)
	}
	if res.Steps > in.MaxSteps || res.Why == threadEnded {
		return nil
	}
	r0, end, mem, err := startRunner(tb).run(m, &before, contextOf(w.env, in))
	if err != nil {
		return fmt.Errorf("%w\n%v\n%s", err, p.Insns, disassembled(m.Code))
	}
	if end == 0 {
		binary.LittleEndian.PutUint64(mem[worldResult:], r0)
	} else {
		mem[worldEarly] = 1
	}
	s := &sample{p: p, want: w, res: res}
	if end > uint64(len(m.Ends)) || res.Early && (end == 0 || m.Ends[end-1] != c.end) {
		return fmt.Errorf("end %d of %v, the interpreter says %v: %s\n%s", end, m.Ends, c.end, s.describe(mem), disassembled(m.Code))
	}
	if c.vague() { // neither tells apart on which paths a number is returned
		copy(mem[worldResult:worldResult+8], w.mem[worldResult:])
	}
	if !bytes.Equal(mem, w.mem) {
		return fmt.Errorf("%s\n%s", s.describe(mem), disassembled(m.Code))
	}
	return nil
}

// disassembled is machine code as text.
func disassembled(code []byte) string {
	var b bytes.Buffer
	for at := 0; at < len(code); {
		if bytes.HasPrefix(code[at:], []byte{0xf3, 0x0f, 0x1e, 0xfa}) {
			at += 4
			continue
		}
		in, err := x86asm.Decode(code[at:], 64)
		if err != nil {
			fmt.Fprintf(&b, "%4x: % x?\n", at, code[at:min(at+8, len(code))])
			at++
			continue
		}
		fmt.Fprintf(&b, "%4x: %s\n", at, x86asm.GNUSyntax(in, uint64(at), nil))
		at += in.Len
	}
	return b.String()
}

// TestMachineRandom: random programs do the same in the interpreter and as machine code.
func TestMachineRandom(t *testing.T) {
	need.OneThread(t)
	n := uint64(6000)
	if testing.Short() {
		n = 500
	}
	early, accepted := 0, 0
	for seed := range n {
		p, w := newGenerator(seed).program(), newWorld(0)
		if _, err := Assemble(p, w.env); err != nil {
			continue
		}
		accepted++
		if err := sameMachine(t, p, w.env, nil); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if res, err := newWorld(0).interpret(p); err == nil && res.Early {
			early++
		}
	}
	if accepted < int(n)*8/10 || early < accepted/50 {
		t.Errorf("of %d programs %d are accepted and %d end early: the generator has lost its way", n, accepted, early)
	}
}

// registers are those that tests try in all pairs; in short ones, those of which
// instructions make a special use.
func registers() []asm.Register {
	if testing.Short() {
		return []asm.Register{asm.R0, asm.R3, asm.R4, asm.R6}
	}
	return []asm.Register{asm.R0, asm.R1, asm.R2, asm.R3, asm.R4, asm.R5, asm.R6, asm.R7, asm.R8, asm.R9}
}

// TestMachineISA: every ALU operation with the operands at which it matters, in all pairs
// of registers.
func TestMachineISA(t *testing.T) {
	need.OneThread(t)
	check := func(ins asm.Instruction, x, y uint64) {
		t.Helper()
		for _, dst := range registers() {
			for _, src := range registers() {
				ins.Dst = dst
				if ins.OpCode.Source() == asm.RegSource && ins.OpCode.ALUOp() != asm.Swap {
					ins.Src = src
				} else if src > 0 {
					continue
				}
				base := asm.R9
				for base == dst || base == src {
					base--
				}
				load := asm.Instructions{direct(base, mapData, 0)}
				for r := range asm.R10 { // all registers have something, and all of it counts
					if r != dst && r != src && r != base {
						load = append(load, asm.LoadImm(r, int64(uint64(r+1)*0x0123456789abcdef), asm.DWord))
					}
				}
				load = append(load, asm.LoadMem(dst, base, 0, asm.DWord))
				if src != dst {
					load = append(load, asm.LoadMem(src, base, 8, asm.DWord))
				}
				load = append(load, asm.Mov.Imm(base, 3), ins)
				for r := range asm.R10 {
					load = append(load, asm.StoreMem(asm.R10, int16(-8*(int(r)+1)), r, asm.DWord))
				}
				load = append(load, asm.Mov.Imm(asm.R0, 0))
				for r := range asm.R10 {
					load = append(load, asm.LoadMem(asm.R1, asm.R10, int16(-8*(int(r)+1)), asm.DWord), asm.Mul.Imm(asm.R0, 31), asm.Xor.Reg(asm.R0, asm.R1))
				}
				load = append(load, asm.Return())
				if err := sameMachine(t, &Program{Name: "isa", Insns: load}, newWorld(0).env, func(w *world, _ *Interpreter) {
					binary.LittleEndian.PutUint64(w.mem[w.at[mapData]:], x)
					binary.LittleEndian.PutUint64(w.mem[w.at[mapData]+8:], y)
				}); err != nil {
					t.Fatalf("%v with %#x, %#x: %v", ins, x, y, err)
				}
			}
		}
	}
	seen := map[string]int{}
	for _, c := range isaALU {
		name := fmt.Sprint(c.op, c.w32)
		if seen[name]++; testing.Short() && seen[name] > 2 {
			continue
		}
		moves := c.op == asm.MovSX8 || c.op == asm.MovSX16 || c.op == asm.MovSX32
		if c.op != asm.Neg {
			check(aluInstruction(c.op, c.w32, true, 0), c.x, c.y)
		}
		if !moves && c.y == uint64(int32(c.y)) {
			check(aluInstruction(c.op, c.w32, false, c.y), c.x, c.y)
		}
	}
	for _, ins := range []asm.Instruction{
		asm.HostTo(asm.BE, asm.R1, asm.Half), asm.HostTo(asm.BE, asm.R1, asm.Word), asm.HostTo(asm.BE, asm.R1, asm.DWord),
		asm.HostTo(asm.LE, asm.R1, asm.Half), asm.HostTo(asm.LE, asm.R1, asm.Word), asm.HostTo(asm.LE, asm.R1, asm.DWord),
		asm.BSwap(asm.R1, asm.Half), asm.BSwap(asm.R1, asm.Word), asm.BSwap(asm.R1, asm.DWord),
	} {
		check(ins, 0x8899aabbccddeeff, 0)
	}
}

// TestMachineAtomics: every atomic operation in all pairs of registers, on a map's value
// and on the stack.
func TestMachineAtomics(t *testing.T) {
	for _, op := range []asm.AtomicOp{
		asm.AddAtomic, asm.FetchAdd, asm.AndAtomic, asm.FetchAnd, asm.OrAtomic, asm.FetchOr, asm.XorAtomic, asm.FetchXor, asm.Xchg, asm.CmpXchg,
	} {
		for _, size := range []asm.Size{asm.Word, asm.DWord} {
			for _, base := range registers() {
				for _, src := range registers() {
					for _, equal := range []bool{false, true} {
						if src == base || op == asm.CmpXchg && base == asm.R0 {
							continue
						}
						load := asm.Instructions{}
						for r := range asm.R10 {
							if r != base {
								load = append(load, asm.LoadImm(r, int64(uint64(r+1)*0xf123456789abcdef), asm.DWord))
							}
						}
						if op == asm.CmpXchg && equal {
							load = append(load, direct(base, mapData, 0), asm.LoadMem(asm.R0, base, 8, size))
						}
						load = append(load, direct(base, mapData, 0), op.Mem(base, src, size, 8))
						load = append(load, asm.Mov.Imm(base, 5), asm.StoreMem(asm.R10, -24, asm.R9, asm.DWord), op.Mem(asm.R10, src, size, -21))
						for r := range asm.R10 {
							load = append(load, asm.StoreMem(asm.R10, int16(-8*(int(r)+5)), r, asm.DWord))
						}
						load = append(load, asm.LoadMem(asm.R0, asm.R10, -24, asm.DWord))
						for r := range asm.R10 {
							load = append(load, asm.LoadMem(asm.R1, asm.R10, int16(-8*(int(r)+5)), asm.DWord), asm.Mul.Imm(asm.R0, 31), asm.Xor.Reg(asm.R0, asm.R1))
						}
						load = append(load, asm.Return())
						if err := sameMachine(t, &Program{Name: "atomic", Insns: load}, newWorld(0).env, nil); err != nil {
							t.Fatalf("%v: %v", op, err)
						}
					}
				}
			}
		}
	}
}

// TestMachineGrow: what TestGrow tries does the same as machine code. With -grow=N, N programs that
// are accepted are compared, each as machine code and as PTX.
func TestMachineGrow(t *testing.T) {
	need.OneThread(t)
	if *growTries > 0 {
		start := time.Now()
		for seed, done := rand.Uint64(), 0; done < *growTries; seed++ {
			g := newGrower(seed)
			g.all, g.machine = true, func(p *Program) error { return g.sameOften(t, p) }
			for g.compiled < 2000 && done+g.compiled < *growTries {
				grow(t, g, 100)
			}
			done += g.compiled
			t.Logf("%d programs compared in %v, the last seed is %#x", done, time.Since(start).Round(time.Second), seed)
		}
		return
	}
	seeds := 10
	if testing.Short() {
		seeds = 2
	}
	for seed := range uint64(seeds) {
		growMachine(t, seed, 1500)
	}
}

func growMachine(t *testing.T, seed uint64, tries int) {
	t.Helper()
	g := newGrower(seed)
	g.machine = func(p *Program) error { return g.sameOften(t, p) }
	grow(t, g, tries)
	if g.accepted < tries/10 || g.compiled < 10 {
		t.Errorf("seed %d: %d programs accepted, %d compiled: the generator has lost its way", seed, g.accepted, g.compiled)
	}
}

// FuzzMachine is TestMachineGrow with seeds of the fuzzer's.
func FuzzMachine(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) {
		g := newGrower(seed)
		g.machine = func(p *Program) error { return g.sameOften(t, p) }
		grow(t, g, 60)
	})
}

// sameOften runs a program as machine code with several contexts and memories.
func (g *grower) sameOften(tb testing.TB, p *Program) error {
	for range 3 {
		values := [5]uint64{anyValue(g.r), anyValue(g.r), anyValue(g.r), anyValue(g.r), anyValue(g.r)}
		err := sameMachine(tb, p, g.w.env, func(w *world, in *Interpreter) {
			in.Field = func(i int) uint64 {
				return values[i] & (^uint64(0) >> (64 - 8*w.env.Context.Fields[i].Size))
			}
			in.Text = []byte("\tadd.s32 %r1;")
			for i := range 12 {
				w.mem[16+g.r.IntN(w.at[mapRodata]-16)] = byte(g.r.Uint32() >> i)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// TestMachineTextOnTheStack: bytes of the stack that only a helper reads are 0 unless they were
// written, whatever lay there.
func TestMachineTextOnTheStack(t *testing.T) {
	need.OneThread(t)
	for off := int16(-64); off < 0; off += 4 {
		dirty := &Program{Name: "dirty", Insns: cat(filled(), end)}
		read := &Program{Name: "read", Insns: cat(asm.Instructions{
			asm.StoreImm(asm.R10, off, 0x61, asm.Byte), asm.Mov.Reg(asm.R1, asm.R10), asm.Add.Imm(asm.R1, int32(off)), asm.BuiltinFunc(6).Call(), asm.Return(),
		})}
		for _, p := range []*Program{dirty, read} {
			if err := sameMachine(t, p, newWorld(0).env, nil); err != nil {
				t.Fatalf("at %d: %v", off, err)
			}
		}
	}
}

// TestMachineRefused: what only a GPU has is refused.
func TestMachineRefused(t *testing.T) {
	w := newWorld(0)
	if _, err := Assemble(&Program{Name: "p", Insns: asm.Instructions{asm.BuiltinFunc(507).Call(), asm.Return()}}, w.env); err == nil {
		t.Error("a helper that does not return is accepted")
	}
	w.env.Maps[mapData].Thread = true
	if _, err := Assemble(&Program{Name: "p", Insns: asm.Instructions{direct(asm.R1, mapData, 0), asm.LoadMem(asm.R0, asm.R1, 0, asm.DWord), asm.Return()}}, w.env); err == nil {
		t.Error("a map in registers is accepted")
	}
}

// TestMachineFuel: a loop without a bound ends, also one that programs leave by may_goto.
func TestMachineFuel(t *testing.T) {
	w := newWorld(0)
	w.env.Fuel = 1000
	endless := &Program{Name: "endless", Insns: asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, 0, asm.DWord), asm.Add.Imm(asm.R2, 1).WithSymbol("again"), asm.Or.Imm(asm.R2, 1), asm.JNE.Imm(asm.R2, 0, "again"), asm.Mov.Imm(asm.R0, 1), asm.Return(),
	}}
	m, err := Assemble(endless, w.env)
	if err != nil {
		t.Fatal(err)
	}
	if _, end, _, err := startRunner(t).run(m, w, make([]byte, 32)); err != nil || end == 0 || m.Ends[end-1].Kind != EndLoop {
		t.Errorf("end %d of %v, %v", end, m.Ends, err)
	}
	may := asm.Instruction{OpCode: asm.JCOND.Op(asm.ImmSource), Src: asm.PseudoMayGoto, Offset: 2}
	m, err = Assemble(&Program{Name: "may", Insns: asm.Instructions{
		asm.Mov.Imm(asm.R0, 0), may, asm.Add.Imm(asm.R0, 1), {OpCode: asm.Ja.Op(asm.ImmSource), Offset: -3}, asm.Return(),
	}}, w.env)
	if err != nil {
		t.Fatal(err)
	}
	if r0, end, _, err := startRunner(t).run(m, w, make([]byte, 32)); err != nil || end != 0 || r0 < 100 || r0 > 1000 {
		t.Errorf("%d rounds, end %d, %v", r0, end, err)
	}
}

// TestMachineIsSmall: a program that adds to a counter is as short as one by hand would
// be, but for its frame.
func TestMachineIsSmall(t *testing.T) {
	w := newWorld(0)
	m, err := Assemble(&Program{Name: "count", Insns: asm.Instructions{
		direct(asm.R1, mapData, 0), asm.Mov.Imm(asm.R2, 1), asm.StoreXAdd(asm.R1, asm.R2, asm.DWord), asm.Mov.Imm(asm.R0, 0), asm.Return(),
	}}, w.env)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Code) > 80 {
		t.Errorf("%d bytes:\n%s", len(m.Code), disassembled(m.Code))
	}
	if !slices.Equal(m.Slots, []Slot{{SlotValue, mapData}}) {
		t.Errorf("slots %v", m.Slots)
	}
}
