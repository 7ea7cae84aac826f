package sass

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"nvtrace/fatbin"
	"nvtrace/internal/need"
)

// lifeWeavings are those of TestLifeUnchanged, in which places may take no probe: where
// kernels begin and end, and each block and each access to global memory.
var lifeWeavings = []weaving{
	{"entry and exit", true, true, false, func(w *Weaver, b *bodies, at int) []error {
		return []error{w.Entry(b.count, ConstWide(0, at), Imm(0)), w.Exits(b.count, ConstWide(0, at), Imm(1))}
	}},
	{"blocks and accesses", false, false, true, func(w *Weaver, b *bodies, at int) (errs []error) {
		for i := range w.a.Blocks {
			for j := w.a.Blocks[i].Start; j < w.a.Blocks[i].End; j++ {
				if w.displaceable(j) == nil {
					errs = append(errs, w.Before(j*WordSize, b.count, ConstWide(0, at), Imm(4)))
					break
				}
			}
		}
		return append(errs, weaveAccesses(w, b.address, at)...)
	}},
}

// A wovenKernel is what is known of a kernel with probes.
type wovenKernel struct {
	section string
	before  *Analysis
	after   *Woven
	// guarded are the registers that instructions with a guard write from places up to the
	// ends of their blocks.
	guarded Set
}

// weaveForLife puts probes where they can be. Each place has its own copy of the body, as
// nvdisasm does not know where shared ones come back to.
func weaveForLife(t *testing.T, file string, image []byte, how *weaving, spoil func(w *Weaver, res *Woven)) (woven []byte, kernels []wovenKernel, refused int) {
	t.Helper()
	e := openEditor(t, image)
	arch := Arch(e.Cubin().Arch.SM)
	b := testBodies(t, arch)
	for i := range e.Cubin().Kernels {
		k := &e.Cubin().Kernels[i]
		kc, err := e.Code(k.Name)
		if err != nil {
			t.Logf("%s, %s: %v", file, k.Name, err)
			continue
		}
		fn := &Func{Arch: arch, Name: k.Name, Code: Words(kc.Code), Targets: kc.Targets, Registers: kc.Registers}
		w, err := NewWeaver(fn, &KernelFacts{Registers: kc.Registers, Listed: kc.Listed, Special: kc.Special})
		if err != nil {
			t.Logf("%s, %s: %v", file, k.Name, err)
			continue
		}
		w.long = math.MaxInt
		for _, err := range how.weave(w, b, k.ParamBase) {
			if err != nil {
				refused++
			}
		}
		res, err := w.Finish()
		if err != nil {
			t.Errorf("%s, %s, %s: %v", file, k.Name, how.name, err)
			continue
		}
		if spoil != nil {
			spoil(w, res)
		} else {
			checkWoven(t, file+", "+k.Name+", "+how.name, fn, res)
		}
		var code []byte
		for _, word := range res.Code {
			code = word.Append(code)
		}
		if err := e.Set(k.Name, &fatbin.CodeChange{Code: code, Registers: res.Registers, Exits: res.Exits, Stack: res.Stack}); err != nil {
			t.Fatal(err)
		}
		kernel := wovenKernel{section: e.Cubin().Sections[k.Section].Name, before: w.a, after: res}
		for _, s := range res.Sites {
			i := s.Offset / WordSize
			for end := w.a.Blocks[w.a.BlockOf[i]].End; i < end; i++ {
				if in := &w.a.Insts[i]; in.Word.Bits(12, 4) != guardAlways {
					_, write := in.Uses()
					kernel.guarded.Union(&write)
				}
			}
		}
		kernels = append(kernels, kernel)
	}
	woven, err := e.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return woven, kernels, refused
}

// checkWoven has the control codes of all of a kernel with probes checked, also of what the
// compiler wrote.
func checkWoven(t *testing.T, what string, fn *Func, res *Woven) {
	t.Helper()
	was, err := check(fn)
	if err != nil {
		t.Fatal(err)
	}
	f := *fn
	f.Code, f.Registers = res.Code, res.Registers
	is, err := check(&f)
	if err != nil {
		t.Fatal(err)
	}
	if len(is) > len(was) {
		t.Errorf("%s: %d findings, %d without probes: %v", what, len(is), len(was), is)
	}
}

// asOne returns a cubin in which the functions beside kernels are labels. What is appended
// stands behind the last function of a section, and is a part of that for nvdisasm, which
// refuses to follow jumps between functions.
func asOne(image []byte) []byte {
	const symtab, function, symbolSize, entry = 2, 2, 24, 0x10
	le := binary.LittleEndian
	image = bytes.Clone(image)
	for i := range int(le.Uint16(image[60:])) {
		sh := image[le.Uint64(image[40:])+uint64(i)*64:][:64]
		if le.Uint32(sh[4:]) != symtab {
			continue
		}
		symbols := image[le.Uint64(sh[24:]):][:le.Uint64(sh[32:])]
		for ; len(symbols) >= symbolSize; symbols = symbols[symbolSize:] {
			if symbols[4]&0xf == function && symbols[5]&entry == 0 {
				symbols[4] &^= 0xf
			}
		}
	}
	return image
}

