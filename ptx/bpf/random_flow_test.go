package bpf

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"
)

// branch writes an if with or without else.
func (g *generator) branch() {
	if g.depth > 3 {
		return
	}
	g.depth++
	defer func() { g.depth-- }()
	jumps := []asm.JumpOp{asm.JEq, asm.JNE, asm.JGT, asm.JGE, asm.JLT, asm.JLE, asm.JSGT, asm.JSGE, asm.JSLT, asm.JSLE, asm.JSet}
	j, l, end := jumps[g.r.IntN(len(jumps))], g.newLabel(), g.newLabel()
	x, y := g.source(), g.source()
	switch g.r.IntN(4) {
	case 0:
		g.emit(j.Imm(x, g.imm32(), l))
	case 1:
		g.emit(j.Imm32(x, g.imm32(), l))
	case 2:
		g.emit(j.Reg(x, y, l))
	default:
		g.emit(j.Reg32(x, y, l))
	}
	regs, spills := g.regs, maps.Clone(g.spills)
	for range 1 + g.r.IntN(4) {
		g.statement()
	}
	thenRegs, thenSpills := g.regs, g.spills
	other := g.r.IntN(2) == 0
	g.regs, g.spills = regs, spills
	if other {
		g.emit(asm.Ja.Label(end))
	}
	g.place(l)
	if other {
		for range 1 + g.r.IntN(4) {
			g.statement()
		}
		g.place(end)
	}
	for r := range g.regs {
		if g.regs[r] != thenRegs[r] {
			g.regs[r] = gen{}
		}
	}
	for at, s := range g.spills {
		if thenSpills[at] != s {
			delete(g.spills, at)
		}
	}
	for r := range g.regs { // what is unreadable now becomes a number again
		if g.regs[r].kind == 0 && g.locked>>r&1 == 0 {
			g.number(r)
		}
	}
}

// loop writes a counting loop.
func (g *generator) loop() {
	if g.depth > 2 || g.loops > 1 {
		return
	}
	c := 6 + g.r.IntN(3)
	if g.locked>>c&1 != 0 {
		return
	}
	g.depth++
	g.loops++
	defer func() { g.depth--; g.loops-- }()
	d, head := asm.Register(c), g.newLabel()
	n, step := int32(1+g.r.IntN(6)), int32(1+g.r.IntN(3))
	down := g.r.IntN(2) == 0
	if down {
		g.emit(asm.Mov.Imm(d, n*step))
	} else {
		g.emit(asm.Mov.Imm(d, 0))
	}
	locked, regs, spills := g.locked, g.regs, maps.Clone(g.spills)
	regs[c] = gen{kind: 's'}
	g.locked |= 1 << c
	for r := range regs { // pointers stay
		if regs[r].kind != 's' {
			g.locked |= 1 << r
		}
	}
	if g.locked&0x3ff == 0x3ff {
		g.locked = locked
		g.regs[c] = gen{kind: 's'}
		return
	}
	g.regs = regs
	g.place(head)
	saved := maps.Clone(spills)
	g.spills = map[int]gen{}
	for range 1 + g.r.IntN(4) {
		g.statement()
	}
	for r := range g.regs {
		if g.regs[r] != regs[r] {
			g.emit(asm.Mov.Imm(asm.Register(r), 0))
			g.regs[r] = gen{kind: 's'}
		}
	}
	for at, s := range g.spills { // they stay readable only if they were the same before
		if saved[at] != s {
			delete(saved, at)
		}
	}
	g.spills = saved
	g.locked = locked
	switch w32 := g.r.IntN(2) == 0; {
	case down && w32:
		g.emit(asm.Add.Imm32(d, -step), []asm.Instruction{asm.JNE.Imm32(d, 0, head), asm.JSGT.Imm32(d, 0, head)}[g.r.IntN(2)])
	case down:
		g.emit(asm.Sub.Imm(d, step), []asm.Instruction{asm.JNE.Imm(d, 0, head), asm.JSGT.Imm(d, 0, head), asm.JGE.Imm(d, 1, head)}[g.r.IntN(3)])
	case w32:
		g.emit(asm.Add.Imm32(d, step), []asm.Instruction{asm.JNE.Imm32(d, n*step, head), asm.JLT.Imm32(d, n*step, head)}[g.r.IntN(2)])
	default:
		g.emit(asm.Add.Imm(d, step), []asm.Instruction{asm.JNE.Imm(d, n*step, head), asm.JLT.Imm(d, n*step, head), asm.JSLE.Imm(d, n*step-1, head)}[g.r.IntN(3)])
	}
}

