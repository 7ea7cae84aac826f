package nvattach

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"nvtrace/fatbin/sass"
	"nvtrace/nvattach/emit"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// An ownKey is a function that has such registers.
type ownKey struct {
	fn *ptx.Func
	d  *object.MapDef
}

// declare gives a function the registers with the variables of its threads that a
// program uses, with what they hold at first.
func (g *weaving) declare(q *proof.Program, fn *ptx.Func) {
	for i, d := range q.Unit.Defs {
		key := ownKey{fn, d}
		if !d.Thread || !q.Report.Maps[i].Used || g.owned[key] {
			continue
		}
		g.owned[key] = true
		name, words := g.ownName(q, d), (len(d.Initial)+7)/8
		var b strings.Builder
		fmt.Fprintf(&b, ".reg .b64 %s<%d>;", name, words)
		if g.dialect.patch {
			// The registers are the kernel's; see Body.
			for w := range words {
				b.WriteString("\n" + loadOwn(name+strconv.Itoa(w), w, q.SharesOwn()))
			}
			g.w.Declare(fn, b.String())
			continue
		}
		for w := range words {
			var v [8]byte
			copy(v[:], d.Initial[8*w:])
			fmt.Fprintf(&b, "\n\tmov.b64 %s%d, %#x;", name, w, binary.LittleEndian.Uint64(v[:]))
		}
		g.w.Declare(fn, b.String())
	}
}

// loadOwn has a Body load two words of the thread's variables into a register of 64 bits. The assembler
// takes what is loaded from one address of local memory, where nothing was stored, for the same in all
// threads of a warp: it has one of them add it as often as there are threads. With varies set it
// can't; it does not know that no lane is below a thread and not.
func loadOwn(reg string, word int, varies bool) string {
	var b strings.Builder
	b.WriteString("\t{\n\t.reg .b32 %lo, %hi, %lt, %ge;\n")
	fmt.Fprintf(&b, "\tld.local.u32 %%lo, [%#x];\n\tld.local.u32 %%hi, [%#x];\n", sass.VariableAddress(2*word), sass.VariableAddress(2*word+1))
	if varies {
		b.WriteString("\tmov.u32 %lt, %lanemask_lt;\n\tmov.u32 %ge, %lanemask_ge;\n\tand.b32 %lt, %lt, %ge;\n\tor.b32 %lo, %lo, %lt;\n\tor.b32 %hi, %hi, %lt;\n")
	}
	b.WriteString("\tmov.b64 " + reg + ", {%lo, %hi};\n\t}")
	return b.String()
}

// keepOwn is what a Body puts behind its program: the variables of the thread go back to
// the registers of the kernel that they came from.
func (g *weaving) keepOwn(q *proof.Program) string {
	var b strings.Builder
	for i, d := range q.Unit.Defs {
		if !d.Thread || !q.Report.Maps[i].Used {
			continue
		}
		for w := range (len(d.Initial) + 7) / 8 {
			fmt.Fprintf(&b, "\t{\n\t.reg .b32 %%lo, %%hi;\n\tmov.b64 {%%lo, %%hi}, %s%d;\n\tst.local.u32 [%#x], %%lo;\n\tst.local.u32 [%#x], %%hi;\n\t}\n", g.ownName(q, d), w, sass.VariableAddress(2*w), sass.VariableAddress(2*w+1))
		}
	}
	return b.String()
}

// ownName returns what the names of registers with a section's variables begin with.
func (g *weaving) ownName(q *proof.Program, d *object.MapDef) string {
	if g.own[d] == "" {
		g.own[d] = fmt.Sprintf("%%%so%d_%d_", g.w.Stem(), slices.Index(g.p.Objects, q.Object), slices.Index(q.Unit.Defs, d))
	}
	return g.own[d]
}

// keep returns the template that another module got, or writes one.
func (g *weaving) keep(key templateKey, at *proof.Place) (*template, error) {
	k := &g.p.kept
	if key.text != "" || key.params != nil { // of this module alone
		return g.template(key.q, at)
	}
	alike := keptKey{key.q, g.maps, g.dialect}
	if t := k.templates[alike]; t != nil {
		return t, nil
	}
	if len(k.templates) >= mostKept {
		clear(k.templates)
	}
	t, err := g.template(key.q, at)
	if err == nil {
		k.templates[alike] = t
	}
	return t, err
}

// prefix begins the names of a program's registers and labels.
func (g *weaving) prefix(q *proof.Program) string {
	return g.w.Stem() + "q" + strconv.Itoa(q.Counter) + "_"
}

// whereRegister is the register with the number of the place that a program's code is at.
func whereRegister(q *proof.Program, prefix string) string { return "%" + prefix + "where" }

// template writes what is the same at all places like one.
func (g *weaving) template(q *proof.Program, at *proof.Place) (*template, error) {
	u := q.Unit
	u.Maps, u.At, u.Program, u.Returned, u.Block = g.maps, at, q, g.returned(), g.blockName()
	target := g.f.Target()
	u.Weak = !ptx.Needs("nanosleep.u32").Met(g.f.Version, target) || !ptx.Needs("ld.acquire.gpu.global.u64").Met(g.f.Version, target)
	s := &bpf.Site{
		Version: g.f.Version, Target: target,
		Prefix: g.prefix(q),
		Failed: func(b *bpf.Gen) error {
			u.Code(b).Ended(g.maps.Slots+q.FirstEnd, b.Why().String(), whereRegister(q, g.prefix(q)))
			return nil
		},
		Reconverge: q.Reconverge(), ToolsPatch: g.dialect.patch,
	}
	if q.Point.Kind == object.KindEntry && !q.Point.Func && !g.p.endsThreads() && !g.dialect.each {
		s.Once = q.Report.Once // all threads come to a kernel's entry
	}
	if g.dialect.leave {
		s.Once = q.Report.Once
	}
	u.Apart = s.Alone()
	var before weaverSink
	before.w = g.w
	for i, d := range u.Defs {
		if d.Thread {
			s.Maps = append(s.Maps, bpf.Addr{Symbol: g.ownName(q, d)})
			continue
		}
		x := g.maps.Of(d)
		if x == nil { // of a type that only the host has: no program in kernels uses it
			s.Maps = append(s.Maps, bpf.Addr{})
			continue
		}
		addr := bpf.Addr{Value: x.Base}
		if d.Data && x.Copies > 1 && i < len(q.Report.Maps) && q.Report.Maps[i].Used {
			// The name of a register serves as well as that of a variable.
			c := &emit.Code{S: &before, M: g.maps, Weak: u.Weak}
			addr = bpf.Addr{Symbol: c.PerSM(x.Base, x.CopyBytes)}
		}
		s.Maps = append(s.Maps, addr)
	}
	if q.Point.Kind == object.KindCapture {
		s.Text = []byte(at.Text)
		if q.Report.TextInMemory {
			s.TextAddr = bpf.Addr{Symbol: g.text(at.Text)}
		}
	}
	t, err := q.Verified.Template(s)
	return &template{t, before.String()}, err
}

// weaverSink collects code that comes before a program's.
type weaverSink struct {
	strings.Builder
	w *ptx.Weaver
}

// Line implements sink.
func (s *weaverSink) Line(text string) { s.WriteString("\t" + text + "\n") }

// NewReg implements sink.
func (s *weaverSink) NewReg(t ptx.Type) string {
	r := s.w.Fresh('%', "d")
	s.Line(".reg " + t.String() + " " + r + ";")
	return r
}

// NewLabel implements sink.
func (s *weaverSink) NewLabel() string { return s.w.Fresh('$', "d") }
