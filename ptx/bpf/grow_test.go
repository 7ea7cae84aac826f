package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf/asm"

	"nvtrace/ptx"
)

var growTries = flag.Int("grow", 0, "how many programs TestGrow tries, and how many TestMachineGrow compares, with a random seed (0: few, always the same)")

// A line is an instruction of a growing program.
type line struct {
	ins asm.Instruction
	to  int // the line that a jump or a call goes to, -1 for others
}

func plain(ins ...asm.Instruction) (lines []line) {
	for _, i := range ins {
		lines = append(lines, line{i, -1})
	}
	return lines
}

// instructions returns the instructions, with jumps by offset.
func instructions(lines []line) asm.Instructions {
	offsets := make([]int, len(lines)+1)
	for i := range lines {
		offsets[i+1] = offsets[i] + int(lines[i].ins.Width())
	}
	out := make(asm.Instructions, len(lines))
	for i, l := range lines {
		out[i] = l.ins
		if l.to < 0 {
			continue
		}
		off := offsets[l.to] - offsets[i+1]
		if l.ins.IsFunctionCall() {
			out[i].Constant = int64(off)
		} else {
			out[i].Offset = int16(off)
		}
	}
	return out
}

// A grower changes a program again and again, and goes on from what Verify accepts.
type grower struct {
	r        *rand.Rand
	lines    []line
	pool     [][]line
	w        *world
	blank    []byte
	accepted int
	runs     int
	steps    int
	compiled int
	machine  func(p *Program) error // compares it as machine code; nil: that is not done
	all      bool                   // every program is compared, as machine code and as PTX
}

func newGrower(seed uint64) *grower {
	g := &grower{r: rand.New(rand.NewPCG(seed, 15)), w: newWorld(0)}
	g.blank = bytes.Clone(g.w.mem)
	if seed%8 == 7 {
		g.w.env.Context = &Context{Text: 24}
	}
	g.w.env.Narrow = seed%2 == 0
	if seed%5 > 1 {
		g.w.env.Fuel = uint32(seed % 5 * 100)
	}
	if seed%3 == 1 {
		g.w.env.Helpers[1].NeverNull = nil
	}
	g.restart()
	return g
}

func (g *grower) restart() {
	g.lines = plain(asm.Mov.Imm(asm.R0, 0), asm.Return())
	if len(g.pool) > 0 && g.r.IntN(2) == 0 {
		g.lines = slices.Clone(g.pool[g.r.IntN(len(g.pool))])
	}
}

// try changes the program once. The error is a find: what Verify accepts does what it
// must not, or what its analysis rules out.
func (g *grower) try(tb testing.TB) error {
	lines := slices.Clone(g.lines)
	n := 1 + g.r.IntN(2)
	if g.r.IntN(8) == 0 { // what only works together
		n = 2 + g.r.IntN(4)
	}
	for range n {
		lines = g.change(lines)
	}
	ok, err := g.check(tb, lines)
	if err != nil {
		return g.reduced(tb, lines, err)
	}
	if !ok {
		return nil
	}
	g.accepted++
	g.lines = lines
	if g.r.IntN(40) == 0 {
		if len(g.pool) < 64 {
			g.pool = append(g.pool, lines)
		} else {
			g.pool[g.r.IntN(len(g.pool))] = lines
		}
	}
	if len(lines) > 56 || g.r.IntN(150) == 0 {
		g.restart()
	}
	return nil
}

