package bpf

import (
	"iter"
	"math"

	"github.com/cilium/ebpf/asm"
)

// An analysis is the abstract execution of a program's ops.
type analysis struct {
	p      *Program
	env    *Env
	ops    []op
	cfg    *cfg
	in     []*state // at the start of each block, nil: not reached
	limits []uint64 // numbers that widening stops at
	clamps map[int][]clamp
	visits int
	left   uint32 // fuel for loops that are counted
}

// states goes through the ops that are reached, each with the state in front of it, which
// the caller moves on by step or replay.
func (a *analysis) states() iter.Seq2[int, *state] {
	return func(yield func(int, *state) bool) {
		for b := range a.cfg.blocks {
			if a.in[b] == nil {
				continue
			}
			s := a.in[b].clone()
			for i := a.cfg.blocks[b].first; i <= a.cfg.blocks[b].last; i++ {
				if !yield(i, s) {
					return
				}
			}
		}
	}
}

// replay does a step of the analysis that went well.
func (a *analysis) replay(s *state, i int, fx *effect) {
	if err := a.step(s, i, fx); err != nil {
		panic("BUG: a step of the analysis that went well fails: " + err.Error())
	}
}

// follows reports whether block t is the next behind b that is reached.
func (a *analysis) follows(b, t int) bool {
	for n := b + 1; n <= t; n++ {
		if n == t {
			return true
		}
		if a.in[n] != nil {
			return false
		}
	}
	return false
}

// An effect is what one op needs at run time beyond its operation.
type effect struct {
	acc  access
	args [5]argument
	m    int32 // of a helper's call
	null bool  // ALU on a pointer that may be NULL: that ends the program
	swap bool  // ALU: the pointer is the source register
}

// An access is one use of memory.
type access struct {
	kind     kind
	depth    int8 // kStack
	fixed    bool // off is the one offset from the object's first byte
	off      int
	lo, hi   int // all bytes that may be touched, kStack
	size     int
	object   int // size of the object
	maps     []int32
	direct   bool
	readOnly bool
	null     bool // test for NULL
	bound    bool // test for the object's bounds
	align    int  // the address is a multiple of it
}

func (a *analysis) refuse(i int, hint, format string, args ...any) *RefusedError {
	return a.p.refuse(a.ops[i].at, hint, format, args...)
}

// reg returns what register r of the function at depth d holds.
func (s *state) reg(d int8, r uint8) val {
	if r == 10 {
		return val{kind: kStack, depth: d, n: constNum(StackSize)}
	}
	return s.frames[d].regs[r]
}

func (s *state) set(d int8, r uint8, v val) { s.frames[d].regs[r] = v }

// operand returns the second operand of an ALU op or a comparison.
func (a *analysis) operand(s *state, o *op) val {
	if o.reg {
		return s.reg(o.depth, o.src)
	}
	return scalar(constNum(uint64(o.imm)))
}

// step changes s as op i does; jumps and ends change nothing.
func (a *analysis) step(s *state, i int, fx *effect) error {
	o := &a.ops[i]
	*fx = effect{m: -1}
	switch o.kind {
	case opConst:
		s.set(o.depth, o.dst, scalar(constNum(uint64(o.imm))))
	case opMap:
		s.set(o.depth, o.dst, val{kind: kMap, maps: []int32{o.m}})
	case opDirect:
		s.set(o.depth, o.dst, val{
			kind: kValue, direct: true, maps: []int32{o.m}, size: a.env.Maps[o.m].ValueSize, n: constNum(uint64(o.imm)),
		})
	case opALU:
		return a.stepALU(s, i, fx)
	case opLoad:
		return a.stepLoad(s, i, fx)
	case opStore:
		return a.stepStore(s, i, fx)
	case opAtomic:
		return a.stepAtomic(s, i, fx)
	case opHelper:
		return a.stepHelper(s, i, fx)
	case opEnter:
		f := frame{}
		copy(f.regs[1:6], s.frames[o.depth].regs[1:6])
		s.frames = append(s.frames, f)
	case opLeave:
		a.leave(s, o)
	case opExit:
		return a.checkHeld(s, i)
	}
	return nil
}

