package bpf

import (
	"bytes"
	"fmt"
	"math"
	"slices"
)

// maxHelperBytes limits what a helper may access through one pointer, so that
// code for each byte stays within bounds; mostHelperBytes, where there is no such code.
const (
	maxHelperBytes  = 4096
	mostHelperBytes = 1 << 20
)

// helperBytes is the limit that holds.
func (e *Env) helperBytes() uint64 {
	if e.Large {
		return mostHelperBytes
	}
	return maxHelperBytes
}

// An argument is what is known of one argument of a helper's call.
type argument struct {
	spec  *ArgSpec
	v     val
	acc   access // of a pointer; size 0: nothing is accessed
	bytes []byte // its memory, when that is the same on every path
	known bool   // bytes are known
	most  uint64 // the highest number its memory may hold
}

func (a *analysis) stepHelper(s *state, i int, fx *effect) error {
	o := &a.ops[i]
	h := o.helper
	for k := range h.Args {
		fx.args[k] = argument{spec: &h.Args[k], v: s.reg(o.depth, uint8(k+1)), most: math.MaxUint64}
		if h.Args[k].Kind == ArgMap {
			v := &fx.args[k].v
			if v.kind != kMap {
				return a.refuse(i, "pass the map itself, the same one on every path", "argument %d of %s is %s, not a map", k+1, h.Name, describe(v))
			}
			if v.null {
				return a.refuse(i, "test it before", "argument %d of %s is a map that may be NULL", k+1, h.Name)
			}
			fx.m = v.maps[0]
		}
	}
	for k := range h.Args {
		if err := a.checkArg(s, i, k, fx); err != nil {
			return err
		}
	}
	if err := a.checkApart(i, fx); err != nil {
		return err
	}
	if h.Check != nil {
		if err := h.Check(fx.info(o)); err != nil {
			return a.refuse(i, "", "%s: %v", h.Name, err)
		}
	}
	for k := range h.Args {
		a.writeArg(s, fx, k)
	}
	return a.result(s, i, fx)
}

// info is what the call's own code gets to know.
func (fx *effect) info(o *op) *CallInfo {
	c := &CallInfo{Insn: o.at, Map: int(fx.m)}
	for k := range fx.args {
		if v := &fx.args[k].v; v.kind == kScalar && v.n.isConst() {
			c.Consts[k].Known, c.Consts[k].Value = true, v.n.umin
		}
		c.Most[k] = math.MaxUint64
		if arg := &fx.args[k]; arg.spec != nil {
			c.Most[k], c.Size[k] = arg.most, arg.acc.size
			if arg.known {
				c.Bytes[k] = arg.bytes
			}
		}
	}
	return c
}

// checkArg checks argument k of call i.
func (a *analysis) checkArg(s *state, i, k int, fx *effect) error {
	o := &a.ops[i]
	h, arg := o.helper, &fx.args[k]
	v := &arg.v
	wrong := func(want string) error {
		return a.refuse(i, "", "argument %d of %s is %s, not %s", k+1, h.Name, describe(v), want)
	}
	switch arg.spec.Kind {
	case ArgAny, ArgMap:
		return nil
	case ArgScalar:
		if v.kind != kScalar {
			return wrong("a number")
		}
		return nil
	case ArgConst:
		if v.kind != kScalar || !v.n.isConst() {
			return wrong("a number that is the same on every path")
		}
		return nil
	case ArgContext:
		if (v.kind != kCtx && v.kind != kText || !v.n.isConst() || v.n.umin != 0) && !v.isNull() {
			return wrong("the context or NULL")
		}
		return nil
	case ArgRecord:
		return a.checkRecord(s, i, k, fx)
	}
	size, err := a.argSize(i, k, fx)
	if err != nil {
		return err
	}
	if size == 0 {
		return nil
	}
	if v.kind == kCtx {
		return a.refuse(i, "copy the field to a variable", "argument %d of %s is the context, which is not in memory", k+1, h.Name)
	}
	if arg.spec.Kind == ArgString {
		return a.checkString(s, i, k, size, fx)
	}
	shared := arg.spec.Kind == ArgShared
	arg.acc, err = a.access(s, i, uint8(k+1), 0, size, shared || arg.spec.Kind == ArgWrite)
	if err != nil {
		return err
	}
	if shared && (v.kind != kValue || a.env.ownOf(v.maps) || arg.acc.align < size) {
		return wrong(fmt.Sprintf("a pointer to %d aligned bytes of a map's value", size))
	}
	arg.v = s.reg(o.depth, uint8(k+1))
	return a.readArg(s, i, k, arg)
}