// lifeOf returns what nvdisasm says of registers, by section and offset.
func lifeOf(t *testing.T, image []byte) (map[string]map[int]*lifeRange, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "x.cubin")
	if err := os.WriteFile(file, asOne(image), 0o666); err != nil {
		t.Fatal(err)
	}
	sections, err := askLifeRanges(t, file)
	if err != nil {
		return nil, err
	}
	rows := make(map[string]map[int]*lifeRange)
	for name, list := range sections {
		rows[name] = make(map[int]*lifeRange, len(list))
		for i := range list {
			rows[name][list[i].offset] = &list[i]
		}
	}
	return rows, nil
}

// before are the registers that are live before an instruction.
func (l *lifeRange) before() Set {
	s := l.live
	s.Minus(&l.write)
	s.Union(&l.read)
	return s
}

// lifeChecker compares nvdisasm's life ranges of a kernel with and without probes.
type lifeChecker struct {
	*wovenKernel
	was, is  map[int]*lifeRange
	except   Set // registers of which nothing is said
	saved    Set // registers that places save, which reads them: they may be live
	compared int
	wrong    func(offset int, format string, args ...any)
}

// differing are the registers that are live before or after only.
func (c *lifeChecker) differing(was, is, except *Set) Set {
	gone, more := *was, *is
	gone.Minus(is)
	more.Minus(was)
	more.Minus(&c.saved)
	gone.Union(&more)
	gone.Minus(except)
	return gone
}

func (c *lifeChecker) check() {
	c.except = c.guarded
	guessed := c.guessed()
	c.except.Union(&guessed)
	results := c.results()
	guessed.Union(&results)
	for _, s := range c.after.Sites {
		saved := c.restored(&s)
		c.saved.Union(&saved)
		// It does not know which predicates P2R and R2P name.
		for _, w := range c.instead(&s) {
			if w.Opcode() == opP2R && s.Saved > 0 {
				c.except.P |= uint8(w.Bits(32, 7))
			}
		}
	}
	sites := make(map[int]bool)
	for _, s := range c.after.Sites {
		sites[s.Offset] = true
		c.site(&s, &guessed)
	}
	for off, was := range c.was {
		i, is := off/WordSize, c.is[off]
		switch {
		case i >= len(c.before.Insts) || sites[off]:
			continue
		case is == nil:
			c.wrong(off, "nvdisasm shows nothing there")
			continue
		}
		c.compared++
		if c.before.Insts[i].Flow().Kind == FlowCall {
			// There it shows all that the section has, with what is appended.
			if gone := was.live; !gone.Empty() {
				gone.Minus(&is.live)
				gone.Minus(&c.except)
				if !gone.Empty() {
					c.wrong(off, "%s no longer live", gone.String())
				}
			}
			continue
		}
		except := c.except
		for _, b := range append([]int{int(c.before.BlockOf[i])}, c.before.Blocks[c.before.BlockOf[i]].Succ...) {
			calls := c.calls(b)
			except.Union(&calls)
		}
		if x := c.differing(&was.live, &is.live, &except); !x.Empty() {
			c.wrong(off, "differs in %s: live were %s, are %s", x.String(), was.live.String(), is.live.String())
		}
		// An exit that is a jump now reads the same: its guard.
		if was.read != is.read || was.write != is.write {
			c.wrong(off, "reads %s and writes %s, read %s and wrote %s", is.read.String(), is.write.String(), was.read.String(), was.write.String())
		}
	}
}

// guessed are the registers of which nvdisasm does not know whether functions need them: those
// that it calls live where functions of the section return, but behind no call of one, and
// those that it has calls read.
func (c *lifeChecker) guessed() Set {
	var returned, called Set
	for off, was := range c.was {
		i, is := off/WordSize, c.is[off]
		if i >= len(c.before.Insts) || is == nil {
			continue
		}
		switch c.before.Insts[i].Flow().Kind {
		case FlowReturn:
			returned.Union(&was.live)
			returned.Union(&is.live) // some may be registers of probes
		case FlowCall:
			called.Union(&was.read)
		}
	}
	for _, i := range c.before.returns {
		if l := c.was[i*WordSize]; l != nil {
			live := l.before()
			returned.Minus(&live)
		}
	}
	returned.Union(&called)
	return returned
}