// check verifies and runs a program; ok says that it was accepted.
func (g *grower) check(tb testing.TB, lines []line) (ok bool, err error) {
	p := &Program{Name: "grown", Insns: instructions(lines)}
	c, err := newConformance(p, g.w.env)
	if err != nil {
		if why, refused := errors.AsType[*RefusedError](err); !refused || why.Reason == "" {
			return false, fmt.Errorf("no reason: %w", err)
		}
		return false, nil
	}
	for range 2 {
		copy(g.w.mem, g.blank)
		if g.r.IntN(2) == 0 {
			for i := range 12 {
				g.w.mem[16+g.r.IntN(g.w.at[mapRodata]-16)] = byte(g.r.Uint32() >> i)
			}
		}
		in := g.w.interpreter()
		in.MaxSteps = 450
		values := [5]uint64{anyValue(g.r), anyValue(g.r), anyValue(g.r), anyValue(g.r), anyValue(g.r)}
		in.Field = func(i int) uint64 {
			return values[i] & (^uint64(0) >> (64 - 8*g.w.env.Context.Fields[i].Size))
		}
		in.Text = []byte("\tadd.s32 %r1;")
		g.w.held = nil
		c.watch(in)
		g.runs++
		res, err := in.Run(p)
		g.steps += res.Steps
		if err == nil {
			err = g.w.finish(res)
		}
		if err != nil {
			return true, err
		}
	}
	if g.machine != nil && (g.all || g.r.IntN(3) == 0) {
		g.compiled++
		err := g.machine(p)
		if err == nil && g.all && g.w.env.Context.Text == 0 {
			err = sameCompiled(tb, p, g.w.env)
		}
		return true, err
	}
	if g.r.IntN(150) == 0 && g.w.env.Context.Text == 0 {
		g.compiled++
		return true, sameCompiled(tb, p, g.w.env)
	}
	return true, nil
}

// sameCompiled runs a program in the interpreter and, compiled, in the PTX machine:
// both end for the same reason at the same place, and leave the same.
func sameCompiled(tb testing.TB, p *Program, env *Env) error {
	if hasMay(p.Insns) {
		return nil // the two leave such a loop at different times
	}
	if slices.ContainsFunc(p.Insns, func(in asm.Instruction) bool { return in.IsLoadFromMap() && in.Constant == mapOuter }) {
		return nil // which is on the host only
	}
	w := newWorld(0)
	w.env.Helpers[1].NeverNull, w.env.Fuel, w.env.Narrow = env.Helpers[1].NeverNull, env.Fuel, env.Narrow
	c, err := newConformance(p, w.env)
	if err != nil {
		return err
	}
	in := w.interpreter()
	in.MaxSteps = 20_000
	c.watch(in)
	res, err := in.Run(p)
	if err == nil {
		err = w.finish(res)
	}
	if err != nil {
		return err
	}
	if res.Steps > in.MaxSteps || res.Why == threadEnded {
		return nil
	}
	v, err := Verify(p, w.env)
	if err != nil {
		return fmt.Errorf("accepted, then refused: %w", err)
	}
	site := w.site()
	site.Failed = func(g *Gen) error {
		at := g.Address(Addr{Symbol: "nvm", Value: worldEarly})
		g.St("", ptx.SpaceGlobal, ptx.U32, ptx.Addr(at, 0), ptx.Imm(1))
		g.St("", ptx.SpaceGlobal, ptx.U32, ptx.Addr(at, 4), g.Why())
		return nil
	}
	code, err := v.Emit(site)
	if err != nil {
		return err
	}
	out := run(tb, module(1, code), 1, newWorld(0))
	if v.vague { // the code does not tell apart on which paths a number is returned
		copy(out[worldResult:worldResult+8], w.mem[worldResult:])
	}
	s := &sample{p: p, want: w, res: res, code: code}
	if res.Early && out[worldEarly] == 1 {
		why := binary.LittleEndian.Uint32(out[worldEarly+4:])
		clear(out[worldEarly+4 : worldEarly+8])
		if end := v.Report().Ends[why]; end != c.end {
			return fmt.Errorf("it says %v at %s, the interpreter %v at %s: %s", end.Kind, end.Where(), c.end.Kind, c.end.Where(), s.describe(out))
		}
	}
	if !bytes.Equal(out, w.mem) {
		return errors.New(s.describe(out))
	}
	return nil
}

// reduced takes away from a program what a find does not need.
func (g *grower) reduced(tb testing.TB, lines []line, found error) error {
	for again := true; again; {
		again = false
		for i := range slices.Backward(lines) {
			fewer := remove(slices.Clone(lines), i)
			for range 30 { // values are random
				if _, err := g.check(tb, fewer); err != nil {
					lines, found, again = fewer, err, true
					break
				}
			}
		}
	}
	return fmt.Errorf("%w\n%v", found, instructions(lines))
}