// checkApart refuses a text that the helper may write over while it reads it.
func (a *analysis) checkApart(i int, fx *effect) error {
	for k := range fx.args {
		text := &fx.args[k]
		if text.spec == nil || text.spec.Kind != ArgString || text.acc.kind != kStack {
			continue
		}
		for w := range fx.args {
			to := &fx.args[w]
			if to.spec == nil || to.spec.Kind != ArgWrite || to.acc.kind != kStack || to.acc.size == 0 || to.acc.depth != text.acc.depth {
				continue
			}
			if to.acc.lo < text.acc.hi && text.acc.lo < to.acc.hi {
				return a.refuse(i, "write to memory of its own", "%s writes over the text in argument %d while it reads it", a.ops[i].helper.Name, k+1)
			}
		}
	}
	return nil
}

// readArg notes what the memory of an argument holds.
func (a *analysis) readArg(s *state, i, k int, arg *argument) error {
	acc := &arg.acc
	switch {
	case acc.kind == kStack:
		f := &s.frames[acc.depth]
		if f.holdsPointer(acc.lo, acc.hi) && (arg.spec.Kind != ArgWrite || arg.spec.Reads || !acc.fixed) {
			return a.refuse(i, "", "argument %d of %s has a pointer in it", k+1, a.ops[i].helper.Name)
		}
		if acc.fixed && arg.spec.Kind != ArgWrite {
			arg.bytes, arg.known = f.constant(acc.off, acc.size)
			if acc.size <= 8 {
				v, _ := f.read(acc.off, acc.size)
				arg.most = v.n.umax
			}
		}
	case acc.readOnly && acc.direct && acc.fixed:
		if data := a.env.Maps[acc.maps[0]].Contents; acc.off+acc.size <= len(data) {
			arg.bytes, arg.known = data[acc.off:acc.off+acc.size], true
		}
	}
	return nil
}

// argSize is how many bytes the helper may access through argument k.
func (a *analysis) argSize(i, k int, fx *effect) (int, error) {
	h, spec := a.ops[i].helper, fx.args[k].spec
	size := uint64(spec.Size)
	switch {
	case spec.Kind == ArgKey || spec.Kind == ArgValue || spec.Size == ValueBytes:
		if fx.m < 0 {
			return 0, a.refuse(i, "", "argument %d of %s is a key or value, but there is no map", k+1, h.Name)
		}
		size = uint64(a.env.Maps[fx.m].KeySize)
		if spec.Kind != ArgKey {
			size = uint64(a.env.Maps[fx.m].ValueSize)
		}
	case spec.Size == 0:
		if spec.SizeArg < 0 || spec.SizeArg >= len(h.Args) {
			return 0, a.refuse(i, "", "argument %d of %s has no size", k+1, h.Name)
		}
		v := &fx.args[spec.SizeArg].v
		if v.kind != kScalar {
			return 0, a.refuse(i, "", "argument %d of %s is %s, not a size", spec.SizeArg+1, h.Name, describe(v))
		}
		if size = v.n.umax; size > a.env.helperBytes() && !v.n.isConst() {
			return 0, a.refuse(i, "mask or compare it before", "the size in argument %d of %s has no bound", spec.SizeArg+1, h.Name)
		}
	}
	if size > a.env.helperBytes() {
		return 0, a.refuse(i, "", "argument %d of %s has %d bytes; at most %d are possible", k+1, h.Name, size, a.env.helperBytes())
	}
	return int(size), nil
}

// checkString checks that a text is known.
func (a *analysis) checkString(s *state, i, k, size int, fx *effect) error {
	h, arg := a.ops[i].helper, &fx.args[k]
	v := &arg.v
	var data []byte
	switch {
	case !v.n.isConst() || v.null || v.kind != kText && v.kind != kStack && v.kind != kValue:
		return a.refuse(i, "", "argument %d of %s is %s, not a text at a known place", k+1, h.Name, describe(v))
	case v.kind == kText: // its bytes come with the site
		if off := v.n.umin; off > uint64(a.env.Context.Text) {
			return a.refuse(i, "", "argument %d of %s is outside of the context's text", k+1, h.Name)
		}
		arg.acc = access{kind: kText, fixed: true, off: int(v.n.umin), size: min(size, a.env.Context.Text-int(v.n.umin))}
		return nil
	case v.kind == kStack:
		if off := v.n.umin; off < StackSize {
			data, _ = s.frames[v.depth].constant(int(off), min(size, int(StackSize-off)))
		}
	case v.kind == kValue && v.direct && a.env.Maps[v.maps[0]].ReadOnly:
		if all := a.env.Maps[v.maps[0]].Contents; v.n.umin < uint64(len(all)) {
			data = all[v.n.umin:]
			data = data[:min(size, len(data))]
		}
	}
	end := bytes.IndexByte(data, 0)
	if end < 0 {
		return a.refuse(i, "use a literal", "argument %d of %s is a text that is not known before the program runs", k+1, h.Name)
	}
	arg.bytes, arg.known = data[:end], true
	if off := int(v.n.umin); v.kind == kStack {
		arg.acc = access{kind: kStack, depth: v.depth, fixed: true, off: off, lo: off, hi: off + end + 1, size: end + 1, object: StackSize, align: 8}
	}
	return nil
}

