package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/ebpf/asm"

	"nvtrace/ptx"
)

// Helpers of a warp's world.
const (
	helperBallot  = 610
	helperShuffle = 613
)

const lanes = 32

// A warp is interpreters that run a program together: at a collective call, each waits for all
// others.
type warp struct {
	mu      sync.Mutex
	wake    *sync.Cond
	round   int
	arrived int
	over    int // that have ended
	at      [lanes]int
	args    [lanes][2]uint64
	given   [lanes][2]uint64 // of the round before
	failed  error
}

var errParted = errors.New("the threads of the warp have parted")

// meet is a collective call of a lane at an instruction; it returns what all have given.
func (w *warp) meet(lane, at int, args [2]uint64) ([lanes][2]uint64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at[lane], w.args[lane] = at, args
	w.arrived++
	round := w.round
	w.check()
	for w.failed == nil && w.round == round {
		w.wake.Wait()
	}
	return w.given, w.failed
}

func (w *warp) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over++
	w.check()
}

// check ends the round when all lanes have arrived.
func (w *warp) check() {
	switch {
	case w.arrived == 0 || w.arrived+w.over < lanes:
		return
	case w.over > 0:
		w.failed = fmt.Errorf("%w: %d of them have ended, and others wait", errParted, w.over)
	default:
		for _, at := range w.at {
			if at != w.at[0] {
				w.failed = fmt.Errorf("%w: they wait at instructions %v", errParted, w.at)
			}
		}
		w.given, w.arrived = w.args, 0
		w.round++
	}
	w.wake.Broadcast()
}

// warpEnv is a world's environment with collective calls, whose context is the same in all
// threads but for the last field.
func warpEnv() *Env {
	env := newWorld(0).env
	for i := range env.Context.Fields {
		env.Context.Fields[i].Uniform = i < 4
	}
	env.Helpers[helperBallot] = &Helper{Name: "ballot", Args: []ArgSpec{{Kind: ArgScalar}}, Collective: true, Common: true, Emit: func(g *Gen, c *Call) (ptx.Arg, error) {
		p, r, d, x := g.Reg(ptx.Pred), g.Reg(ptx.B32), g.Reg(ptx.B64), g.Reg(ptx.B64)
		g.Mov(ptx.B64, x, c.Args[0].Reg())
		g.Setp("ne", ptx.U64, p, x, ptx.Imm(0))
		g.Line("vote.sync.ballot.b32 " + r.String() + ", " + p.String() + ", " + g.Together().String() + ";")
		g.Cvt("", ptx.U64, ptx.U32, d, r)
		return d, nil
	}}
	env.Helpers[helperShuffle] = &Helper{Name: "shuffle", Args: []ArgSpec{{Kind: ArgScalar}, {Kind: ArgScalar}}, Max: 1<<32 - 1, Collective: true, Emit: func(g *Gen, c *Call) (ptx.Arg, error) {
		r, n, d, x := g.Reg(ptx.B32), g.Reg(ptx.B32), g.Reg(ptx.B64), g.Reg(ptx.B64)
		g.Mov(ptx.B64, x, c.Args[0].Reg())
		g.Cvt("", ptx.U32, ptx.U64, r, x)
		g.Mov(ptx.B64, x, c.Args[1].Reg())
		g.Cvt("", ptx.U32, ptx.U64, n, x)
		g.And(ptx.B32, n, n, ptx.Imm(31))
		g.Line("shfl.sync.idx.b32 " + r.String() + ", " + r.String() + ", " + n.String() + ", 31, " + g.Together().String() + ";")
		g.Cvt("", ptx.U64, ptx.U32, d, r)
		return d, nil
	}}
	return env
}