// checkHeld refuses an end of the program where it may hold a record.
func (a *analysis) checkHeld(s *state, i int) error {
	if len(s.held) > 0 {
		return a.refuse(i, "submit or discard it on every path", "the record taken by instruction %d is not given back", a.ops[s.held[0].id-1].at)
	}
	return nil
}

// leave drops the innermost frame.
func (a *analysis) leave(s *state, o *op) {
	d := o.depth
	r0 := s.frames[d].regs[0]
	s.frames = s.frames[:d]
	s.set(d-1, 0, r0)
	for r := uint8(1); r <= 5; r++ {
		s.set(d-1, r, val{})
	}
	s.each(func(v *val) {
		if v.kind == kStack && v.depth >= d {
			*v = val{kind: kMixed}
		}
	})
}

func (a *analysis) stepALU(s *state, i int, fx *effect) error {
	o := &a.ops[i]
	x, y := s.reg(o.depth, o.dst), a.operand(s, o)
	if o.alu == asm.Mov {
		if y.kind == kNone {
			return a.refuse(i, "", "reads r%d, which was never written", o.src)
		}
		if !o.w32 {
			if y.kind == kScalar && y.id == 0 && !y.n.isConst() && o.reg && o.src != 10 {
				y.id = s.fresh(int32(i) + 1)
				s.set(o.depth, o.src, y)
			}
			s.set(o.depth, o.dst, y)
			return nil
		}
	}
	if (o.alu == asm.Xor || o.alu == asm.Sub) && o.reg && o.src == o.dst && x.kind != kNone {
		s.set(o.depth, o.dst, scalar(constNum(0)))
		return nil
	}
	reads := o.alu != asm.Mov && o.alu != asm.MovSX8 && o.alu != asm.MovSX16 && o.alu != asm.MovSX32
	if reads && x.kind == kNone {
		return a.refuse(i, "", "reads r%d, which was never written", o.dst)
	}
	if y.kind == kNone {
		return a.refuse(i, "", "reads r%d, which was never written", o.src)
	}
	if reads && x.kind != kScalar || y.kind != kScalar {
		return a.stepPointer(s, i, x, y, fx)
	}
	s.set(o.depth, o.dst, scalar(alu(o, x.n, y.n)))
	return nil
}

// stepPointer is arithmetic with a pointer.
func (a *analysis) stepPointer(s *state, i int, x, y val, fx *effect) error {
	o := &a.ops[i]
	leak := func(v *val) error {
		hint := ""
		if v.kind == kMixed {
			hint = "use one variable for each"
		}
		return a.refuse(i, hint, "calculates with %s as if it were a number", v.kind)
	}
	if o.w32 || o.alu != asm.Add && o.alu != asm.Sub {
		if y.kind != kScalar {
			return leak(&y)
		}
		return leak(&x)
	}
	if x.kind == kScalar && o.alu == asm.Add {
		x, y = y, x
		if o.reg {
			fx.swap = true
		}
	}
	switch {
	case x.kind == kMap || x.kind == kMixed:
		return leak(&x)
	case y.kind == kScalar:
	case o.alu == asm.Sub && sameObject(&x, &y):
		s.set(o.depth, o.dst, scalar(x.n.sub(y.n)))
		return nil
	default:
		return leak(&y)
	}
	if x.kind == kValue {
		x.id = 0 // of a record it stays: giving that back ends the use of what points into it
	}
	if x.null {
		fx.null, x.null = true, false
	}
	if o.alu == asm.Add {
		x.n = x.n.add(y.n)
	} else {
		x.n = x.n.sub(y.n)
	}
	s.set(o.depth, o.dst, x)
	return nil
}

// sameObject reports whether the distance of two pointers means something.
func sameObject(x, y *val) bool {
	if x.kind != y.kind || x.null || y.null {
		return false
	}
	switch x.kind {
	case kStack:
		return x.depth == y.depth
	case kCtx, kText:
		return true
	case kValue:
		return x.direct && y.direct && x.maps[0] == y.maps[0]
	}
	return false
}