// checkRecord checks an argument that gives a record back.
func (a *analysis) checkRecord(s *state, i, k int, fx *effect) error {
	o := &a.ops[i]
	v := &fx.args[k].v
	held := v.kind == kRecord && v.id > 0 && slices.ContainsFunc(s.held, func(h heldRecord) bool { return h.id == v.id })
	if !held {
		return a.refuse(i, "", "argument %d of %s is %s, not a record that is to be given back", k+1, o.helper.Name, describe(v))
	}
	if v.n != constNum(0) {
		return a.refuse(i, "keep the pointer that the record came with", "argument %d of %s is a pointer into a record, not to its first byte", k+1, o.helper.Name)
	}
	if v.null {
		fx.args[k].acc.null = true
	}
	s.release(v.id)
	id := v.id
	s.each(func(w *val) {
		if w.kind == kRecord && w.id == id {
			*w = val{kind: kMixed}
		}
	})
	return nil
}

// writeArg says that the memory of argument k was written, or may have been.
func (a *analysis) writeArg(s *state, fx *effect, k int) {
	arg := &fx.args[k]
	if arg.spec.Kind != ArgWrite || arg.acc.size == 0 || arg.acc.kind != kStack {
		return
	}
	f := &s.frames[arg.acc.depth]
	whole := arg.acc.fixed && arg.spec.Whole
	if arg.spec.Size == 0 {
		size := &fx.args[arg.spec.SizeArg].v
		whole = whole && size.kind == kScalar && size.n.isConst()
	}
	if !whole {
		f.smear(arg.acc.lo, arg.acc.hi)
		return
	}
	for off := arg.acc.off; off < arg.acc.off+arg.acc.size; {
		n := 1
		for n < 8 && off%(2*n) == 0 && off+2*n <= arg.acc.off+arg.acc.size {
			n *= 2
		}
		f.write(off, n, scalar(bitsNum(8*n)))
		off += n
	}
}

// result sets the registers that the call changes.
func (a *analysis) result(s *state, i int, fx *effect) error {
	o := &a.ops[i]
	h := o.helper
	id := s.fresh(int32(i) + 1)
	for r := uint8(1); r <= 5; r++ {
		s.set(o.depth, r, val{})
	}
	switch h.Ret {
	case RetVoid:
		s.set(o.depth, 0, val{})
	case RetNever:
		return a.checkHeld(s, i)
	case RetScalar:
		n := anyNum
		if h.Max > 0 && h.Max <= math.MaxInt64 {
			n = signedNum(0, int64(h.Max))
		}
		s.set(o.depth, 0, scalar(n))
	case RetValue:
		if fx.m < 0 {
			return a.refuse(i, "", "%s returns a value, but there is no map", h.Name)
		}
		if inner := a.env.Maps[fx.m].Inner; inner > 0 {
			s.set(o.depth, 0, val{kind: kMap, null: true, id: id, maps: []int32{int32(inner - 1)}})
			break
		}
		null := h.NeverNull == nil || !h.NeverNull(fx.info(o))
		s.set(o.depth, 0, val{kind: kValue, null: null, id: id, size: a.env.Maps[fx.m].ValueSize, maps: []int32{fx.m}, n: constNum(0)})
	case RetRecord:
		size := uint64(math.MaxUint32)
		for k := range h.Args {
			if h.Args[k].Kind == ArgConst {
				size = min(size, fx.args[k].v.n.umin)
				break
			}
		}
		if slices.ContainsFunc(s.held, func(x heldRecord) bool { return x.id == id }) {
			return a.refuse(i, "submit or discard it within the loop", "takes a record again before the last one was given back")
		}
		s.held = append(s.held, heldRecord{id: id})
		s.set(o.depth, 0, val{kind: kRecord, null: true, id: id, size: uint32(size), n: constNum(0)})
	}
	return nil
}