// interpretWarp runs a program in all lanes.
func interpretWarp(p *Program, env *Env) (results [lanes]uint64, err error) {
	w := new(warp)
	w.wake = sync.NewCond(&w.mu)
	var errs [lanes]error
	var all sync.WaitGroup
	for lane := range lanes {
		all.Go(func() {
			defer w.end()
			own := *env
			own.Helpers = map[int32]*Helper{}
			pc := 0
			ballot, shuffle := *env.Helpers[helperBallot], *env.Helpers[helperShuffle]
			ballot.Interpret = func(_ *Interpreter, a [5]uint64) (v uint64, err error) {
				given, err := w.meet(lane, pc, [2]uint64{a[0]})
				for i := range given {
					if given[i][0] != 0 {
						v |= 1 << i
					}
				}
				return v, err
			}
			shuffle.Interpret = func(_ *Interpreter, a [5]uint64) (uint64, error) {
				given, err := w.meet(lane, pc, [2]uint64{a[0], a[1]})
				return uint64(uint32(given[a[1]&31][0])), err
			}
			own.Helpers[helperBallot], own.Helpers[helperShuffle] = &ballot, &shuffle
			in := &Interpreter{Env: &own, Field: func(i int) uint64 { return field(i, lane) }, before: func(i int) error { pc = i; return nil }}
			r, err := in.Run(p)
			results[lane], errs[lane] = r.R0, err
			if r.Early {
				results[lane] = ^uint64(0)
			}
		})
	}
	all.Wait()
	return results, errors.Join(errs[:]...)
}

// warpStatement is a statement of a program that a warp runs.
func (g *generator) warpStatement() {
	switch n := g.r.IntN(100); {
	case n < 35:
		g.arithmetic()
	case n < 45:
		g.stack()
	case n < 60:
		g.branch()
	case n < 68:
		g.loop()
	case n < 73: // some threads end
		l := g.newLabel()
		g.emit(asm.JNE.Imm(g.source(), g.imm32(), l), asm.Mov.Imm(asm.R0, 3), asm.Return())
		g.place(l)
	case n < 80: // a loop that threads may leave one by one
		if c := 6 + g.r.IntN(3); g.locked>>c&1 == 0 && g.depth < 3 {
			d, head := asm.Register(c), g.newLabel()
			if s := g.source(); s != d {
				g.emit(asm.Mov.Reg(d, s))
			}
			g.emit(asm.And.Imm(d, 3))
			g.regs[c] = gen{kind: 's'}
			if g.locked |= 1 << c; g.locked&0x3ff == 0x3ff {
				g.locked &^= 1 << c
				return
			}
			g.depth++
			g.place(head)
			for range 1 + g.r.IntN(3) {
				g.arithmetic()
			}
			if g.r.IntN(4) == 0 {
				g.together()
			}
			g.emit(asm.Sub.Imm(d, 1), asm.JSGT.Imm(d, 0, head))
			g.depth--
			g.locked &^= 1 << c
		}
	default:
		g.together()
	}
}

// together calls a collective helper.
func (g *generator) together() {
	if g.locked&0x3f != 0 {
		return
	}
	a, b := g.source(), g.source()
	g.emit(asm.StoreMem(asm.R10, -8, a, asm.DWord), asm.StoreMem(asm.R10, -16, b, asm.DWord), asm.LoadMem(asm.R1, asm.R10, -8, asm.DWord), asm.LoadMem(asm.R2, asm.R10, -16, asm.DWord))
	g.emit(asm.BuiltinFunc([]int32{helperBallot, helperShuffle}[g.r.IntN(2)]).Call())
	clear(g.regs[:6])
	g.regs[0] = gen{kind: 's'}
	for r := 1; r < 6; r++ {
		g.number(r)
	}
}

// warpProgram is a random program that a warp runs.
func warpProgram(seed uint64) *Program {
	g := newGenerator(seed)
	g.warp = true
	g.regs[1] = gen{kind: 'c'}
	g.emit(asm.Mov.Reg(asm.R9, asm.R1), asm.LoadMem(asm.R8, asm.R1, 16, asm.Word)) // the thread's number
	g.regs[9], g.regs[8] = gen{kind: 'c'}, gen{kind: 's'}
	for r := range 8 {
		g.number(r)
	}
	for range 3 + g.r.IntN(12) {
		g.statement()
	}
	g.finish()
	return &Program{Name: "warp", Insns: g.out}
}

