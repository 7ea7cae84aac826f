package bpf

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
)

// A conformance compares an interpreted run with the analysis of its program: before
// each instruction every register and every byte of the stack must lie in what the
// analysis says it may hold. Linux's selftests and PREVAIL's do the same.
type conformance struct {
	a       *analysis
	states  []*state // in front of each op, made when it is first looked at
	effects []effect // of each op
	in      *Interpreter
	at      int // op of the instruction before; -1: none
	steps   int
	left    uint64         // fuel
	may     bool           // it has a may_goto, of which the interpreter decides by itself
	end     End            // what ended the run
	values  map[int32]word // what ids stand for
}

// newConformance analyses p.
func newConformance(p *Program, env *Env) (*conformance, error) {
	ops, err := flatten(p, env)
	if err != nil {
		return nil, err
	}
	a, err := analyze(p, env, ops)
	if err != nil {
		return nil, err
	}
	return &conformance{may: hasMay(p.Insns), a: a, states: make([]*state, len(ops)), effects: make([]effect, len(ops)), at: -1, values: map[int32]word{}}, nil
}

// vague reports whether what the program returns is a number on some paths only.
func (c *conformance) vague() bool {
	for i, s := range c.a.states() {
		if o := &c.a.ops[i]; o.kind == opExit && (s.reg(o.depth, 0).kind == kMixed || s.reg(o.depth, 0).kind == kNone) {
			return true
		}
		var fx effect
		c.a.replay(s, i, &fx)
	}
	return false
}

// watch makes in, which must run the analysed program, be compared.
func (c *conformance) watch(in *Interpreter) {
	c.in, c.at, c.steps, c.left, c.end = in, -1, 0, uint64(c.a.left), End{}
	in.before = c.before
}

// stateAt returns what the analysis knows in front of an op; nil if it says that the
// op is not reached.
func (c *conformance) stateAt(i int) *state {
	if c.states[i] != nil {
		return c.states[i]
	}
	blk := &c.a.cfg.blocks[c.a.cfg.of[i]]
	in := c.a.in[c.a.cfg.of[i]]
	if in == nil {
		return nil
	}
	s := in.clone()
	for k := blk.first; k <= blk.last; k++ {
		c.states[k] = s.clone()
		if err := c.a.step(s, k, &c.effects[k]); err != nil {
			panic("BUG: a step of the analysis that went well fails: " + err.Error())
		}
	}
	return c.states[i]
}

// follow finds the op of the instruction that comes next.
func (c *conformance) follow(pc int) error {
	if c.at < 0 {
		c.at = 0
		return nil
	}
	for _, k := range successors(c.a.ops, c.at) {
		if c.a.ops[k].at == pc {
			c.at = k
			return nil
		}
	}
	return errors.New("the analysis does not know the way here")
}

// before is the interpreter's hook.
func (c *conformance) before(pc int) error {
	if err := c.follow(pc); err != nil {
		return err
	}
	if err := c.fuel(); err != nil {
		return err
	}
	s := c.stateAt(c.at)
	if s == nil {
		return errors.New("the analysis says that this is not reached")
	}
	if len(s.frames) != len(c.in.frames) {
		return fmt.Errorf("%d functions are active, the analysis says %d", len(c.in.frames), len(s.frames))
	}
	clear(c.values)
	for d := range s.frames {
		f := &c.in.frames[d]
		for r := range s.frames[d].regs {
			if err := c.holds(&s.frames[d].regs[r], &f.regs[r]); err != nil {
				return fmt.Errorf("r%d of function %d: %w", r, d, err)
			}
		}
		if err := c.stack(&s.frames[d], f); err != nil {
			return fmt.Errorf("stack of function %d: %w", d, err)
		}
	}
	if n := len(c.in.held()); n > len(s.held) {
		return fmt.Errorf("%d records are held, the analysis knows of %d", n, len(s.held))
	}
	return c.tests(s)
}

// ended ends the run.
func (c *conformance) ended(kind EndKind, op int) error {
	c.end = End{Kind: kind, Insn: c.a.ops[op].at}
	c.end.Source, c.end.Position = c.a.p.source(c.end.Insn)
	return errEarly("a test of the compiled code")
}

// fuel ends the run as counted loops do, and checks that no run is longer than it may.
func (c *conformance) fuel() error {
	if c.may {
		return nil
	}
	b := c.a.cfg.of[c.at]
	for i := range c.a.cfg.loops {
		l := &c.a.cfg.loops[i]
		if l.head != b || !l.counted || c.at != c.a.cfg.blocks[b].first {
			continue
		}
		cost := max(l.cost, 1)
		if c.left < cost {
			return c.ended(EndLoop, c.at)
		}
		c.left -= cost
	}
	c.steps++
	if most := max(int(c.a.fuel()), len(c.a.ops)); c.steps > most {
		return fmt.Errorf("%d instructions are executed; %d is the most", c.steps, most)
	}
	return nil
}