// results are the registers that functions write. It takes those that are read behind calls
// for values from before.
func (c *lifeChecker) results() (s Set) {
	for _, i := range c.before.returns {
		if t, ok := c.before.Target(i - 1); ok {
			written := c.written(int(c.before.BlockOf[t]))
			s.Union(&written)
		}
	}
	return s
}

// written are the registers that a function writes which begins with a block, none if it does
// not return: some calls are jumps.
func (c *lifeChecker) written(entry int) (s Set) {
	seen := map[int]bool{entry: true}
	returns := false
	for work := []int{entry}; len(work) > 0; {
		b := work[len(work)-1]
		work = work[:len(work)-1]
		blk := &c.before.Blocks[b]
		for i := blk.Start; i < blk.End; i++ {
			if l := c.was[i*WordSize]; l != nil && c.before.Insts[i].Flow().Kind != FlowCall {
				s.Union(&l.write)
			}
		}
		if c.before.Insts[blk.End-1].Flow().Kind == FlowReturn {
			returns = true
			continue
		}
		for _, to := range c.before.passes(b) {
			if !seen[to] {
				seen[to] = true
				work = append(work, to)
			}
		}
	}
	if !returns {
		return Set{}
	}
	return s
}

// calls are the registers that nvdisasm has a call with a guard in a block write, all of the
// section, which like others with a guard is one without where the block begins.
func (c *lifeChecker) calls(b int) (s Set) {
	for i := c.before.Blocks[b].Start; i < c.before.Blocks[b].End; i++ {
		if in := &c.before.Insts[i]; in.Flow().Kind == FlowCall && in.Word.Bits(12, 4) != guardAlways && c.was[i*WordSize] != nil {
			s.Union(&c.was[i*WordSize].write)
		}
	}
	return s
}

// site compares a place, of which the instruction is a jump now.
func (c *lifeChecker) site(s *SiteReport, guessed *Set) {
	i := s.Offset / WordSize
	was, is := c.was[s.Offset], c.is[s.Offset]
	if was == nil || is == nil {
		c.wrong(s.Offset, "nvdisasm shows nothing there")
		return
	}
	// The stack pointer is always live for it, also before it is loaded.
	except := c.except
	except.Union(guessed)
	except.Add(GPR, stackPointer, 1)
	calls := c.calls(int(c.before.BlockOf[i]))
	except.Union(&calls)
	live, now := was.before(), is.before()
	if s.Offset == 0 {
		except.Union(&live) // no register has a value there
	}
	c.compared++
	if x := c.differing(&live, &now, &except); !x.Empty() {
		c.wrong(s.Offset, "differs in %s where it jumps: live were %s, are %s", x.String(), live.String(), now.String())
	}
	// In what runs instead nothing writes these registers but the instruction itself, unless
	// they are saved.
	if s.Offset > 0 {
		c.inside(s, &live, guessed)
	}
	// What is live where control comes back is what the next instruction needs.
	last := s.Block/WordSize + s.Instructions - 1
	back := Inst{Word: c.after.Code[last], Arch: c.before.Func.Arch}
	if to, ok := back.target(); back.Word.Opcode() != opBRA || !ok || int(to) != s.Offset-last*WordSize || c.was[s.Offset+WordSize] == nil {
		return
	}
	next := c.was[s.Offset+WordSize]
	if in := &c.before.Insts[i+1]; in.Word.Bits(12, 4) != guardAlways {
		except.Union(&next.write)
	}
	live, now = next.before(), c.is[last*WordSize].live
	if x := c.differing(&live, &now, &except); !x.Empty() {
		c.wrong(s.Offset, "differs in %s where control comes back: live were %s, are %s", x.String(), live.String(), now.String())
	}
}

// comparison is what comparing kernels came to.
type comparison struct{ kernels, sites, growth, compared, leftOut, wrong int }

// compareLife compares kernels with probes with those that they were.
func compareLife(kernels []wovenKernel, was, is map[string]map[int]*lifeRange, wrong func(section string, offset int, format string, args ...any)) (sum comparison) {
	sum.kernels = len(kernels)
	for k := range kernels {
		c := lifeChecker{wovenKernel: &kernels[k], was: was[kernels[k].section], is: is[kernels[k].section]}
		c.wrong = func(offset int, format string, args ...any) {
			sum.wrong++
			wrong(c.section, offset, format, args...)
		}
		c.check()
		sum.sites += len(c.after.Sites)
		sum.growth += c.after.Growth
		sum.compared += c.compared
		sum.leftOut += c.except.Len(GPR) + c.except.Len(Pred) + c.except.Len(UGPR) + c.except.Len(UPred)
	}
	return sum
}

// instead is what runs instead of an instruction.
func (c *lifeChecker) instead(s *SiteReport) []Word {
	return c.after.Code[s.Block/WordSize:][:s.Instructions]
}