// TestCollectives: in programs that are accepted all threads of a warp come to the same
// collective calls, and what they compute is what interpreters compute that wait for each
// other there.
func TestCollectives(t *testing.T) {
	n := uint64(1500)
	if testing.Short() {
		n = 300
	}
	ran, refused, parted := 0, 0, 0
	for seed := range n {
		p, env := warpProgram(seed), warpEnv()
		v, err := Verify(p, env)
		if why, ok := errors.AsType[*RefusedError](err); ok && strings.Contains(why.Reason, "parted") {
			refused++
			if _, err := interpretWarp(p, env); errors.Is(err, errParted) {
				parted++
			}
			continue
		}
		if err != nil {
			continue
		}
		want, err := interpretWarp(p, env)
		if err != nil {
			t.Fatalf("seed %d: %v\n%v", seed, err, p.Insns)
		}
		w := newWorld(0)
		site := w.site()
		site.Reconverge = seed%2 == 0
		at := func(g *Gen) ptx.Arg {
			d, r := g.Reg(ptx.B64), g.Reg(ptx.B32)
			g.Mov(ptx.U32, r, ptx.Name("%tid.x"))
			g.Line("mul.wide.u32 " + d.String() + ", " + r.String() + ", 8;")
			g.Add(ptx.U64, d, d, g.Address(Addr{Symbol: "nvm"}))
			return ptx.Addr(d, 0)
		}
		site.Result = func(g *Gen, r0 ptx.Arg) error { g.St("", ptx.SpaceGlobal, ptx.U64, at(g), r0); return nil }
		site.Failed = func(g *Gen) error { g.St("", ptx.SpaceGlobal, ptx.U64, at(g), ptx.Imm(-1)); return nil }
		code, err := v.Emit(site)
		if err != nil {
			t.Fatal(err)
		}
		out := run(t, module(1, code), lanes, &world{mem: make([]byte, worldSize)})
		for lane := range lanes {
			if got := binary.LittleEndian.Uint64(out[8*lane:]); got != want[lane] {
				t.Fatalf("seed %d, lane %d: %#x, the interpreters say %#x\n%v\n%s", seed, lane, got, want[lane], p.Insns, code)
			}
		}
		ran++
	}
	t.Logf("%d ran, %d were refused, of which %d do part", ran, refused, parted)
	if ran < int(n/10) || refused < int(n/20) || parted == 0 {
		t.Errorf("of %d programs, %d ran, %d were refused, of which %d do part", n, ran, refused, parted)
	}
}

// TestMeetsAll: who waits at the end of a program is who came in, also on targets that can't tell
// more of a warp, on which for collective calls each thread is alone.
func TestMeetsAll(t *testing.T) {
	site := newWorld(0).site()
	site.Version, site.Reconverge = ptx.Version{Major: 8, Minor: 0}, true
	came, waits := regexp.MustCompile(`activemask\.b32 (%\w+);`), regexp.MustCompile(`bar\.warp\.sync (%\w+);`)
	for _, calls := range []bool{false, true} {
		ins := asm.Instructions{
			asm.LoadMem(asm.R6, asm.R1, 0, asm.Word),
			asm.JEq.Imm(asm.R6, 1, "out"), asm.Mov.Imm(asm.R6, 2),
			asm.Mov.Reg(asm.R0, asm.R6).WithSymbol("out"), asm.Return(),
		}
		if calls {
			ins = slices.Insert(ins, 1, asm.Mov.Reg(asm.R1, asm.R6), asm.BuiltinFunc(helperBallot).Call(), asm.Mov.Reg(asm.R6, asm.R0))
		}
		v, err := Verify(&Program{Name: "meets", Insns: ins}, warpEnv())
		if err != nil {
			t.Fatal(err)
		}
		for _, sm := range []uint16{52, 61, 75, 90} {
			site.Target = ptx.Target{SM: sm}
			code, err := v.Emit(site)
			if err != nil {
				t.Fatal(err)
			}
			in, out := came.FindStringSubmatch(code), waits.FindStringSubmatch(code)
			masks := 1 // of the branch that nobody takes
			if calls && sm < 70 {
				masks++
			}
			if in == nil || out == nil || in[1] != out[1] || strings.Count(code, "%lanemask_eq") != masks {
				t.Errorf("calls %v, sm_%d: %q, %q\n%s", calls, sm, in, out, code)
			}
		}
	}
}