// insert puts lines in front of line at. Jumps to that line go to it still if stay is
// set, otherwise to the new ones, as calls do always.
func insert(lines []line, at int, stay bool, fresh ...line) []line {
	move := func(l *line) {
		if l.to > at || l.to == at && stay && !l.ins.IsFunctionCall() {
			l.to += len(fresh)
		}
	}
	for i := range lines {
		move(&lines[i])
	}
	return slices.Insert(lines, at, fresh...)
}

func remove(lines []line, at int) []line {
	for i := range lines {
		if lines[i].to > at {
			lines[i].to--
		}
	}
	lines = slices.Delete(lines, at, at+1)
	for i := range lines {
		lines[i].to = min(lines[i].to, len(lines)-1)
	}
	return lines
}

// function returns a random function's lines: [from, to).
func (g *grower) function(lines []line) (from, to int) {
	starts := []int{0}
	for i := range lines {
		if lines[i].ins.IsFunctionCall() {
			starts = append(starts, lines[i].to)
		}
	}
	slices.Sort(starts)
	starts = append(slices.Compact(starts), len(lines))
	k := 0
	if g.r.IntN(3) == 0 {
		k = g.r.IntN(len(starts) - 1)
	}
	return starts[k], starts[k+1]
}

// change makes one change.
func (g *grower) change(lines []line) []line {
	from, to := g.function(lines)
	at := from + g.r.IntN(to-from)
	if g.r.IntN(2) == 0 {
		at = max(to-1-g.r.IntN(4), from)
	}
	stay := g.r.IntN(2) == 0
	switch n := g.r.IntN(100); {
	case n < 38:
		return insert(lines, at, stay, plain(g.instruction())...)
	case n < 48:
		return insert(lines, at, stay, plain(g.sequence()...)...)
	case n < 55:
		return g.object(lines, at)
	case n < 63:
		return g.jump(lines, from, to, at)
	case n < 68:
		return g.loop(lines, from, to)
	case n < 76:
		if to-from > 2 {
			return remove(lines, at)
		}
	case n < 90:
		g.tweak(&lines[at].ins)
	case n < 94:
		return g.repeat(lines, from, to, at)
	case n < 96:
		return g.call(lines, at)
	case n < 98: // records
		return insert(lines, at, stay, plain(g.finish(asm.Register(g.r.IntN(10)))...)...)
	case n < 99:
		return g.chosen(lines, at)
	default:
		return g.nullTest(lines, from, to, at)
	}
	return lines
}

// hostCall calls a helper that programs on the host have, with memory of the stack or of .data.
func (g *grower) hostCall() asm.Instructions {
	memory := func(r asm.Register) asm.Instructions {
		if g.r.IntN(4) == 0 {
			return asm.Instructions{direct(r, mapData, uint32(4*g.r.IntN(8)))}
		}
		return asm.Instructions{asm.Mov.Reg(r, asm.R10), asm.Add.Imm(r, int32(-4*g.r.IntN(14)))}
	}
	size := func(r asm.Register) asm.Instructions {
		if g.r.IntN(3) == 0 {
			return asm.Instructions{asm.Mov.Imm(r, g.r.Int32N(20))}
		}
		return asm.Instructions{asm.Mov.Reg(r, g.register()), asm.And.Imm(r, []int32{7, 15, 8, 31}[g.r.IntN(4)])}
	}
	text := func(r asm.Register) asm.Instructions {
		off := int16(-4 * (1 + g.r.IntN(12)))
		if g.r.IntN(2) == 0 {
			return asm.Instructions{direct(r, mapRodata, uint32(g.r.IntN(13)))}
		}
		return asm.Instructions{asm.StoreImm(asm.R10, off, int64([]int32{0x6261, 0x646362, 0, 0x64636261}[g.r.IntN(4)]), asm.Word), asm.Mov.Reg(r, asm.R10), asm.Add.Imm(r, int32(off))}
	}
	switch g.r.IntN(4) {
	case 0:
		return cat(size(asm.R2), asm.Instructions{asm.Mov.Reg(asm.R3, g.register())}, memory(asm.R1), asm.Instructions{asm.BuiltinFunc(4).Call()})
	case 1:
		return cat(size(asm.R2), asm.Instructions{asm.Mov.Reg(asm.R3, g.register())}, memory(asm.R1), asm.Instructions{asm.BuiltinFunc(45).Call()})
	case 2:
		return cat(size(asm.R2), text(asm.R3), memory(asm.R4), asm.Instructions{asm.Mov.Imm(asm.R5, 8*g.r.Int32N(3))}, memory(asm.R1), asm.Instructions{asm.BuiltinFunc(165).Call()})
	}
	return cat(size(asm.R2), text(asm.R3), memory(asm.R1), asm.Instructions{asm.BuiltinFunc(182).Call()})
}