// alu is what is known of the result of an ALU op on numbers.
func alu(o *op, x, y num) num {
	width := 64
	if o.w32 {
		width = 32
		switch o.alu {
		case asm.SDiv, asm.SMod, asm.ArSh:
			x, y = x.extend(32), y.extend(32)
		default:
			x, y = x.low(32), y.low(32)
		}
	}
	r := anyNum
	count := uint(y.umin) & uint(width-1)
	switch o.alu {
	case asm.Mov:
		r = y
	case asm.MovSX8:
		r = y.extend(8)
	case asm.MovSX16:
		r = y.extend(16)
	case asm.MovSX32:
		r = y.extend(32)
	case asm.Add:
		r = x.add(y)
	case asm.Sub:
		r = x.sub(y)
	case asm.Mul:
		r = x.mul(y)
	case asm.Div:
		r = x.udiv(y)
	case asm.Mod:
		r = x.umod(y)
	case asm.SDiv, asm.SMod:
		r = signedDivision(o.alu == asm.SMod, x, y)
	case asm.Or:
		r = x.or(y)
	case asm.And:
		r = x.and(y)
	case asm.Xor:
		r = x.xor(y)
	case asm.Neg:
		r = x.neg()
	case asm.Swap:
		r = x.low(int(o.width))
		if o.big {
			r = x.swap(int(o.width))
		}
	case asm.LSh, asm.RSh, asm.ArSh:
		if !y.isConst() {
			if o.alu == asm.RSh {
				r = rangeNum(0, x.umax)
			}
			break
		}
		switch o.alu {
		case asm.LSh:
			r = x.lsh(count)
		case asm.RSh:
			r = x.rsh(count)
		default:
			r = x.arsh(count)
		}
	}
	return r.low(width)
}

// signedDivision folds constants; of others it only knows signs.
func signedDivision(mod bool, x, y num) num {
	if x.isConst() && y.isConst() {
		a, b := int64(x.umin), int64(y.umin)
		switch {
		case b == 0 && mod:
			return x
		case b == 0:
			return constNum(0)
		case b == -1 && mod:
			return constNum(0)
		case b == -1:
			return constNum(-x.umin)
		case mod:
			return constNum(uint64(a % b))
		}
		return constNum(uint64(a / b))
	}
	if x.smin >= 0 && y.smin > 0 {
		if mod {
			return x.umod(y)
		}
		return x.udiv(y)
	}
	return anyNum
}

// flow runs block b and returns the states at the start of its successors, nil
// for ways that are never taken.
func (a *analysis) flow(b int) ([]*state, error) {
	s := a.in[b].clone()
	blk := &a.cfg.blocks[b]
	var fx effect
	for i := blk.first; i <= blk.last; i++ {
		if err := a.step(s, i, &fx); err != nil {
			return nil, err
		}
	}
	switch a.ops[blk.last].kind {
	case opJump:
		taken, next, err := a.branch(s, blk.last)
		return []*state{taken, next}, err
	case opMay:
		return []*state{s, s.clone()}, nil
	}
	return []*state{s}, nil
}

// branch returns the states behind a conditional jump, nil for the way that is
// never taken.
func (a *analysis) branch(s *state, i int) (taken, next *state, err error) {
	o := &a.ops[i]
	x, y := s.reg(o.depth, o.dst), a.operand(s, o)
	for _, v := range []struct {
		v *val
		r uint8
	}{{&x, o.dst}, {&y, o.src}} {
		if v.v.kind == kNone {
			return nil, nil, a.refuse(i, "", "reads r%d, which was never written", v.r)
		}
	}
	if x.kind != kScalar || y.kind != kScalar {
		return a.branchPointer(s, i, x, y)
	}
	if o.w32 && (x.n.umax > math.MaxUint32 || y.n.umax > math.MaxUint32 || signedJump(o.jump)) {
		return a.branch32(s, o, x.n, y.n)
	}
	side := func(take bool) *state {
		xn, yn, ok := refine(o.jump, x.n, y.n, take)
		if !ok {
			return nil
		}
		t := s.clone()
		t.learn(o.depth, o.dst, &x, xn)
		if o.reg {
			t.learn(o.depth, o.src, &y, yn)
		}
		return t
	}
	return side(true), side(false), nil
}