func (g *generator) helper() {
	if g.locked&0x3f != 0 {
		return
	}
	switch g.r.IntN(5) {
	case 0:
		a, b := g.source(), g.source()
		g.emit(asm.Mov.Reg(asm.R3, a), asm.Mov.Reg(asm.R4, b), asm.Mov.Reg(asm.R1, asm.R3), asm.Mov.Reg(asm.R2, asm.R4), asm.BuiltinFunc(5).Call())
	case 1:
		g.emit(asm.Mov.Reg(asm.R1, asm.R10), asm.Add.Imm(asm.R1, int32(g.slot(asm.DWord))), asm.Mov.Reg(asm.R2, asm.R10),
			asm.Add.Imm(asm.R2, int32(g.slot(asm.DWord))), asm.BuiltinFunc(505).Call())
	case 2:
		n := int32(1 + g.r.IntN(40))
		g.emit(asm.Mov.Imm(asm.R1, 0), asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -70-n-int32(g.r.IntN(40))), asm.Mov.Imm(asm.R3, n), asm.BuiltinFunc(25).Call())
	case 3:
		m := g.r.IntN(mapData)
		g.emit(asm.StoreImm(asm.R10, -140, int64(g.r.IntN(6)), asm.Word), asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -140),
			asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, int32(-100-g.r.IntN(80))), asm.Mov.Imm(asm.R4, 0),
			asm.LoadMapPtr(asm.R1, m), asm.FnMapUpdateElem.Call())
	default:
		g.lookup(true)
		return
	}
	clear(g.regs[:6])
	g.regs[0] = gen{kind: 's'}
	for r := 1; r < 6; r++ {
		g.number(r)
	}
}

func (g *generator) callFunction() {
	if g.locked&0x3f != 0 || g.call {
		return
	}
	if g.funcs < 2 {
		g.funcs++
		g.calls = append(g.calls, fmt.Sprintf("f%d", g.funcs))
	}
	a, b := g.source(), g.source()
	g.emit(asm.Mov.Reg(asm.R3, a), asm.Mov.Reg(asm.R4, b), asm.Mov.Reg(asm.R1, asm.R3), asm.Mov.Reg(asm.R2, asm.R4))
	ins := asm.Call.Label(g.calls[g.r.IntN(len(g.calls))])
	g.emit(ins)
	clear(g.regs[:6])
	g.regs[0] = gen{kind: 's'}
	for r := 1; r < 6; r++ {
		g.number(r)
	}
}

// A sample is a random program with its world, compiled and interpreted.
type sample struct {
	seed uint64
	p    *Program
	v    *Verified
	code string
	want *world // after the interpreter
	res  Result
}

// newSample makes sample number seed; nil if the program is refused.
func newSample(tb testing.TB, seed uint64, slot int) (*sample, error) {
	tb.Helper()
	s := &sample{seed: seed, p: newGenerator(seed).program(), want: newWorld(slot)}
	var err error
	if s.v, err = Verify(s.p, s.want.env); err != nil {
		return nil, err
	}
	if s.res, err = s.want.interpret(s.p); err != nil {
		tb.Fatalf("seed %d is accepted, but: %v\n%v", seed, err, s.p.Insns)
	}
	site := s.want.site()
	site.Prefix = "n"
	if s.code, err = s.v.Emit(site); err != nil {
		tb.Fatalf("seed %d: %v", seed, err)
	}
	return s, nil
}

// batch makes n samples from seed on.
func batch(tb testing.TB, seed uint64, n int) (list []*sample, before []*world, src string, refused map[string]int) {
	tb.Helper()
	refused = map[string]int{}
	var codes []string
	for i := range uint64(n) {
		s, err := newSample(tb, seed+i, len(list))
		if err != nil {
			why, ok := errors.AsType[*RefusedError](err)
			if !ok {
				tb.Fatalf("seed %d: %v", seed+i, err)
			}
			refused[why.Text+": "+why.Reason]++
			continue
		}
		list, before, codes = append(list, s), append(before, newWorld(len(list))), append(codes, s.code)
	}
	return list, before, module(len(list), codes...), refused
}

// TestRandom: random programs do the same in the interpreter and, compiled, in
// the PTX machine.
func TestRandom(t *testing.T) {
	const perKernel = 25
	batches := 120
	if testing.Short() {
		batches = 20
	}
	accepted, early, total := 0, 0, 0
	reasons := map[string]int{}
	for b := range batches {
		list, before, src, refused := batch(t, uint64(b*perKernel), perKernel)
		maps.Copy(reasons, refused)
		total += perKernel
		accepted += len(list)
		out := run(t, src, 1, before...)
		for i, s := range list {
			if s.res.Early {
				early++
			}
			if got := out[i*worldSize:][:worldSize]; string(got) != string(s.want.mem) {
				t.Fatalf("%s", s.describe(got))
			}
		}
	}
	t.Logf("%d programs, %d accepted, %d ended early", total, accepted, early)
	if accepted < total*8/10 || early < accepted/50 || early > accepted/2 {
		for why, n := range reasons {
			t.Logf("%d: %s", n, why)
		}
		t.Errorf("of %d programs %d are accepted and %d end early: the generator has lost its way", total, accepted, early)
	}
}