// chosen calls one of two functions by a number that paths give a register, as callbacks and tail
// calls become, or looks a value up in a map that is another map's value.
func (g *grower) chosen(lines []line, at int) []line {
	jump := func(ins asm.Instruction) line { return line{ins.WithReference(""), -1} }
	call := line{asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoCall}, -1}
	if g.r.IntN(2) == 0 {
		r := asm.R6 + asm.Register(g.r.IntN(4))
		key := func(n int) []line {
			return plain(asm.StoreImm(asm.R10, -4, int64(g.r.IntN(n)), asm.Word), asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -4))
		}
		fresh := slices.Concat(key(4), plain(asm.LoadMapPtr(asm.R1, mapOuter), asm.FnMapLookupElem.Call()), []line{jump(asm.JEq.Imm(asm.R0, 0, ""))},
			plain(asm.Mov.Reg(asm.R1, asm.R0)), key(9), plain(asm.FnMapLookupElem.Call(), asm.Mov.Reg(r, asm.R0)), []line{jump(asm.JEq.Imm(r, 0, ""))},
			plain(asm.StoreMem(r, int16(8*g.r.IntN(4)), g.register(), sizes[g.r.IntN(4)])))
		first := slices.IndexFunc(fresh, func(l line) bool { return l.ins.OpCode.Class().IsJump() && !l.ins.IsBuiltinCall() })
		lines = insert(lines, at, g.r.IntN(2) == 0, fresh...)
		lines[at+first].to, lines[at+len(fresh)-2].to = at+len(fresh), at+len(fresh)
		return lines
	}
	// bpf_loop(n, c ? f : g, context, 0), with the loop of 1 round or some.
	rounds := []line{
		{asm.Mov.Reg32(asm.R6, asm.R1), -1},
		{asm.Mov.Reg(asm.R7, asm.R3), -1},
		{asm.Mov.Imm(asm.R8, 0), -1},
		{asm.Mov.Reg(asm.R9, asm.R2), -1},
		jump(asm.JGE.Reg(asm.R8, asm.R6, "")), // 4
		{asm.Mov.Reg(asm.R1, asm.R8), -1},
		{asm.Mov.Reg(asm.R2, asm.R7), -1},
		jump(asm.JNE.Imm(asm.R9, 1, "")), // 7
		call, jump(asm.Ja.Label("")),     // 8, 9
		call, // 10
		{asm.Add.Imm(asm.R8, 1), -1},
		jump(asm.JNE.Imm(asm.R0, 0, "")), jump(asm.Ja.Label("")), // 11 to 13
		{asm.Mov.Reg(asm.R0, asm.R8), -1},
		{asm.Return(), -1},
	}
	body := func() []line {
		return plain(asm.And.Imm(asm.R1, g.r.Int32N(8)), asm.LoadMem(asm.R3, asm.R2, 0, asm.DWord), asm.Add.Reg(asm.R3, asm.R1),
			asm.StoreMem(asm.R2, 0, asm.R3, asm.DWord), asm.Mov.Imm(asm.R0, g.r.Int32N(2)), asm.Return())
	}
	f, h := body(), body()
	fresh := append(plain(asm.Mov.Reg(asm.R1, g.register()), asm.And.Imm(asm.R1, g.r.Int32N(7)), asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, int32(-8*(1+g.r.IntN(3)))),
		asm.Mov.Imm(asm.R2, 1)), jump(g.condition()), line{asm.Mov.Imm(asm.R2, 2), -1}, call)
	lines = insert(lines, at, g.r.IntN(2) == 0, fresh...)
	start := len(lines)
	lines[at+5].to, lines[at+7].to = at+7, start
	for k, to := range map[int]int{4: 14, 7: 10, 8: len(rounds), 9: 11, 10: len(rounds) + len(f), 12: 14, 13: 4} {
		rounds[k].to = start + to
	}
	return slices.Concat(lines, rounds, f, h)
}