func signedJump(j asm.JumpOp) bool {
	return j == asm.JSGT || j == asm.JSGE || j == asm.JSLT || j == asm.JSLE
}

// branch32 compares halves: the whole is narrowed only where it has no upper
// half to begin with.
func (a *analysis) branch32(s *state, o *op, x, y num) (taken, next *state, err error) {
	xl, yl := x.low(32), y.low(32)
	wide := x.umax > math.MaxUint32 || y.umax > math.MaxUint32
	if signedJump(o.jump) {
		wide = wide || x.umax > math.MaxInt32 || y.umax > math.MaxInt32
		if wide {
			xl, yl = x.extend(32), y.extend(32)
		}
	}
	side := func(take bool) *state {
		xn, yn, ok := refine(o.jump, xl, yl, take)
		if !ok {
			return nil
		}
		t := s.clone()
		if !wide {
			xv, yv := s.reg(o.depth, o.dst), a.operand(s, o)
			t.learn(o.depth, o.dst, &xv, xn)
			if o.reg {
				t.learn(o.depth, o.src, &yv, yn)
			}
		}
		return t
	}
	return side(true), side(false), nil
}

// learn narrows register r and all copies of it.
func (s *state) learn(d int8, r uint8, v *val, n num) {
	if r < 10 {
		s.frames[d].regs[r].n = n
	}
	if v.id != 0 {
		s.each(func(w *val) {
			if w.id == v.id && w.kind == kScalar {
				w.n = n
			}
		})
	}
}

// branchPointer compares with NULL, or two pointers into one object.
func (a *analysis) branchPointer(s *state, i int, x, y val) (taken, next *state, err error) {
	o := &a.ops[i]
	p, other := &x, &y
	r := o.dst
	if x.kind == kScalar {
		p, other, r = &y, &x, o.src
	}
	equality := o.jump == asm.JEq || o.jump == asm.JNE
	switch {
	case !o.w32 && equality && other.isNull() && p.kind.pointer():
		if !p.null {
			if o.jump == asm.JEq {
				return nil, s, nil
			}
			return s, nil, nil
		}
		null, set := s.clone(), s
		null.refineNull(o.depth, r, p, true)
		set.refineNull(o.depth, r, p, false)
		if o.jump == asm.JEq {
			return null, set, nil
		}
		return set, null, nil
	case !o.w32 && o.jump != asm.JSet && sameObject(&x, &y): // the bits of an address mean nothing
		return s.clone(), s, nil
	case x.kind == kMixed || y.kind == kMixed:
		return nil, nil, a.refuse(i, "use one variable for each", "compares %s", kMixed)
	}
	return nil, nil, a.refuse(i, "", "compares %s with %s", x.kind, y.kind)
}

// refineNull says that the pointer in register r, and its copies, is NULL or is
// not.
func (s *state) refineNull(d int8, r uint8, p *val, null bool) {
	fix := func(v *val) {
		v.null = false
		if null {
			*v = scalar(constNum(0))
		}
	}
	if p.id != 0 {
		s.each(func(v *val) {
			if v.id == p.id && (v.kind == kValue || v.kind == kRecord || v.kind == kMap) {
				fix(v)
			}
		})
	}
	if r < 10 && s.frames[d].regs[r].kind != kScalar {
		fix(&s.frames[d].regs[r])
	}
	if null && p.kind == kRecord {
		s.release(p.id)
	}
}

func (s *state) release(id int32) {
	for i := range s.held {
		if s.held[i].id == id {
			s.held = append(s.held[:i], s.held[i+1:]...)
			return
		}
	}
}