// restored are the registers that a place saves and restores.
func (c *lifeChecker) restored(s *SiteReport) (set Set) {
	if s.Spilled > 0 {
		for _, w := range c.instead(s) {
			if w.Opcode() == opLDL {
				set.Add(GPR, uint8(w.Bits(16, 8)), 1)
			}
		}
	}
	return set
}

// inside looks for what is live and written in what runs instead of an instruction.
func (c *lifeChecker) inside(s *SiteReport, live, guessed *Set) {
	displaced := c.before.Func.Code[s.Offset/WordSize].Lo
	except := c.restored(s)
	except.Union(guessed)
	except.P |= c.except.P
	for j, w := range c.instead(s) {
		at := s.Block + j*WordSize
		l := c.is[at]
		if l == nil {
			c.wrong(at, "nvdisasm shows nothing there")
			return
		}
		if w.Lo == displaced {
			continue
		}
		x := intersect(&l.write, live)
		if x.Minus(&except); !x.Empty() {
			c.wrong(s.Offset, "%s is live and written at +%#x", x.String(), at)
		}
	}
}

// NVIDIA's own tool sees the same registers live at every instruction of kernels with probes
// as of those without, on every architecture; the control codes of both pass the check.
//
// What an instruction writes whose guard is false stays as it was. It knows that for the
// other instructions of the block, but not for the blocks before; so what such instructions
// write in blocks that now end at a place, behind that, is left out.
func TestLifeUnchanged(t *testing.T) {
	need.Tool(t, "nvdisasm", "NVTRACE_NVDISASM")
	for _, file := range cubins(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			image, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if e, err := fatbin.NewCubinEditor(image, &fatbin.CubinEditOptions{DropMercury: true}); errors.Is(err, fatbin.ErrNotEditable) || err == nil && !hasBodies(Arch(e.Cubin().Arch.SM)) {
				t.Skipf("no probes for it: %v", err)
			}
			was, err := lifeOf(t, image)
			if err != nil {
				t.Skipf("of the cubin as it is: %v", err)
			}
			for i := range lifeWeavings {
				how := &lifeWeavings[i]
				woven, kernels, refused := weaveForLife(t, filepath.Base(file), image, how, nil)
				is, err := lifeOf(t, woven)
				if err != nil {
					t.Errorf("%s: %v", how.name, err)
					continue
				}
				told := 0
				sum := compareLife(kernels, was, is, func(section string, offset int, format string, args ...any) {
					if told++; told <= 10 {
						t.Errorf("%s, %s+%#x: %s", how.name, section, offset, fmt.Sprintf(format, args...))
					}
				})
				t.Logf("%s: %d kernels, %d places (%d refused), %d bytes more, %d instructions compared (%d registers left out), %d wrong",
					how.name, sum.kernels, sum.sites, refused, sum.growth, sum.compared, sum.leftOut, sum.wrong)
				if sum.compared < 10*sum.kernels {
					t.Errorf("%s: %d instructions compared", how.name, sum.compared)
				}
			}
		})
	}
}

// The comparison finds a probe that overwrites a register which is live.
func TestLifeFindsMistakes(t *testing.T) {
	image, err := os.ReadFile("testdata/kernels_sm_90.cubin")
	if err != nil {
		t.Fatal(err)
	}
	was, err := lifeOf(t, image)
	if err != nil {
		t.Fatal(err)
	}
	for i := range lifeWeavings {
		spoiled := 0
		woven, kernels, _ := weaveForLife(t, "kernels", image, &lifeWeavings[i], func(w *Weaver, res *Woven) {
			for _, s := range res.Sites {
				live := &w.a.LiveOut[s.Offset/WordSize]
				for r := uint8(2); r < 100; r++ {
					if live.Has(GPR, r) && w.a.LiveIn[s.Offset/WordSize].Has(GPR, r) {
						res.Code[s.Block/WordSize] = MOVImm(r, 1)
						spoiled++
						return
					}
				}
			}
		})
		is, err := lifeOf(t, woven)
		if err != nil {
			t.Fatal(err)
		}
		found := make(map[string]bool)
		sum := compareLife(kernels, was, is, func(section string, _ int, _ string, _ ...any) { found[section] = true })
		t.Logf("%s: %d kernels spoiled, found in %d, %d times", lifeWeavings[i].name, spoiled, len(found), sum.wrong)
		if len(found) != spoiled {
			t.Errorf("%s: %d kernels spoiled, found in %d", lifeWeavings[i].name, spoiled, len(found))
		}
	}
}

// hasBodies reports whether the probes of tests are there for an architecture.
func hasBodies(a Arch) bool {
	_, err := os.Stat(filepath.Join("testdata", "weave", "address."+a.String()+".cubin"))
	return err == nil
}