func (g *grower) register() asm.Register { return asm.Register(g.r.IntN(10)) }

// small is a number that programs have.
func (g *grower) small() int32 {
	switch g.r.IntN(6) {
	case 0:
		return int32(anyValue(g.r))
	case 1:
		return -g.r.Int32N(40)
	case 2:
		return 8 * g.r.Int32N(8)
	}
	return g.r.Int32N(40)
}

// base returns a register to follow, and an offset behind it.
func (g *grower) base() (asm.Register, int16) {
	if g.r.IntN(2) == 0 {
		return asm.R10, int16(-1 - g.r.IntN(40))
	}
	switch g.r.IntN(4) {
	case 0:
		return g.register(), int16(g.small())
	case 1:
		return g.register(), int16(8 * g.r.IntN(5))
	}
	return g.register(), 0
}

var (
	grownALU = []asm.ALUOp{
		asm.Add, asm.Add, asm.Add, asm.Sub, asm.Sub, asm.Mul, asm.Div, asm.Mod, asm.SDiv, asm.SMod, asm.Or, asm.And, asm.And, asm.Xor,
		asm.LSh, asm.RSh, asm.ArSh, asm.Mov, asm.Mov, asm.Mov, asm.MovSX8, asm.MovSX16, asm.MovSX32, asm.Neg, asm.Swap,
	}
	grownAtomics = []asm.AtomicOp{
		asm.AddAtomic, asm.FetchAdd, asm.AndAtomic, asm.FetchAnd, asm.OrAtomic, asm.FetchOr, asm.XorAtomic, asm.FetchXor, asm.Xchg, asm.CmpXchg,
		loadAcquire, storeRelease,
	}
	grownJumps = []asm.JumpOp{asm.JEq, asm.JNE, asm.JGT, asm.JGE, asm.JLT, asm.JLE, asm.JSGT, asm.JSGE, asm.JSLT, asm.JSLE, asm.JSet}
)

// instruction returns one that is no jump.
func (g *grower) instruction() asm.Instruction {
	size := sizes[g.r.IntN(4)]
	if g.r.IntN(3) == 0 {
		size = asm.DWord
	}
	b, off := g.base()
	switch n := g.r.IntN(100); {
	case n < 40:
		return g.alu()
	case n < 55:
		if size != asm.DWord && g.r.IntN(4) == 0 {
			return asm.LoadMemSX(g.register(), b, off, size)
		}
		return asm.LoadMem(g.register(), b, off, size)
	case n < 70:
		return asm.StoreMem(b, off, g.register(), size)
	case n < 76:
		return storeImm(b, off, int64(g.small()), size)
	case n < 84:
		op := grownAtomics[g.r.IntN(len(grownAtomics))]
		if op != loadAcquire && op != storeRelease && g.r.IntN(8) > 0 {
			size = []asm.Size{asm.Word, asm.DWord}[g.r.IntN(2)]
		}
		return op.Mem(b, g.register(), size, off)
	case n < 88:
		return direct(g.register(), []int{mapData, mapData, mapRodata}[g.r.IntN(3)], uint32(g.r.IntN(9)*4))
	case n < 90:
		return asm.LoadMapPtr(g.register(), g.r.IntN(mapCount))
	case n < 92:
		return asm.LoadImm(g.register(), int64(anyValue(g.r)), asm.DWord)
	case n < 93:
		return asm.Return()
	}
	ids := []asm.BuiltinFunc{1, 2, 5, 505, 25, 131, 132, 6, 507, 600, 4, 45, 165, 182}
	return ids[g.r.IntN(len(ids))].Call()
}