// describe says how a run differs from what was expected.
func (s *sample) describe(got []byte) string {
	var d strings.Builder
	fmt.Fprintf(&d, "seed %d: interpreter %+v\n", s.seed, s.res)
	for i := range got {
		if got[i] != s.want.mem[i] {
			where := "result"
			for m, at := range s.want.at {
				if i >= at {
					where = fmt.Sprintf("%s+%d", s.want.env.Maps[m].Name, i-at)
				}
			}
			fmt.Fprintf(&d, "byte %d (%s): %#x, want %#x\n", i, where, got[i], s.want.mem[i])
		}
	}
	fmt.Fprintf(&d, "%v\n%s", s.p.Insns, s.code)
	return d.String()
}

// TestVectors writes random programs as kernels for a GPU into the folder
// $NVTRACE_BPF_VECTORS, in the form that ptx/emu/testdata/gpurun reads; and if
// the folder has its results, compares them with the interpreter's.
func TestVectors(t *testing.T) {
	dir := os.Getenv("NVTRACE_BPF_VECTORS")
	if dir == "" {
		t.Skip("NVTRACE_BPF_VECTORS names no folder")
	}
	const kernels, perKernel = 160, 20
	compared, written := 0, 0
	for k := range kernels {
		list, _, src, _ := batch(t, uint64(2_000_000+k*perKernel), perKernel)
		name := fmt.Sprintf("bpf_%03d", k)
		want, err := os.ReadFile(filepath.Join(dir, name+".want"))
		if err == nil {
			compared += compareVector(t, name, string(want), list)
			continue
		}
		src = prepared(src, len(list))
		blank := make([]*world, len(list))
		for i := range blank {
			blank[i] = &world{mem: make([]byte, worldSize)}
		}
		out := run(t, src, 1, blank...)
		for i, s := range list {
			if got := out[i*worldSize:][:worldSize]; string(got) != string(s.want.mem) {
				t.Fatalf("%s: %s", name, s.describe(got))
			}
		}
		vec := fmt.Sprintf("ptx %s.ptx\nkernel k\ngrid 1 1 1\nblock 1 1 1\nsymbol nvm u8 %d keep\noutput nvm exact\n", name, len(list)*worldSize)
		for ext, text := range map[string]string{".ptx": src, ".vec": vec} {
			if err := os.WriteFile(filepath.Join(dir, name+ext), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		written += len(list)
	}
	t.Logf("%d programs written, %d compared with a GPU's results", written, compared)
}

// prepared makes the kernel write the worlds itself before it uses them.
func prepared(src string, worlds int) string {
	var words []string
	for b := range slices.Chunk(newWorld(0).mem, 8) {
		words = append(words, fmt.Sprintf("%#x", little(b)))
	}
	first := fmt.Sprintf(".global .align 8 .b64 world[%d] = {%s};\n\n.visible .entry", len(words), strings.Join(words, ","))
	copied := fmt.Sprintf(`k()
{
	{
	.reg .b64 %%from, %%to, %%at, %%word;
	.reg .pred %%more;
	mov.u64 %%to, nvm;
	mov.u64 %%at, 0;
again:
	rem.u64 %%from, %%at, %d;
	mov.u64 %%word, world;
	add.u64 %%from, %%from, %%word;
	ld.global.b64 %%word, [%%from];
	st.global.b64 [%%to], %%word;
	add.u64 %%to, %%to, 8;
	add.u64 %%at, %%at, 8;
	setp.lt.u64 %%more, %%at, %d;
	@%%more bra again;
	}
`, worldSize, worlds*worldSize)
	src = strings.Replace(src, ".visible .entry", first, 1)
	return strings.Replace(src, "k()\n{\n", copied, 1)
}

// compareVector holds a GPU's memory against the interpreter's.
func compareVector(t *testing.T, name, want string, list []*sample) int {
	t.Helper()
	lines := strings.Fields(want)
	end := slices.Index(lines, "end")
	if len(lines) < 4 || lines[0] != "output" || end < 0 {
		t.Fatalf("%s: not a result: %.60q", name, want)
	}
	got, err := base64.StdEncoding.DecodeString(strings.Join(lines[3:end], ""))
	if err != nil || len(got) != len(list)*worldSize {
		t.Fatalf("%s: %d bytes, %v", name, len(got), err)
	}
	for i, s := range list {
		if m := got[i*worldSize:][:worldSize]; string(m) != string(s.want.mem) {
			t.Errorf("%s: %s", name, s.describe(m))
		}
	}
	return len(list)
}
