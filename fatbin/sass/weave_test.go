package sass

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nvtrace/fatbin"
)

func readFile(tb testing.TB, name string) []byte {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "weave", name))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func testBody(tb testing.TB, name string, arch Arch) *Body {
	tb.Helper()
	b, err := BodyFromCubin(readFile(tb, name+"."+arch.String()+".cubin"), name)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func openEditor(tb testing.TB, image []byte) *fatbin.CubinEditor {
	tb.Helper()
	e, err := fatbin.NewCubinEditor(image, &fatbin.CubinEditOptions{DropMercury: true})
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

// openWeaver makes a weaver for a kernel as an editor of its cubin shows it.
func openWeaver(tb testing.TB, e *fatbin.CubinEditor, kernel string) *Weaver {
	tb.Helper()
	kc, err := e.Code(kernel)
	if err != nil {
		tb.Fatal(err)
	}
	fn := &Func{Arch: Arch(e.Cubin().Arch.SM), Name: kernel, Code: Words(kc.Code), Targets: kc.Targets, Registers: kc.Registers}
	w, err := NewWeaver(fn, &KernelFacts{Registers: kc.Registers, Listed: kc.Listed, Special: kc.Special})
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

// finish ends a weaving and puts the result into the editor.
func finish(tb testing.TB, e *fatbin.CubinEditor, kernel string, w *Weaver) *Woven {
	tb.Helper()
	res, err := w.Finish()
	if err != nil {
		tb.Fatal(err)
	}
	var code []byte
	for _, w := range res.Code {
		code = w.Append(code)
	}
	if err := e.Set(kernel, &fatbin.CodeChange{Code: code, Registers: res.Registers, Exits: res.Exits, Stack: res.Stack}); err != nil {
		tb.Fatal(err)
	}
	return res
}

// A weaving is a way to weave the kernels of testdata. They have the address of the
// counters as their last parameter, which is in the constant bank at at: those of
// threads that begin, that end, of accesses to global memory, the sum of their
// addresses, and of instructions.
type weaving struct {
	name                     string
	entries, exits, accesses bool
	weave                    func(w *Weaver, b *bodies, at int) []error
}

type bodies struct{ count, access, address, tally, flush *Body }

func testBodies(tb testing.TB, arch Arch) *bodies {
	tb.Helper()
	b := &bodies{count: testBody(tb, "count", arch), address: testBody(tb, "address", arch), tally: testBody(tb, "tally", arch), flush: testBody(tb, "flush", arch)}
	if arch >= 90 {
		b.access = testBody(tb, "access", arch)
	}
	return b
}

var weavings = []weaving{
	{"entry", true, false, false, func(w *Weaver, b *bodies, at int) []error {
		return []error{w.Entry(b.count, ConstWide(0, at), Imm(0))}
	}},
	{"exit", false, true, false, func(w *Weaver, b *bodies, at int) []error {
		return []error{w.Exits(b.count, ConstWide(0, at), Imm(1))}
	}},
	{"variables", false, true, false, func(w *Weaver, b *bodies, at int) []error { return weaveVariables(w, b, at) }},
	{"variables in memory", false, true, false, func(w *Weaver, b *bodies, at int) []error {
		w.usable = min(w.usable, w.fresh+1)
		return weaveVariables(w, b, at)
	}},
	{"totals", false, true, false, func(w *Weaver, b *bodies, at int) []error { return weaveTotals(w, b, at) }},
	{"address", false, false, true, func(w *Weaver, b *bodies, at int) []error { return weaveAccesses(w, b.address, at) }},
	{"values", false, false, false, func(w *Weaver, b *bodies, at int) []error { return weaveValues(w, b.address, at) }},
	{"instructions", false, false, false, func(w *Weaver, b *bodies, at int) []error { return weaveInstructions(w, b, at) }},
	{"access", false, false, true, func(w *Weaver, b *bodies, at int) []error { return weaveAccesses(w, b.access, at) }},
	{"all", true, true, true, func(w *Weaver, b *bodies, at int) []error {
		errs := weaveAccesses(w, b.access, at)
		errs = append(errs, w.Entry(b.count, ConstWide(0, at), Imm(0)))
		return append(errs, w.Exits(b.count, ConstWide(0, at), Imm(1)))
	}},
	{"everywhere", true, true, true, func(w *Weaver, b *bodies, at int) []error {
		errs := weaveAccesses(w, b.access, at)
		errs = append(errs, w.Entry(b.count, ConstWide(0, at), Imm(0)))
		errs = append(errs, weaveInstructions(w, b, at)...)
		return append(errs, w.Exits(b.count, ConstWide(0, at), Imm(1)))
	}},
}

// weaveVariables has each thread count in a variable of its own how often it begins.
func weaveVariables(w *Weaver, b *bodies, at int) []error {
	v, err := w.Reserve([]uint32{0, 0})
	switch {
	case err != nil && strings.Contains(err.Error(), "the kernel calls functions"):
		return []error{w.Exits(b.count, ConstWide(0, at), Imm(1))}
	case err != nil:
		return []error{err}
	}
	return []error{w.Entry(b.tally, v.Arg()), w.Exits(b.flush, ConstWide(0, at), Imm(1), v.Arg())}
}

// weaveTotals has each thread add up 1 where it begins.
func weaveTotals(w *Weaver, b *bodies, at int) []error {
	v, err := w.Totals(1, b.flush, ConstWide(0, at), Imm(1))
	if err != nil { // there are no registers, or functions have them
		return []error{w.Exits(b.count, ConstWide(0, at), Imm(1))}
	}
	i, err := w.first(false)
	return []error{err, w.Add(i*WordSize, v, 0, 1, false)}
}

func weaveInstructions(w *Weaver, b *bodies, at int) []error {
	n := 0
	for i := range w.Analysis().Insts {
		// Not every place takes one.
		if w.Before(i*WordSize, b.count, ConstWide(0, at), Imm(4)) == nil {
			n++
		}
	}
	if n == 0 {
		return []error{errors.New("no instruction can be probed")}
	}
	return nil
}

func weaveAccesses(w *Weaver, b *Body, at int) (errs []error) {
	for i := range w.Analysis().Insts {
		if a, ok := w.Analysis().Insts[i].Access(); ok && a.Space == Global {
			errs = append(errs, w.Before(i*WordSize, b, ConstWide(0, at), SiteAddress(), Imm(2), Active()))
		}
	}
	return errs
}

// weaveValues gives a body what loads and atomic operations got, and what stores store.
func weaveValues(w *Weaver, b *Body, at int) (errs []error) {
	for i := range w.Analysis().Insts {
		in := &w.Analysis().Insts[i]
		if _, ok := in.Access(); !ok || w.displaceable(i) != nil {
			continue
		}
		put := w.Before
		if _, _, ok := in.result(); ok {
			put = w.After
		}
		errs = append(errs, put(i*WordSize, b, ConstWide(0, at), SiteValue(), Imm(2), Active()))
	}
	return errs
}

// weave weaves the kernels of an image in one way. It also returns the offsets of the
// instructions that are replaced, by kernel.
func weave(tb testing.TB, image []byte, how *weaving) ([]byte, map[string]map[int]bool) {
	tb.Helper()
	return weaveSharing(tb, image, how, longBody)
}

// weaveSharing does it with shared copies of bodies of long instructions and more.
func weaveSharing(tb testing.TB, image []byte, how *weaving, long int) ([]byte, map[string]map[int]bool) {
	tb.Helper()
	e := openEditor(tb, image)
	arch := Arch(e.Cubin().Arch.SM)
	b := testBodies(tb, arch)
	sites := make(map[string]map[int]bool)
	for i := range e.Cubin().Kernels {
		k := &e.Cubin().Kernels[i]
		w := openWeaver(tb, e, k.Name)
		w.long = long
		for _, err := range how.weave(w, b, k.ParamBase+k.Params[len(k.Params)-1].Offset) {
			switch {
			case err == nil:
			case arch < 90 && strings.Contains(err.Error(), "that is not handled"):
				tb.Logf("%s, %s, %s: %v", arch, k.Name, how.name, err) // [UR6+0x10]
			default:
				tb.Errorf("%s, %s, %s: %v", arch, k.Name, how.name, err)
			}
		}
		res := finish(tb, e, k.Name, w)
		tb.Logf("%s, %s: %d places, registers %d, now %d, %d bytes more", k.Name, how.name, len(res.Sites), k.Registers, res.Registers, res.Growth)
		sites[k.Name] = make(map[int]bool)
		for i, w := range res.Code[:k.Size/WordSize] {
			if w.Opcode() == opBRA && w != WordAt(code(tb, e, k.Name)[i*WordSize:]) {
				sites[k.Name][i*WordSize] = true
			}
		}
	}
	out, err := e.Bytes()
	if err != nil {
		tb.Fatal(err)
	}
	return out, sites
}

func code(tb testing.TB, e *fatbin.CubinEditor, kernel string) []byte {
	tb.Helper()
	kc, err := e.Code(kernel)
	if err != nil {
		tb.Fatal(err)
	}
	return kc.Code
}

// sets are the cubins with kernels.
var sets = []string{"kernels", "calls"}

// TestWriteGPUFiles writes what testdata/weave/gpurun runs on a GPU.
func TestWriteGPUFiles(t *testing.T) {
	dir := os.Getenv("NVTRACE_SASS_GPU_FILES")
	if dir == "" {
		t.Skip("NVTRACE_SASS_GPU_FILES names no folder")
	}
	var cases []byte
	files := make(map[string][]byte)
	yes := map[bool]int{true: 1}
	for _, set := range sets {
		image := readFile(t, set+".sm_90.cubin")
		files[set+".cubin"], files[set+".truth.cubin"] = image, readFile(t, set+".truth.sm_90.cubin")
		c, err := fatbin.ParseCubin(image)
		if err != nil {
			t.Fatal(err)
		}
		for i := range weavings {
			how := &weavings[i]
			for suffix, long := range map[string]int{"": longBody, ".shared": 0} {
				files[set+"."+how.name+suffix+".cubin"], _ = weaveSharing(t, image, how, long)
				for _, k := range c.Kernels {
					cases = fmt.Appendf(cases, "%s %s %s %d %d %d\n", set, k.Name, how.name+suffix, yes[how.entries], yes[how.exits], yes[how.accesses])
				}
			}
		}
	}
	files["cases"] = cases
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// Every place takes its probe, and the result passes the weaver's own check; also where
// several places share a copy of the body.
func TestWeave(t *testing.T) {
	for _, set := range sets {
		for i := range weavings {
			image := readFile(t, set+".sm_90.cubin")
			t.Run(set+" "+weavings[i].name, func(t *testing.T) { weave(t, image, &weavings[i]) })
			t.Run(set+" "+weavings[i].name+" shared", func(t *testing.T) { weaveSharing(t, image, &weavings[i], 0) })
		}
	}
}

// woven returns a kernel with probes before the check, and what the check needs.
func woven(tb testing.TB, kernel string, how func(w *Weaver, b *bodies, at int) []error) (*Weaver, *emitter) {
	tb.Helper()
	e := openEditor(tb, readFile(tb, "kernels.sm_90.cubin"))
	w := openWeaver(tb, e, kernel)
	kc, err := e.Code(kernel)
	if err != nil {
		tb.Fatal(err)
	}
	arch := Arch(e.Cubin().Arch.SM)
	b := testBodies(tb, arch)
	if err := errors.Join(how(w, b, kc.ParamBase+kc.Params[len(kc.Params)-1].Offset)...); err != nil {
		tb.Fatal(err)
	}
	out := &Woven{Code: slices.Clone(w.a.Func.Code), Registers: 255}
	em := &emitter{w: w, out: out, moved: make(map[int]int), calls: make(map[int]*sharedCopy)}
	if err := em.emit(); err != nil {
		tb.Fatal(err)
	}
	if err := w.check(out, em); err != nil {
		tb.Fatal(err)
	}
	return w, em
}

// The check finds mistakes that a weaver could make.
func TestCheckFindsMistakes(t *testing.T) {
	accesses := func(w *Weaver, b *bodies, at int) []error { return weaveAccesses(w, b.access, at) }
	sharing := func(w *Weaver, b *bodies, at int) []error {
		w.long = 0
		return weaveAccesses(w, b.access, at)
	}
	exits := func(w *Weaver, b *bodies, at int) []error { return []error{w.Exits(b.count, ConstWide(0, at), Imm(1))} }
	for name, c := range map[string]struct {
		how  func(w *Weaver, b *bodies, at int) []error
		plan func(w *Weaver, e *emitter) bool
	}{
		"a register of the kernel is overwritten": {accesses, func(w *Weaver, e *emitter) bool {
			// The first instruction of a block becomes a MOV to a register that is live.
			for at, i := range e.moved {
				for r := range uint8(200) {
					if r != 1 && w.a.LiveOut[i].Has(GPR, r) && w.a.LiveIn[i].Has(GPR, r) {
						for e.out.Code[at-1].Opcode() != opNOP {
							at--
						}
						e.out.Code[at-1] = MOVImm(r, 1)
						return true
					}
				}
			}
			return false
		}},
		"loaded arguments are not waited for": {accesses, func(w *Weaver, e *emitter) bool {
			n := len(w.a.Func.Code)
			return unwait(e, n, func(k int) bool { return e.out.Code[k].Opcode() == 0x20c || e.out.Code[k].Opcode() == 0x80c })
		}},
		"the body's stores are not waited for": {accesses, func(w *Weaver, e *emitter) bool {
			// Nor where the threads meet: then the next instruction overwrites what is read.
			for k := len(w.a.Func.Code); k < len(e.out.Code); k++ {
				if e.out.Code[k].Opcode() == 0x98e {
					r := uint8(e.out.Code[k].Bits(32, 8))
					for j := k + 1; j < len(e.out.Code); j++ {
						c := e.out.Code[j].Control()
						c.Wait = 0
						e.out.Code[j] = e.out.Code[j].WithControl(c)
						if e.out.Code[j].Opcode() == opNOP {
							e.out.Code[j] = MOVImm(r, 0)
							return true
						}
					}
				}
			}
			return false
		}},
		"an exit's registers are still being read": {exits, func(w *Weaver, e *emitter) bool {
			// The probe uses the registers of a store that stands before an exit.
			n := len(w.a.Func.Code)
			for i := range w.a.Insts {
				if w.a.Insts[i].Name() == "STG" && w.silentReader(i) {
					e.out.Code[n] = MOVImm(uint8(w.a.Insts[i].Word.Bits(32, 8)), 0)
					return true
				}
			}
			return false
		}},
		"a shared copy overwrites a register of the kernel": {sharing, func(w *Weaver, e *emitter) bool {
			for at, s := range e.calls {
				for r := range uint8(200) {
					i := slices.IndexFunc(e.blocks, func(b block) bool { return b.start < at && at < b.end })
					if r != 1 && w.a.LiveIn[e.blocks[i].site].Has(GPR, r) && !s.regs.used.Has(GPR, r) {
						e.out.Code[s.base+1] = MOVImm(r, 1)
						return true
					}
				}
			}
			return false
		}},
		"arguments of a shared copy are not waited for": {sharing, func(w *Weaver, e *emitter) bool {
			for at := range e.calls {
				c := e.out.Code[at].Control()
				c.Wait = 0
				e.out.Code[at] = e.out.Code[at].WithControl(c)
				return true
			}
			return false
		}},
		"a register that the kernel doesn't have": {exits, func(w *Weaver, e *emitter) bool {
			e.out.Registers = w.facts.Registers
			e.out.Code[len(w.a.Func.Code)] = MOVImm(uint8(w.facts.Registers), 0)
			return true
		}},
	} {
		found := false
		for _, kernel := range []string{"vadd", "diverge", "gather", "dense"} {
			w, e := woven(t, kernel, c.how)
			if !c.plan(w, e) {
				continue
			}
			found = true
			if err := w.check(e.out, e); err == nil {
				t.Errorf("%s: %s: not found", kernel, name)
			} else {
				t.Logf("%s: %s: %v", kernel, name, err)
			}
		}
		if !found {
			t.Errorf("%s: no kernel to try it with", name)
		}
	}
}

// unwait clears the wait of the first appended instruction of a kind.
func unwait(e *emitter, from int, is func(int) bool) bool {
	for k := from; k < len(e.out.Code); k++ {
		if c := e.out.Code[k].Control(); is(k) && c.Wait != 0 {
			c.Wait = 0
			e.out.Code[k] = e.out.Code[k].WithControl(c)
			return true
		}
	}
	return false
}

// What is not probed is said with its reason.
func TestRefusals(t *testing.T) {
	e := openEditor(t, readFile(t, "kernels.sm_90.cubin"))
	count := testBody(t, "count", 90)
	refused := func(name string, err error, want string) {
		t.Helper()
		if se, ok := errors.AsType[*SiteError](err); !ok || !strings.Contains(se.Reason, want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	w := openWeaver(t, e, "reduce")
	for i := range w.a.Insts {
		if w.a.Insts[i].Name() == "BAR" {
			refused("barrier", w.Before(i*WordSize, count, ConstWide(0, 0x230), Imm(0)), string(ReasonSync))
		}
	}
	refused("no offset", w.Before(8, count), "no instruction is there")
	refused("behind the end", w.Before(len(w.a.Insts)*WordSize, count), "no instruction is there")
	refused("padding", w.Before((len(w.a.Insts)-1)*WordSize, count), string(ReasonPadding))
	refused("no access", w.Before(0x10, count, SiteAddress(), Imm(0)), "accesses no memory")
	refused("address at exits", w.Exits(count, SiteAddress(), Imm(0)), "exits access no memory")
	refused("constant", w.Before(0x10, count, ConstWide(0, 3), Imm(0)), "has no word at")
	many := make([]Arg, 7)
	for i := range many {
		many[i] = ConstWide(0, 0x210)
	}
	refused("many arguments", w.Before(0x10, count, many...), "do not fit")
	kc, err := e.Code("reduce")
	if err != nil {
		t.Fatal(err)
	}
	fn := &Func{Arch: 90, Name: "reduce", Code: Words(kc.Code)}
	w, err = NewWeaver(fn, &KernelFacts{Registers: kc.Registers, Listed: []uint32{0x10}, Special: "something"})
	if err != nil {
		t.Fatal(err)
	}
	refused("listed", w.Before(0x10, count, ConstWide(0, 0x230), Imm(0)), string(ReasonListed))
	refused("special", w.Exits(count, ConstWide(0, 0x230), Imm(0)), "something")
	refused("special", w.Entry(count, ConstWide(0, 0x230), Imm(0)), "something")
	_, err = NewWeaver(fn, nil)
	refused("no registers", err, "the number of registers is 0")
	fn.Arch = 75
	if w, err = NewWeaver(fn, &KernelFacts{Registers: 32}); err == nil {
		refused("architecture", w.Before(0x10, count, ConstWide(0, 0x230), Imm(0)), "sm_90")
	}
}

// Kernels of every architecture take probes.
func TestWeaveArchs(t *testing.T) {
	for _, arch := range archs() {
		if arch == 87 {
			continue // there ptxas begins functions for tools with a uniform register and BMOV: they are no probes
		}
		image, err := os.ReadFile(filepath.Join("testdata", "kernels_"+arch.String()+".cubin"))
		if err != nil {
			t.Fatal(err)
		}
		for i := range weavings {
			switch weavings[i].name {
			case "access", "all", "everywhere":
				if arch < 90 {
					continue // there bar.warp.sync is a call
				}
			}
			t.Run(arch.String()+" "+weavings[i].name, func(t *testing.T) { weave(t, image, &weavings[i]) })
		}
	}
}

func TestBodyRefused(t *testing.T) {
	if _, err := BodyFromCubin(readFile(t, "access.sm_75.cubin"), "access"); !errors.Is(err, ErrBody) {
		t.Errorf("a body that calls: %v", err)
	}
	if _, err := BodyFromCubin(readFile(t, "count.sm_75.cubin"), "nothing"); !errors.Is(err, ErrBody) {
		t.Errorf("a body that isn't there: %v", err)
	}
	for what, code := range map[string][]Word{
		"no code":            nil,
		"no exit":            {NOP()},
		"unknown":            {{Lo: 0xfff}, exit()},
		"a uniform register": {MOVUR(4, 3), exit()},
		"the stack":          {MOV(4, 1), exit()},
		"local memory":       {local(opSTL, 4, 0), exit()},
		"a jump out":         {must(BRA(90, 0x100)), exit()},
	} {
		if _, err := newBody(90, what, code); !errors.Is(err, ErrBody) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// What one instruction is skipped by becomes its guard, if nothing else comes to it.
func TestGuardSkipped(t *testing.T) {
	red, skip := wordIADD, must(BRA(90, WordSize))
	for _, tc := range []struct {
		name string
		code []Word
		want Word // at 1
	}{
		{"a jump", []Word{skip.Guarded(0, false), red, exit()}, red.Guarded(0, true)},
		{"a jump, turned around", []Word{skip.Guarded(2, true), red, exit()}, red.Guarded(2, false)},
		{"an exit", []Word{exit().Guarded(0, false), red, exit()}, red.Guarded(0, true)},
		{"an exit, and two", []Word{exit().Guarded(0, false), red, red, exit()}, red.Guarded(0, true)},
		{"a jump that has a condition, too", []Word{skip.Guarded(0, false).SetBits(87, 4, 1), red, exit()}, red},
		{"it has a guard", []Word{skip.Guarded(0, false), red.Guarded(1, false), exit()}, red.Guarded(1, false)},
		{"a jump there", []Word{skip.Guarded(0, false), red, must(BRA(90, -2*WordSize)).Guarded(1, false), exit()}, red},
		{"a jump over two", []Word{must(BRA(90, 2*WordSize)).Guarded(0, false), red, red, exit()}, red.Guarded(0, true)},
		{"a jump over many", slices.Concat([]Word{must(BRA(90, (mostGuarded+1)*WordSize)).Guarded(0, false)}, slices.Repeat([]Word{red}, mostGuarded+1), []Word{exit()}), red},
		{"the guard is written", []Word{must(BRA(90, 2*WordSize)).Guarded(0, false), red, {0x000000050000720c, 0x000fda0003f06270}, exit()}, red}, // ISETP.GE.AND P0, PT, R0, R5, PT
		{"a jump between", []Word{must(BRA(90, 2*WordSize)).Guarded(0, false), red, red, must(BRA(90, -2*WordSize)).Guarded(1, false), exit()}, red},
		{"an exit is skipped", []Word{skip.Guarded(0, false), exit(), exit()}, exit()},
	} {
		code := slices.Clone(tc.code)
		guardSkipped(90, code)
		if code[1] != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, code[1], tc.want)
		}
		if gone := code[0] == NOP().WithControl(tc.code[0].Control()); gone != (tc.want != tc.code[1]) {
			t.Errorf("%s: the jump became %s", tc.name, code[0])
		}
	}
}

// Threads that nothing parts any more need not meet.
func TestDropMeetings(t *testing.T) {
	add, nop := wordIADD, NOP()
	enter := func(words int, barrier uint8) Word { return must(BSSY(90, barrier, int64(words)*WordSize)) }
	for _, tc := range []struct {
		name string
		code []Word
		gone bool
	}{
		{"nothing parts them", []Word{enter(2, 3), add, BSYNC(90, 3), exit()}, true},
		{"a guard", []Word{enter(2, 3), add.Guarded(0, false), BSYNC(90, 3), exit()}, true},
		{"a jump", []Word{enter(3, 3), must(BRA(90, WordSize)).Guarded(0, false), add, BSYNC(90, 3), exit()}, false},
		{"an exit", []Word{enter(3, 3), exit().Guarded(0, false), add, BSYNC(90, 3), exit()}, false},
		{"a jump to it", []Word{enter(2, 3), add, BSYNC(90, 3), must(BRA(90, -2*WordSize)).Guarded(0, false), exit()}, false},
		{"another barrier", []Word{enter(2, 3), add, BSYNC(90, 4), exit()}, false},
		{"it is elsewhere", []Word{enter(3, 3), add, BSYNC(90, 3), add, exit()}, false},
	} {
		code := slices.Clone(tc.code)
		dropMeetings(90, code)
		gone := code[0] == nop.WithControl(tc.code[0].Control()) && code[2] == nop.WithControl(tc.code[2].Control())
		if gone != tc.gone || !gone && !slices.Equal(code, tc.code) {
			t.Errorf("%s: %v", tc.name, code)
		}
	}
}

func must(w Word, ok bool) Word {
	if !ok {
		panic("does not fit")
	}
	return w
}

// A weaver without probes changes nothing.
func TestWeaveNothing(t *testing.T) {
	e := openEditor(t, readFile(t, "kernels.sm_90.cubin"))
	w := openWeaver(t, e, "vadd")
	res, err := w.Finish()
	kc, _ := e.Code("vadd")
	if err != nil || !slices.Equal(res.Code, Words(kc.Code)) || !slices.Equal(res.Exits, kc.Exits) {
		t.Errorf("%v, exits %x", err, res.Exits)
	}
}

func TestOccupancyLimit(t *testing.T) {
	for _, c := range []struct {
		arch Arch
		n    int
		want int
	}{{90, 12, 32}, {90, 32, 32}, {90, 33, 40}, {90, 110, 128}, {90, 168, 168}, {90, 200, 255}, {75, 12, 64}, {86, 12, 40}, {120, 40, 40}} {
		if got := occupancyLimit(c.arch, c.n); got != c.want {
			t.Errorf("%s: %d registers may become %d, want %d", c.arch, c.n, got, c.want)
		}
	}
}

// FuzzWeave weaves kernels with words that were changed, at any places: it may refuse,
// and its result passes its own check or is not given.
func FuzzWeave(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8}, uint16(3), uint8(255))
	e := openEditor(f, readFile(f, "kernels.sm_90.cubin"))
	b := testBodies(f, 90)
	kernels := e.Cubin().Kernels
	ends, err := newBody(90, "ends", []Word{setFalse(0), Word{Lo: opTrap, Hi: 0x000fe60000300000}.Guarded(0, true), exit()})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, change []byte, seed uint16, which uint8) {
		k := &kernels[int(seed)%len(kernels)]
		kc, err := e.Code(k.Name)
		if err != nil {
			t.Fatal(err)
		}
		code := slices.Clone(kc.Code)
		for i := 0; i+3 <= len(change); i += 3 {
			code[(int(change[i])<<8|int(change[i+1]))%len(code)] ^= change[i+2]
		}
		w, err := NewWeaver(&Func{Arch: 90, Name: k.Name, Code: Words(code), Targets: kc.Targets, Registers: k.Registers}, &KernelFacts{Registers: int(seed>>3) % 257})
		if err != nil {
			return
		}
		if which&16 != 0 {
			w.long = 0
		}
		if which&32 != 0 && seed%2 == 0 {
			if v, err := w.Reserve([]uint32{0}); err == nil {
				_ = w.Entry(b.tally, v.Arg())
				_ = w.Exits(b.flush, ConstWide(0, 0x230), Imm(1), v.Arg())
			}
		}
		if which&32 != 0 && seed%2 != 0 {
			if v, err := w.Totals(2, b.flush, ConstWide(0, 0x230), Imm(1)); err == nil {
				for i := range w.a.Insts {
					_ = w.Add(i*WordSize, v, i%2, int32(seed), i%3 == 0)
				}
			}
		}
		if which&1 != 0 {
			_ = w.Entry(b.count, ConstWide(0, 0x230), Imm(0))
		}
		if which&2 != 0 {
			_ = w.Exits(b.count, ConstWide(0, 0x230), Imm(0))
		}
		for i := range w.a.Insts {
			switch {
			case which&4 != 0 && (i+int(seed))%7 == 0:
				_ = w.Before(i*WordSize, b.access, ConstWide(0, 0x230), SiteAddress(), Imm(2), Active())
			case which&64 != 0 && i%5 == 0:
				_ = w.Before(i*WordSize, ends)
			case which&128 != 0 && i%2 == 0:
				_ = w.After(i*WordSize, b.address, ConstWide(0, 0x230), SiteValue(), Imm(2), Active())
			case which&8 != 0 && i%3 == 0:
				_ = w.Before(i*WordSize, b.count, ConstWide(0, 0x230), Imm(2))
			}
		}
		if _, err := w.Finish(); err != nil && !errors.Is(err, ErrUnsafe) {
			t.Fatal(err)
		}
	})
}

func FuzzBody(f *testing.F) {
	for _, name := range []string{"count", "access", "address"} {
		f.Add(readFile(f, name+".sm_90.cubin"), name)
	}
	f.Fuzz(func(t *testing.T, image []byte, name string) {
		b, err := BodyFromCubin(image, name)
		if err == nil && len(b.code) == 0 {
			t.Fatal("a body without instructions")
		}
	})
}

// A probe that ends at several places goes on from each, also at the exits of the kernel;
// its threads meet again, but where they end anyway.
func TestSeveralEnds(t *testing.T) {
	e := openEditor(t, readFile(t, "kernels.sm_90.cubin"))
	count := testBody(t, "count", 90)
	setp := Word{Lo: 0x00000000ff00720c | 0xff<<32, Hi: 0x000fe40003f05270} // ISETP.NE.AND P0, PT, RZ, RZ, PT
	jump, _ := BRA(90, WordSize)
	ends, err := newBody(90, "ends", []Word{setp, jump.Guarded(0, false), exit().Guarded(0, true), exit()})
	if err != nil {
		t.Fatal(err)
	}
	for _, add := range []func(w *Weaver) error{
		func(w *Weaver) error { return w.Entry(ends) },
		func(w *Weaver) error {
			return errors.Join(w.Exits(ends), w.Exits(ends), w.Exits(count, ConstWide(0, 0x230), Imm(1)))
		},
	} {
		w := openWeaver(t, e, "vadd")
		if err := add(w); err != nil {
			t.Fatal(err)
		}
		res := finish(t, e, "vadd", w)
		code := res.Code[len(w.a.Func.Code):]
		meets := slices.IndexFunc(code, func(w Word) bool { return w.Opcode() == opBSSY }) >= 0
		meet := slices.IndexFunc(code, func(w Word) bool { return w.Opcode() == opBSYNC })
		exit := slices.IndexFunc(code, func(w Word) bool { return w.Opcode() == opEXIT })
		red := slices.IndexFunc(code, func(w Word) bool { return w.Opcode() == 0x98e })
		if atEntry := len(w.exits) == 0; atEntry && (!meets || meet < 0 || exit >= 0) {
			t.Errorf("at the entry: BSSY %v, BSYNC at %d, EXIT at %d", meets, meet, exit)
		} else if !atEntry && (meets || meet >= 0 || red < 0 || red > exit) {
			t.Errorf("at exits: BSSY %v, BSYNC at %d, addition at %d, EXIT at %d", meets, meet, red, exit)
		}
	}
}

// A body keeps nothing that lets threads of the warp go on which wait at a barrier of the
// kernel.
func TestStayTogether(t *testing.T) {
	code := []Word{
		{Lo: 0x7946, Hi: 0x000fea0003800000},             // YIELD
		{Lo: 0x000000000f087348, Hi: 0x000fea0003c00000}, // WARPSYNC.COLLECTIVE R15, +0x20
		NOP(),
		{Lo: 0x791b, Hi: 0x001fe20003800000}, // ENDCOLLECTIVE
		{Lo: 0x000000400000795d, Hi: 0x000fea0003800000}, // NANOSLEEP 0x40
		exit(),
	}
	b, err := newBody(90, "apart", code)
	if err != nil {
		t.Fatal(err)
	}
	if c := b.code[3].Control(); b.code[0].Opcode() != opNOP || b.code[3].Opcode() != opNOP || b.code[4].Opcode() != opNOP || c.Wait != code[3].Control().Wait {
		t.Errorf("%v", b.code)
	}
	if in, ok := Decode(90, b.code[1]); !ok || in.Word.Opcode() != opWarpSync || in.pcRelative() || in.Word.Bits(24, 8) != 15 || in.Word.Bits(16, 8) != 0 {
		t.Errorf("%v", b.code[1])
	}
	for what, i := range map[string]int{"beginning": 1, "end": 3} {
		if _, err := newBody(90, "odd", slices.Delete(slices.Clone(code), i, i+1)); err == nil || !strings.Contains(err.Error(), "collective") {
			t.Errorf("a collective that has no %s: %v", what, err)
		}
	}
}

// Threads that a body ends within the region of a convergence barrier leave that before they
// meet the others behind the body: these may wait for them at the barrier.
func TestEndsWithinRegion(t *testing.T) {
	e := openEditor(t, readFile(t, "kernels.sm_90.cubin"))
	region, _ := BSSY(90, 0, 2*WordSize)
	body, err := newBody(90, "ends", []Word{setFalse(0), region, exit().Guarded(0, true), BSYNC(90, 0), exit()})
	if err != nil {
		t.Fatal(err)
	}
	w := openWeaver(t, e, "vadd")
	if err := w.Entry(body); err != nil {
		t.Fatal(err)
	}
	n := len(w.a.Func.Code)
	code := finish(t, e, "vadd", w).Code[n:]
	at := func(from int, op uint16) int {
		return from + slices.IndexFunc(code[from:], func(w Word) bool { return w.Opcode() == op })
	}
	meet := at(0, opBSSY)
	inner := at(meet+1, opBSSY)
	jump := at(inner, opBRA)
	leave := at(jump, opBREAK)
	in := Inst{Word: code[meet], Arch: 90}
	target, _ := in.target()
	if code[leave].Bits(16, 4) != code[inner].Bits(16, 4) || code[meet].Bits(16, 4) == code[inner].Bits(16, 4) {
		t.Errorf("BREAK of B%d; the regions have B%d and B%d", code[leave].Bits(16, 4), code[meet].Bits(16, 4), code[inner].Bits(16, 4))
	}
	if code[leave+1].Opcode() != opBSYNC || code[leave+1].Bits(16, 4) != code[meet].Bits(16, 4) || int(target) != (leave+1-meet)*WordSize {
		t.Errorf("the region of BSSY at %d goes on for %#x, BREAK is at %d", meet, target, leave)
	}
	in = Inst{Word: code[jump], Arch: 90}
	if target, _ := in.target(); int(target) != (leave-jump-1)*WordSize {
		t.Errorf("the end jumps by %#x from %d, BREAK is at %d", target, jump, leave)
	}
}

// A probe can end the thread, on some of its ways or on all: what comes behind it is not run
// then, and neither are probes at exits.
func TestEndsThreads(t *testing.T) {
	e := openEditor(t, readFile(t, "kernels.sm_90.cubin"))
	count := testBody(t, "count", 90)
	trap := Word{Lo: opTrap, Hi: 0x000fe60000300000}
	region, _ := BSSY(90, 0, 2*WordSize)
	for name, code := range map[string][]Word{
		"always":    {trap, exit()},
		"some":      {setFalse(0), trap.Guarded(0, true), exit()},
		"in region": {setFalse(0), region, trap.Guarded(0, true), BSYNC(90, 0), exit()},
	} {
		body, err := newBody(90, name, code)
		if err != nil {
			t.Fatal(err)
		}
		if len(body.leaves) > 0 {
			t.Errorf("%s: threads that end leave regions %v", name, body.leaves)
		}
		for _, long := range []int{0, longBody} {
			w := openWeaver(t, e, "vadd")
			w.long = long
			n := len(w.a.Func.Code)
			site := slices.Index(w.reasons, "")
			err := errors.Join(w.Entry(body), w.Before(site*WordSize, body), w.Exits(body), w.Exits(count, ConstWide(0, 0x230), Imm(1)))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			res := finish(t, e, "vadd", w)
			ends, guarded := 0, 0
			for _, off := range res.Exits {
				word := res.Code[off/WordSize]
				if word.Opcode() != opEXIT {
					t.Errorf("%s: no EXIT at +%#x, but %v", name, off, word)
				}
				if int(off/WordSize) >= n {
					ends++
					guarded += btoi(word.Bits(12, 4) != guardAlways)
				}
			}
			// Of each copy of the body one, and the one behind the count at the exits.
			const copies = 3
			if want := copies * btoi(name != "always"); guarded != want || ends < copies+1 {
				t.Errorf("%s, shared from %d on: %d exits, %d of them guarded, want %d", name, long, ends, guarded, want)
			}
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Several probes at a place save and restore predicates, one after the other, although
// some that nobody needs have changed.
func TestSavedTwice(t *testing.T) {
	change := R2P(5, 3)
	for _, tt := range []struct {
		what string
		code []Word
		good bool
	}{
		{"twice", []Word{P2R(10, 1), change, R2P(10, 1), P2R(11, 1), change, R2P(11, 1)}, true},
		{"with one that the first changed", []Word{P2R(10, 1), change, R2P(10, 1), P2R(11, 3), change, R2P(11, 3)}, true},
		{"not restored", []Word{P2R(10, 1), change, R2P(10, 1), P2R(11, 1), change}, false},
		{"saved when changed", []Word{change, P2R(11, 1), change, R2P(11, 1)}, false},
		{"other register", []Word{P2R(10, 1), change, R2P(11, 1)}, false},
		{"register overwritten", []Word{P2R(10, 1), change, MOVImm(10, 1), R2P(10, 1)}, false},
	} {
		a, err := Analyze(&Func{Arch: 90, Code: append(tt.code, exit())})
		if err != nil {
			t.Fatal(err)
		}
		a.LiveIn[0] = Set{P: 1}
		w := &Weaver{a: a}
		if err := w.checkBlock(a, block{site: 0, start: 0, end: len(tt.code), displaced: len(tt.code)}); (err == nil) != tt.good {
			t.Errorf("%s: %v", tt.what, err)
		}
	}
}

// An indirect jump goes to where the file says, and anywhere if it does not say so of that
// jump.
func TestJumpTargets(t *testing.T) {
	const jump = 2
	brx := Word{0xfffffffc06c07949, 0x000fea000383ffff} // BRX R6 of a switch
	code := []Word{NOP(), NOP(), brx, NOP(), exit(), NOP(), exit()}
	last := uint32(len(code)-1) * WordSize
	for _, tt := range []struct {
		targets   map[uint32][]uint32
		anywhere  bool
		uncertain string
	}{
		{nil, true, "the targets of the jump at"},
		{map[uint32][]uint32{uint32(jump+1) * WordSize: {0}}, true, "the targets of the jump at"},
		{map[uint32][]uint32{uint32(jump) * WordSize: {WordSize, last}}, false, ""},
	} {
		w, err := NewWeaver(&Func{Arch: 90, Code: code, Targets: tt.targets}, &KernelFacts{Registers: 40})
		if err != nil {
			t.Fatal(err)
		}
		blk := &w.a.Blocks[w.a.BlockOf[jump]]
		if blk.LeavesAnywhere != tt.anywhere || !strings.HasPrefix(w.uncertain, tt.uncertain) || tt.uncertain == "" && w.uncertain != "" {
			t.Errorf("%v: leaves anywhere %v, %q", tt.targets, blk.LeavesAnywhere, w.uncertain)
		}
		if !tt.anywhere && (!slices.Contains(blk.Succ, int(w.a.BlockOf[1])) || !slices.Contains(blk.Succ, int(w.a.BlockOf[last/WordSize]))) {
			t.Errorf("%v: goes to blocks %v", tt.targets, blk.Succ)
		}
	}
}

// A probe behind a load gets the address from before it, what was loaded from after it is
// there, and no more of that than was loaded.
func TestAfter(t *testing.T) {
	body, err := newBody(90, "looks", []Word{iadd3(8, 4, 6), iadd3(8, 5, 7), exit()})
	if err != nil {
		t.Fatal(err)
	}
	load := Word{0x0000000404047981, 0x000fe2000c1e1100} // LDG.E.U8 R4, desc[UR4][R4.64], which tells nobody
	use := iadd3(2, 4, 4).WithControl(Control{Stall: 5, WriteBar: NoBar, ReadBar: NoBar, Wait: 1})
	later := Word{0x0000000402037981, 0x000e22000c1e1900} // LDG.E R3, desc[UR4][R2.64], of scoreboard 0
	store := Word{0x0000000302007986, 0x000fe2000c101904} // STG.E desc[UR4][R2.64], R3
	const at = 1
	code := []Word{NOP(), load, later, use, store, exit()}
	w, err := NewWeaver(&Func{Arch: 90, Code: code}, &KernelFacts{Registers: 24})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.After(at*WordSize, body, SiteAddress(), SiteValue()); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"another probe runs behind it":       w.After(at*WordSize, body, SiteAddress(), SiteValue()),
		"STG loads nothing into registers":   w.After(4*WordSize, body, SiteAddress(), SiteValue()),
		"NOP loads nothing into registers":   w.After(0, body, SiteAddress(), SiteValue()),
		"no instruction is there":            w.After(0x1000, body, SiteAddress(), SiteValue()),
		"EXIT loads nothing into registers":  w.After(5*WordSize, body, SiteAddress(), SiteValue()),
		"the probe is for sm_80, the kernel": w.After(2*WordSize, &Body{Arch: 80}, SiteAddress(), SiteValue()),
	} {
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %q", err, what)
		}
	}
	res, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	find := func(from int, is func(in Inst) bool) int {
		for i := from; i < len(res.Code); i++ {
			if in, ok := Decode(90, res.Code[i]); ok && is(in) {
				return i
			}
		}
		t.Fatalf("not there behind %d", from)
		return 0
	}
	address := find(len(code), func(in Inst) bool { return in.Name() == "MOV" && in.Word.Bits(32, 8) == 4 })
	loads := find(address, func(in Inst) bool { return in.Name() == "LDG" })
	board := res.Code[loads].Control().WriteBar
	waits := find(loads, func(in Inst) bool {
		return in.Name() == "NOP" && board < unguarded && in.Word.Control().Wait>>board&1 != 0
	})
	masks := find(waits, func(in Inst) bool {
		return in.Name() == "LOP3" && in.Word.Bits(24, 8) == 4 && in.Word.Bits(32, 32) == 0xff
	})
	sum := find(masks, func(in Inst) bool { return in.Name() == "IADD3" })
	if a, v := res.Code[address].Bits(16, 8), res.Code[masks].Bits(16, 8); res.Code[sum].Bits(24, 8) != a || res.Code[sum].Bits(32, 8) != v || a == 4 || v == 4 {
		t.Errorf("the probe adds R%d and R%d, given the address in R%d and the value in R%d", res.Code[sum].Bits(24, 8), res.Code[sum].Bits(32, 8), a, v)
	}
}

// Copies to shared memory have two addresses. A probe is given that in global memory, and how many bytes
// are read from there on.
func TestCopyOperands(t *testing.T) {
	for _, tt := range []struct {
		arch Arch
		word Word
		text string
		size int
		imm  int32
		mask bool     // the address is rounded down
		want []string // how the number of bytes comes
	}{
		{80, Word{0x000807f0060d7fae, 0x000fe4000b921844}, "LDGSTS.E", 4, 0x7f0, false, []string{"MOV R9, 0x4"}},
		{80, Word{0x00060800020d7fae, 0x000fe8000b921c44}, "LDGSTS.E.128", 16, -0x800, false, []string{"MOV R9, 0x10"}},
		{80, Word{0x02000000080d7fae, 0x0007e80008941c44}, "LDGSTS.E.BYPASS.128.ZFILL", 16, 0, true, []string{"LOP3.LUT R9, R8, 0xf, RZ, 0xc, !PT", "IADD3 R9, R9, 0x1, RZ", "@!P1 MOV R9, 0x0"}},
		{80, Word{0x03000001060d7fae, 0x000fe8000b961844}, "LDGSTS.E.ZFILL", 4, 1, true, []string{"IADD3 R9, R6, 0x1, RZ", "LOP3.LUT R9, R9, 0x3, RZ, 0xc, !PT", "IADD3 R9, R9, 0x1, RZ"}},
		{90, Word{0x03000000060f8fae, 0x000fe80009901c46}, "LDGSTS.E.BYPASS.128", 16, 0, false, []string{"MOV R9, 0x10", "@!P3 MOV R9, 0x0"}},
		{90, Word{0x03000000060f7fae, 0x000fe8000f921846}, "LDGSTS.E", 4, 0, false, []string{"MOV R9, 0x4", "MOV R9, 0x0"}},
		{90, Word{0x03000000060f7fae, 0x000fe8000c921a46}, "LDGSTS.E.64", 8, 0, false, []string{"MOV R9, 0x8", "@P1 MOV R9, 0x0"}},
		{100, Word{0x00400000060a7fae, 0x000fe4000b9a1406}, "LDGSTS.E.64", 8, 0, false, []string{"MOV R9, 0x8"}},
		{100, Word{0x02000000080d7fae, 0x000fe200091c1806}, "LDGSTS.E.BYPASS.128.ZFILL", 16, 0, true, []string{"LOP3.LUT R9, R8, 0xf, RZ, 0xc, !PT", "IADD3 R9, R9, 0x1, RZ", "@!P2 MOV R9, 0x0"}},
		{120, Word{0x00050ff0020f7fae, 0x000fe8000b9a1006}, "LDGSTS.E", 4, -0x10, false, []string{"MOV R9, 0x4"}},
	} {
		in, ok := Decode(tt.arch, tt.word)
		a, isAccess := in.Access()
		m, known := in.access()
		if !ok || !isAccess || !known || in.FullName() != tt.text || a.Size != tt.size || m.imm != tt.imm || int(m.reg) != int(tt.word.Bits(24, 8)) || !m.wide {
			t.Errorf("%s: %s, %+v, %+v", tt.arch, in.FullName(), a, m)
			continue
		}
		if _, fills := in.fills(); fills != tt.mask {
			t.Errorf("%s: %s fills with zeros: %t", tt.arch, in.FullName(), fills)
		}
		e := emitter{w: &Weaver{arch: tt.arch, a: &Analysis{Insts: []Inst{in}}}, out: new(Woven)}
		e.copied(0, 9)
		var got []string
		for _, w := range e.out.Code {
			var words []string
			switch reg, negated, guarded := w.Bits(12, 3), w.Bits(15, 1) != 0, w.Bits(12, 4) != PT; {
			case guarded && negated:
				words = append(words, fmt.Sprintf("@!P%d", reg))
			case guarded:
				words = append(words, fmt.Sprintf("@P%d", reg))
			}
			switch plain := w.WithControl(Control{}).Guarded(PT, false); plain {
			case MOVImm(9, uint32(w.Bits(32, 32))).WithControl(Control{}):
				words = append(words, fmt.Sprintf("MOV R9, %#x", w.Bits(32, 32)))
			case andNot(9, uint8(w.Bits(24, 8)), uint32(w.Bits(32, 32))).WithControl(Control{}):
				words = append(words, fmt.Sprintf("LOP3.LUT R9, R%d, %#x, RZ, 0xc, !PT", w.Bits(24, 8), w.Bits(32, 32)))
			case iadd3Imm(9, uint8(w.Bits(24, 8)), uint32(w.Bits(32, 32))).WithControl(Control{}):
				words = append(words, fmt.Sprintf("IADD3 R9, R%d, %#x, RZ", w.Bits(24, 8), w.Bits(32, 32)))
			default:
				words = append(words, w.String())
			}
			got = append(got, strings.Join(words, " "))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %s: %q, want %q", tt.arch, in.FullName(), got, tt.want)
		}
	}
}

// Loads of matrices have addresses of rows in the first threads, as many as their form says.
func TestRowOperands(t *testing.T) {
	row := Word{0x000210000f04783b, 0x000e680000000000}
	for _, tt := range []struct {
		arch    Arch
		word    Word
		text    string
		threads int
	}{
		{75, row, "LDSM.16.M88", 8},
		{80, row.SetBits(72, 2, 1), "LDSM.16.M88.2", 16},
		{90, row.SetBits(72, 2, 2), "LDSM.16.M88.4", 32},
		{90, row.SetBits(72, 2, 2).SetBits(78, 3, 1), "LDSM.16.MT88.4", 32},
		{90, row.SetBits(78, 3, 2), "LDSM.16.M816", 0},
		{100, row.SetBits(72, 2, 1), "LDSM.16.M88.2", 16},
		{100, row.SetBits(78, 3, 4), "LDSM.16.MT1616", 16},
		{100, row.SetBits(72, 2, 1).SetBits(78, 3, 4), "LDSM.16.MT1616.2", 32},
		{103, row.SetBits(72, 2, 1), "LDSM.16.M88.2", 16},
		{110, row.SetBits(72, 2, 1), "LDSM.16.M88.2", 16},
		{120, row.SetBits(78, 3, 3), "LDSM.16.M832", 0},
		{121, row.SetBits(72, 2, 1), "LDSM.16.M88.2", 16},
	} {
		in, ok := Decode(tt.arch, tt.word)
		a, isAccess := in.Access()
		m, known := in.access()
		threads, rows := in.Rows()
		if !ok || !isAccess || !known || !rows || in.FullName() != tt.text || a.Size != 16 || a.Store || a.Space != SharedMemory || m.wide || m.imm != 0x210 || m.reg != 15 || in.Loads() {
			t.Errorf("%s: %s, known %v, %+v, %+v", tt.arch, in.FullName(), ok, a, m)
			continue
		}
		if threads != tt.threads {
			t.Errorf("%s: %s: addresses of %d threads, want %d", tt.arch, in.FullName(), threads, tt.threads)
		}
		e := emitter{w: &Weaver{arch: tt.arch, a: &Analysis{Insts: []Inst{in}}}, out: new(Woven)}
		if e.copied(0, 9); len(e.out.Code) != 1 || e.out.Code[0].Bits(32, 32) != uint64(tt.threads) {
			t.Errorf("%s: %s: a body gets %v", tt.arch, in.FullName(), e.out.Code)
		}
	}
}

// A probe before a load may use the registers that this writes, though another runs behind it.
func TestBeforeAndAfter(t *testing.T) {
	body, err := newBody(90, "looks", []Word{iadd3(8, 4, 6), iadd3(8, 5, 7), exit()})
	if err != nil {
		t.Fatal(err)
	}
	load := Word{0x0000000402047981, 0x000e22000c1e1900} // LDG.E R4, desc[UR4][R2.64], of scoreboard 0
	use := iadd3(2, 4, 4).WithControl(Control{Stall: 5, WriteBar: NoBar, ReadBar: NoBar, Wait: 1})
	store := Word{0x0000000302007986, 0x000fe2000c101904} // STG.E desc[UR4][R2.64], R3
	const at = 1
	w, err := NewWeaver(&Func{Arch: 90, Code: []Word{NOP(), load, use, store, exit()}}, &KernelFacts{Registers: 24})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Before(at*WordSize, body, SiteAddress(), SiteValue()), w.After(at*WordSize, body, SiteAddress(), SiteValue())); err != nil {
		t.Fatal(err)
	}
	if p := &w.sites[at].probes[0]; !p.regs.used.Has(GPR, 4) {
		t.Errorf("the probe before it uses %s, not R4", p.regs.used.String())
	}
	if _, err := w.Finish(); err != nil {
		t.Error(err)
	}
}

// Variables are in local memory below what functions use that the kernel calls, if these are
// in its code.
func TestVariablesBelowCalls(t *testing.T) {
	e := openEditor(t, readFile(t, "calls.sm_90.cubin"))
	b := testBodies(t, 90)
	local := 0
	for i := range e.Cubin().Kernels {
		k := &e.Cubin().Kernels[i]
		w := openWeaver(t, e, k.Name)
		if w.callsOut || !slices.ContainsFunc(w.a.Insts, func(in Inst) bool { return in.Flow().Kind == FlowCall }) {
			continue
		}
		local++
		w.usable = min(w.usable, w.fresh+1)
		if errs := weaveVariables(w, b, k.ParamBase); errs[0] != nil {
			t.Errorf("%s: %v", k.Name, errs[0])
			continue
		}
		res := finish(t, e, k.Name, w)
		t.Logf("%s: %d bytes of stack more", k.Name, res.Stack)
	}
	if local == 0 {
		t.Error("no kernel calls functions in its code")
	}
	// A function that makes a frame: memory below that is free everywhere.
	stack := func(by int32) Word { return plain(0x810|1<<16|1<<24|uint64(uint32(by))<<32, aluPreds|RZ) }
	const sub = 5
	call := Inst{Word: plain(opCALLRel, guardAlways<<(87-64)), Arch: 90}
	to, _ := call.withTarget((sub - 3) * WordSize)
	again, _ := call.withTarget((sub - 4) * WordSize)
	back, _ := RETRel(90, 20, -10*WordSize)
	load := plain(0xb82|1<<16|RZ<<24|0x28<<38, 4<<(73-64)).WithControl(Control{Stall: 2, WriteBar: 0, ReadBar: NoBar})
	code := []Word{load, NOP(), to, again, exit(), stack(-32), NOP(), stack(32), back}
	open := func(code []Word) *Weaver {
		w, err := NewWeaver(&Func{Arch: 90, Code: code}, &KernelFacts{Registers: 24})
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	first := open(code)
	if why := first.frames(); why != "" || first.mostLowered != 32 || first.lowered[sub+1] != 32 || first.lowered[4] != 0 || first.lowered[3] != 0 {
		t.Errorf("%q, at most %d lower, %v", why, first.mostLowered, first.lowered)
	}
	// Beside a call that never comes back, which is known for functions elsewhere.
	leave := slices.Clone(code)
	leave[3] = plain(0x943, guardAlways<<(87-64))
	w, err := NewWeaver(&Func{Arch: 90, Code: leave, NoReturn: true}, &KernelFacts{Registers: 24})
	if err != nil {
		t.Fatal(err)
	}
	if why := w.frames(); why != "" || w.mostLowered != 32 || !w.a.localCalls {
		t.Errorf("%q, at most %d lower, calls known: %v", why, w.mostLowered, w.a.localCalls)
	}
	// And with a call that a relocation changes.
	if w, err = NewWeaver(&Func{Arch: 90, Code: code}, &KernelFacts{Registers: 24, Listed: []uint32{2 * WordSize}}); err != nil || !strings.Contains(w.uncertain, "a relocation") {
		t.Errorf("%q, %v", w.uncertain, err)
	}
	// Called with frames of two sizes, and beside a call of which nothing is known.
	for what, change := range map[string]func([]Word){
		"differs from way": func(c []Word) {
			c[1], _ = call.withTarget((sub - 2) * WordSize)
			c[2] = stack(-16)
		},
		"is not known": func(c []Word) { c[3] = plain(0x943, guardAlways<<(87-64)) },
	} {
		odd := slices.Clone(code)
		change(odd)
		if why := open(odd).frames(); !strings.Contains(why, what) {
			t.Errorf("%s: %q", what, why)
		}
	}
}

// Programs behind a matrix instruction begin when it has written its results.
func TestAfterMatrix(t *testing.T) {
	waits := func(kernel string, of func(in *Inst) bool) (cycles int) {
		w := openWeaver(t, openEditor(t, readFile(t, "../kernels_sm_90.cubin")), kernel)
		at := slices.IndexFunc(w.a.Insts, func(in Inst) bool { return of(&in) }) + 1
		if at == 0 {
			t.Fatalf("%s has no such instruction", kernel)
		}
		e := &emitter{w: w, out: new(Woven)}
		e.enter(at, &probe{})
		for _, word := range e.out.Code {
			cycles += int(word.Control().Stall)
		}
		return cycles
	}
	if n := waits("matrix", (*Inst).fixedMatrix); n < maxDistance {
		t.Errorf("%d cycles behind a matrix instruction", n)
	}
	if n := waits("reduce", func(in *Inst) bool { return in.Name() == "LDG" }); n != mostStall {
		t.Errorf("%d cycles in a kernel without one", n)
	}
}