func (g *grower) alu() asm.Instruction {
	op, d, s := grownALU[g.r.IntN(len(grownALU))], g.register(), asm.Register(g.r.IntN(11))
	if g.r.IntN(5) == 0 { // more on what is kept
		op, d = asm.Add, asm.R6+d%4
	}
	switch op {
	case asm.Neg:
		return []asm.Instruction{asm.Neg.Imm(d, 0), asm.Neg.Imm32(d, 0)}[g.r.IntN(2)]
	case asm.Swap:
		size := []asm.Size{asm.Half, asm.Word, asm.DWord}[g.r.IntN(3)]
		return []asm.Instruction{asm.HostTo(asm.BE, d, size), asm.HostTo(asm.LE, d, size), asm.BSwap(d, size)}[g.r.IntN(3)]
	case asm.MovSX8, asm.MovSX16, asm.MovSX32:
		if op != asm.MovSX32 && g.r.IntN(2) == 0 {
			return op.Reg32(d, s)
		}
		return op.Reg(d, s)
	}
	switch g.r.IntN(6) {
	case 0:
		return op.Imm32(d, g.small())
	case 1:
		return op.Reg32(d, s)
	case 2, 3:
		return op.Reg(d, s)
	}
	return op.Imm(d, g.small())
}

// sequence returns instructions that are of use together.
func (g *grower) sequence() asm.Instructions {
	key := int16(-4 - 4*g.r.IntN(5))
	keep := asm.Mov.Reg(asm.R6+asm.Register(g.r.IntN(4)), asm.R0)
	toStack := func(r asm.Register) asm.Instructions {
		return asm.Instructions{asm.Mov.Reg(r, asm.R10), asm.Add.Imm(r, int32(key))}
	}
	switch g.r.IntN(13) {
	case 9, 10, 11:
		return g.hostCall()
	case 0, 1, 2:
		set := asm.StoreImm(asm.R10, key, int64(g.r.IntN(7)), asm.Word)
		if g.r.IntN(3) == 0 {
			set = asm.StoreMem(asm.R10, key, g.register(), asm.Word)
		}
		return cat(asm.Instructions{set}, toStack(asm.R2), asm.Instructions{asm.LoadMapPtr(asm.R1, g.r.IntN(mapData)), asm.FnMapLookupElem.Call(), keep})
	case 3, 4:
		return asm.Instructions{asm.LoadMapPtr(asm.R1, mapWide), asm.Mov.Imm(asm.R2, []int32{8, 16, 24, 12, 7, 32, 1}[g.r.IntN(7)]), asm.BuiltinFunc(131).Call(), keep}
	case 5:
		return cat(toStack(asm.R2), asm.Instructions{asm.Mov.Reg(asm.R3, g.register()), asm.Mov.Imm(asm.R4, 0), asm.LoadMapPtr(asm.R1, g.r.IntN(mapData)), asm.FnMapUpdateElem.Call()})
	case 6:
		return cat(asm.Instructions{asm.Mov.Imm(asm.R1, 0), asm.Mov.Imm(asm.R3, g.r.Int32N(24))}, toStack(asm.R2), asm.Instructions{asm.BuiltinFunc(25).Call()})
	case 7:
		return asm.Instructions{asm.Mov.Reg(asm.R1, g.register()), asm.Mov.Reg(asm.R2, g.register()), asm.BuiltinFunc(5).Call()}
	}
	// A number between bounds, and a pointer moved by it.
	n, p := g.register(), g.register()
	return asm.Instructions{asm.LoadMem(n, g.register(), int16(8*g.r.IntN(2)), asm.Word), asm.And.Imm(n, g.r.Int32N(32)), asm.Add.Reg(p, n)}
}

// finish gives a record back, through some register.
func (g *grower) finish(r asm.Register) asm.Instructions {
	return asm.Instructions{asm.Mov.Reg(asm.R1, r), asm.BuiltinFunc(132).Call()}
}

// condition returns a conditional jump.
func (g *grower) condition() asm.Instruction {
	j, x, y := grownJumps[g.r.IntN(len(grownJumps))], g.register(), g.register()
	switch g.r.IntN(5) {
	case 0:
		return j.Imm32(x, g.small(), "")
	case 1:
		return j.Reg(x, y, "")
	case 2:
		return j.Reg32(x, y, "")
	}
	return j.Imm(x, g.small(), "")
}