// tests ends the run where compiled code does, which tests what the analysis did not
// prove: of a pointer to one of several objects, against the smallest of them.
func (c *conformance) tests(s *state) error {
	o, fx := &c.a.ops[c.at], &c.effects[c.at]
	test := func(acc *access, r uint8, off int64) error {
		w := &c.in.top().regs[r]
		switch {
		case acc.null && w.v == 0 && w.o == nil:
			return c.ended(EndNull, c.at)
		case acc.bound && w.o != nil && w.v+uint64(off)-w.o.base > uint64(acc.object-acc.size):
			return c.ended(EndBound, c.at)
		case o.kind == opAtomic && acc.kind != kStack && acc.align < acc.size && (w.v+uint64(off))%uint64(acc.size) != 0:
			return c.ended(EndAlign, c.at)
		}
		return nil
	}
	switch o.kind {
	case opALU:
		r := o.dst
		if fx.swap {
			r = o.src
		}
		if fx.null {
			return test(&access{null: true}, r, 0)
		}
	case opLoad:
		return test(&fx.acc, o.src, int64(o.off))
	case opStore, opAtomic:
		return test(&fx.acc, o.dst, int64(o.off))
	case opHelper:
		for k := range o.helper.Args {
			if err := test(&fx.args[k].acc, uint8(k+1), 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// unwritten is a stack that nothing was written to.
var unwritten [StackSize]byte

// stack compares the stack of one function.
func (c *conformance) stack(s *frame, f *iframe) error {
	at := 0
	zero := func(to int) error {
		if !bytes.Equal(f.stack[at:to], unwritten[:to-at]) {
			return fmt.Errorf("bytes %d to %d are %x, the analysis says that they were never written", at, to-1, f.stack[at:to])
		}
		return nil
	}
	for i := range s.cells {
		cell := &s.cells[i]
		off, n := int(cell.off), int(cell.size)
		if off < at || n < 1 || n > 8 || off+n > StackSize {
			return fmt.Errorf("the analysis has a cell of %d bytes at %d behind byte %d", n, off, at)
		}
		if err := zero(off); err != nil {
			return err
		}
		at = off + n
		w := word{v: little(f.stack[off:][:n]), set: true}
		if p, ok := f.spills[off]; ok {
			w = p
		}
		if err := c.holds(&cell.v, &w); err != nil {
			return fmt.Errorf("%d bytes at %d: %w", n, off, err)
		}
		for k, p := range f.spills {
			if k < at && k+8 > off && p.o != nil && cell.v.kind != kMixed && (k != off || n != 8) {
				return fmt.Errorf("%d bytes at %d overlap a pointer at %d, which the analysis does not know of", n, off, k)
			}
		}
	}
	return zero(StackSize)
}

// alike reports whether one map can be another map's value in place of the other.
func alike(x, y *Map) bool {
	return x == y || x.KeySize == y.KeySize && x.ValueSize == y.ValueSize && x.MaxEntries == y.MaxEntries && x.Inner == 0 && y.Inner == 0
}

// holds checks that w is one of the things that v stands for.
func (c *conformance) holds(v *val, w *word) error {
	if v.kind == kNone || v.kind == kMixed {
		return nil
	}
	if !w.set {
		return fmt.Errorf("it was never written, the analysis says %s", v.kind)
	}
	if v.id != 0 {
		// Numbers with one id are the same number; pointers are of one object.
		was, seen := c.values[v.id]
		switch {
		case !seen:
			c.values[v.id] = *w
		case was.o != w.o && (v.kind == kRecord || v.kind == kScalar), v.kind == kScalar && was.v != w.v, (was.v == 0) != (w.v == 0) && v.null:
			return fmt.Errorf("%#x, though another copy of it is %#x", w.v, was.v)
		}
	}
	base := uint64(0)
	switch v.kind {
	case kScalar:
		if w.o != nil {
			return fmt.Errorf("a pointer to %s, the analysis says a number", w.o.what)
		}
	case kMap:
		if w.o == nil && w.v == 0 && v.null {
			return nil
		}
		if w.o == nil || w.o.mapOf == 0 || !alike(&c.a.env.Maps[w.o.mapOf-1], &c.a.env.Maps[v.maps[0]]) {
			return errors.New("not a map as the analysis says")
		}
		return nil
	case kCtx, kText, kStack:
		if w.o == nil || w.o.context != (v.kind != kStack) || v.kind == kStack && w.o.stack != int(v.depth)+1 {
			return fmt.Errorf("not a pointer to %s", v.kind)
		}
		base = w.o.base
	case kValue, kRecord:
		if w.o == nil && w.v == 0 {
			if !v.null {
				return errors.New("NULL, which the analysis rules out")
			}
			return nil
		}
		if err := c.points(v, w); err != nil {
			return err
		}
		base = w.o.base
	}
	if !v.n.has(w.v - base) {
		return fmt.Errorf("%#x does not lie in %+v", w.v-base, v.n)
	}
	return nil
}

// points checks what a pointer to a value or a record points to.
func (c *conformance) points(v *val, w *word) error {
	switch o := w.o; {
	case o == nil:
		return fmt.Errorf("the number %#x, the analysis says a pointer to %s", w.v, v.kind)
	case v.kind == kRecord && (!o.record || o.given):
		return errors.New("not a pointer to a record that is held")
	case v.kind == kValue && (o.valueOf == 0 || !slices.ContainsFunc(v.maps, func(m int32) bool { return alike(&c.a.env.Maps[o.valueOf-1], &c.a.env.Maps[m]) })):
		return fmt.Errorf("a pointer to %s, the analysis says to a value of maps %d", o.what, v.maps)
	case uint64(v.size) > o.size:
		return fmt.Errorf("a pointer to %d bytes, the analysis says %d", o.size, v.size)
	}
	return nil
}