// jump puts a jump in front of line at, mostly a forward one.
func (g *grower) jump(lines []line, from, to, at int) []line {
	ins := g.condition()
	switch g.r.IntN(12) {
	case 0:
		ins = asm.Ja.Label("")
	case 1:
		ins = asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.JCOND)}
	}
	ins = ins.WithReference("")
	target := at + g.r.IntN(to-at)
	if g.r.IntN(8) == 0 {
		target = from + g.r.IntN(to-from)
	}
	lines = insert(lines, at, g.r.IntN(2) == 0, line{ins, -1})
	if target >= at {
		target++
	}
	lines[at].to = target
	return lines
}

// nullTest puts a test of a register for NULL around what follows.
func (g *grower) nullTest(lines []line, from, to, at int) []line {
	r := []asm.Register{asm.R0, asm.R6, asm.R7, asm.R8, asm.R9}[g.r.IntN(5)]
	target := max(at, to-2)
	if g.r.IntN(3) == 0 { // leave if it is NULL
		lines = insert(lines, at, true, line{asm.JNE.Imm(r, 0, "").WithReference(""), -1}, line{asm.Mov.Imm(asm.R0, 0), -1}, line{asm.Return(), -1})
		lines[at].to = at + 3
		return lines
	}
	lines = insert(lines, at, true, line{asm.JEq.Imm(r, 0, "").WithReference(""), -1})
	lines[at].to = target + 1
	return lines
}

// object gets a record or a value, and uses it where it is not NULL.
func (g *grower) object(lines []line, at int) []line {
	r := asm.R6 + asm.Register(g.r.IntN(4))
	var get, use asm.Instructions
	if g.r.IntN(5) < 3 {
		get = asm.Instructions{asm.LoadMapPtr(asm.R1, mapWide), asm.Mov.Imm(asm.R2, []int32{8, 16, 24, 12, 7, 32, 1}[g.r.IntN(7)]), asm.BuiltinFunc(131).Call()}
		use = g.finish(r)
	} else {
		get = cat(asm.Instructions{asm.StoreImm(asm.R10, -4, int64(g.r.IntN(9)), asm.Word)}, asm.Instructions{
			asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -4), asm.LoadMapPtr(asm.R1, g.r.IntN(mapData)), asm.FnMapLookupElem.Call(),
		})
		use = asm.Instructions{asm.StoreMem(r, 0, g.register(), sizes[g.r.IntN(4)])}
	}
	get = append(get, asm.Mov.Reg(r, asm.R0))
	fresh := append(plain(get...), line{asm.JEq.Imm([]asm.Register{r, asm.R0}[g.r.IntN(2)], 0, "").WithReference(""), -1})
	fresh = append(fresh, plain(use...)...)
	lines = insert(lines, at, g.r.IntN(2) == 0, fresh...)
	lines[at+len(get)].to = at + len(fresh)
	return lines
}

// loop makes a range of lines run again.
func (g *grower) loop(lines []line, from, to int) []line {
	i := from + g.r.IntN(to-from)
	j := min(i+g.r.IntN(6), to-1)
	c := asm.R6 + asm.Register(g.r.IntN(4))
	step := []int32{1, 1, 1, 2, 3, -1}[g.r.IntN(6)]
	start := []int32{0, 0, 1, 10, 7}[g.r.IntN(5)]
	add := asm.Add.Imm(c, step)
	if g.r.IntN(3) == 0 {
		add = asm.Add.Imm32(c, step)
	}
	limit := g.r.Int32N(12)
	again := grownJumps[g.r.IntN(10)].Imm(c, limit, "")
	switch g.r.IntN(4) {
	case 0:
		again = grownJumps[g.r.IntN(10)].Reg(c, g.register(), "")
	case 1:
		again = grownJumps[g.r.IntN(10)].Imm32(c, limit, "")
	}
	lines = insert(lines, j, false, line{add, -1}, line{again.WithReference(""), -1})
	lines[j+1].to = i
	return insert(lines, i, true, line{asm.Mov.Imm(c, start), -1})
}

// repeat copies a range of lines.
func (g *grower) repeat(lines []line, from, to, at int) []line {
	i := from + g.r.IntN(to-from)
	j := min(i+1+g.r.IntN(5), to-1)
	if i >= j {
		return lines
	}
	part := slices.Clone(lines[i:j])
	lines = insert(lines, at, true, part...)
	for k := range part {
		if t := part[k].to; t >= i && t < j {
			lines[at+k].to = t - i + at
		} else if t >= at {
			lines[at+k].to = t + len(part)
		}
	}
	return lines
}

// call calls a function: one that is there, or a new one.
func (g *grower) call(lines []line, at int) []line {
	var targets []int
	for i := range lines {
		if lines[i].ins.IsFunctionCall() {
			targets = append(targets, lines[i].to)
		}
	}
	target := len(lines)
	if len(targets) > 0 && g.r.IntN(2) == 0 {
		target = targets[g.r.IntN(len(targets))]
	} else {
		lines = append(lines, line{asm.Mov.Reg(asm.R0, asm.R1), -1}, line{asm.Return(), -1})
	}
	ins := asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoCall}
	lines = insert(lines, at, true, line{ins, -1})
	if target >= at {
		target++
	}
	lines[at].to = target
	return lines
}

// tweak changes a part of an instruction.
func (g *grower) tweak(ins *asm.Instruction) {
	memory := !ins.OpCode.Class().IsALU() && !ins.OpCode.Class().IsJump() && ins.OpCode.Class() != asm.LdClass
	switch g.r.IntN(5) {
	case 0:
		if !ins.OpCode.Class().IsJump() || ins.OpCode.JumpOp() != asm.Call {
			ins.Dst = g.register()
		}
	case 1:
		if ins.OpCode.Class() != asm.LdClass && !ins.OpCode.Class().IsJump() || ins.OpCode.Source() == asm.RegSource && !ins.IsBuiltinCall() && !ins.IsFunctionCall() {
			ins.Src = asm.Register(g.r.IntN(11))
		}
	case 2:
		if memory {
			ins.Offset = int16(g.small())
		}
	case 3:
		if ins.OpCode.Class().IsALU() && ins.OpCode.Source() == asm.ImmSource || ins.OpCode.Class().IsJump() && !ins.IsBuiltinCall() {
			ins.Constant = int64(g.small())
		}
	default:
		if memory && ins.OpCode.Mode() == asm.MemMode {
			ins.OpCode = ins.OpCode.SetSize(sizes[g.r.IntN(4)])
		}
	}
}

// grow makes n tries from one seed on.
func grow(tb testing.TB, g *grower, n int) {
	for i := range n {
		if err := g.try(tb); err != nil {
			tb.Fatalf("try %d: %v", i, err)
		}
	}
}

// TestGrow: programs that grow out of what Verify accepts do nothing in the
// interpreter that it must refuse, and what they do lies in what its analysis says.
// Every hundred or so is compiled, too, and must do the same then. With -grow=N there
// are N tries, never the same.
func TestGrow(t *testing.T) {
	const perSeed = 2000
	tries, seed := 40_000, uint64(0)
	switch {
	case *growTries > 0:
		tries, seed = *growTries, rand.Uint64()
	case testing.Short():
		tries = 10_000
	}
	start, total := time.Now(), grower{}
	report := func(done int) {
		t.Logf("%d tries in %v, seed %#x: %d accepted, %d runs, %d instructions compared, %d compiled",
			done, time.Since(start).Round(time.Second), seed, total.accepted, total.runs, total.steps, total.compiled)
	}
	for done := 0; done < tries; done += perSeed {
		g := newGrower(seed + uint64(done/perSeed))
		grow(t, g, perSeed)
		total.accepted, total.runs, total.steps, total.compiled = total.accepted+g.accepted, total.runs+g.runs, total.steps+g.steps, total.compiled+g.compiled
		if *growTries > 0 && done%1_000_000 == 0 {
			report(done + perSeed)
		}
	}
	report(tries)
	if total.accepted < tries/10 {
		t.Error("the generator has lost its way")
	}
}

// FuzzGrow is TestGrow with seeds of the fuzzer's.
func FuzzGrow(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { grow(t, newGrower(seed), 500) })
}
