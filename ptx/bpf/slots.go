package bpf

import (
	"maps"
	"slices"
	"strings"
)

// A SlotUse is a call of a helper with Slot whose key is known where the program is put: made of numbers, and
// of fields of the context that are Placed. One part may be known in the thread alone, if it is small: there is a slot
// for each of its values then, one behind the other.
type SlotUse struct {
	Insn int // index of the instruction in Program.Insns
	Map  int
	Key  []KeyPart // without gaps, in order
}

// A KeyPart is a part of a key, little-endian.
type KeyPart struct {
	Size   int // bytes
	Field  int // index of the context's field, -1: it is Number
	Number uint64
	Below  int // 0, or: it is a number in the thread, less than that
}

// MostSlots is how many slots a use has at most.
const MostSlots = 256

// Slots is how many slots a use has.
func (u *SlotUse) Slots() int {
	for _, p := range u.Key {
		if p.Below > 0 {
			return p.Below
		}
	}
	return 1
}

// Of returns the key of slot i of the use at a site, whose fields value gives.
func (u *SlotUse) Of(i int, value func(field int) uint64) []byte {
	var key []byte
	for _, p := range u.Key {
		n := p.Number
		switch {
		case p.Below > 0:
			n = uint64(i)
		case p.Field >= 0:
			n = value(p.Field)
		}
		for range p.Size {
			key = append(key, byte(n))
			n >>= 8
		}
	}
	return key
}

// mostSlotNodes bounds the work of finding keys.
const mostSlotNodes = 1 << 12

// slots notes the calls whose keys are known at the site; with Env.Slots, those that it names, which become the
// address that [Site].Slot gives.
func (l *lowering) slots() {
	wanted := func(n *node) bool {
		return n.kind == nCall && n.label == 0 && n.call.op.helper.Slot && n.call.info.Map >= 0
	}
	if len(l.nodes) > mostSlotNodes || !slices.ContainsFunc(l.nodes, func(n node) bool { return wanted(&n) }) {
		return
	}
	spans, ok := splitNodes(l.nodes)
	if !ok {
		return
	}
	in := make([]map[reg]arg, len(spans)) // what registers hold at the beginning of a span, nil: it is not reached
	in[0] = map[reg]arg{}
	walk := func(i int, see func(k int, held map[reg]arg)) map[reg]arg {
		held := make(map[reg]arg, len(in[i]))
		maps.Copy(held, in[i])
		for k := spans[i].from; k < spans[i].to; k++ {
			n := &l.nodes[k]
			if see != nil {
				see(k, held)
			}
			x, known := l.placed(n, held)
			n.sets(&l.coder, func(r reg) { delete(held, r) })
			if known {
				held[n.dst] = x
			}
		}
		return held
	}
	for todo := []int{0}; len(todo) > 0; {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		out := walk(i, nil)
		for _, t := range spans[i].succ {
			if in[t] == nil {
				in[t] = out
				todo = append(todo, t)
				continue
			}
			kept := make(map[reg]arg, len(in[t]))
			for r, x := range in[t] {
				if out[r] == x {
					if _, has := out[r]; has {
						kept[r] = x
					}
				}
			}
			if len(kept) < len(in[t]) {
				in[t] = kept
				todo = append(todo, t)
			}
		}
	}
	for i := range spans {
		if in[i] == nil {
			continue
		}
		walk(i, func(k int, held map[reg]arg) {
			if n := &l.nodes[k]; wanted(n) {
				l.slot(n, held)
			}
		})
	}
	for i := range spans {
		for k := spans[i].from; k < spans[i].to; k++ {
			if n := &l.nodes[k]; n.kind == nInst && n.args[len(n.args)-1].kind == aSlot && !l.counts(spans, i, k) {
				l.uncounted = true
			}
		}
	}
}

// counts reports whether what comes to node k of a span adds a number that is not 0 to the value whose address the node
// gives: then a value of zeros says that nobody came.
func (l *lowering) counts(spans []span, i, k int) bool {
	at := map[reg]bool{l.nodes[k].dst: true}
	for range len(spans) {
		for k++; k < spans[i].to; k++ {
			n := &l.nodes[k]
			if n.kind == nAtomic && strings.HasPrefix(n.op, "add.") && n.base.kind == aReg && at[n.base.r] && n.args[0].kind == aImm && n.args[0].v != 0 {
				return true
			}
			held := n.kind == nInst && n.op == "mov.b64" && n.guard == noReg && n.args[0].kind == aReg && at[n.args[0].r]
			n.sets(&l.coder, func(r reg) { delete(at, r) })
			if held {
				at[n.dst] = true
			}
		}
		if len(spans[i].succ) != 1 {
			return false
		}
		i = spans[i].succ[0]
		k = spans[i].from - 1
	}
	return false
}

// placed returns what a node puts into its register, if that is a number, a field that is known at the site, or small.
func (l *lowering) placed(n *node, held map[reg]arg) (x arg, ok bool) {
	if n.kind != nInst || n.guard != noReg || n.dst == noReg || len(n.args) == 0 {
		return arg{}, false
	}
	x, ok = l.placedArg(n.args[0], held)
	bits := 64
	switch n.op {
	case "mov.b64":
	case "shr.u64", "shr.s64":
		by := n.args[1]
		switch {
		case !ok || by.kind != aImm || by.v < 0 || by.v > 63 || n.op == "shr.s64" && x.kind != aBelow:
			return arg{}, false
		case x.kind == aImm:
			return imm(uint64(x.v) >> by.v), true
		case x.kind == aBelow:
			return arg{kind: aBelow, v: (x.v-1)>>by.v + 1}, true
		}
		return imm(0), 8*l.a.env.Context.Fields[x.m].Size <= int(by.v)
	case "cvt.u32.u64", "cvt.u64.u32":
		bits = 32
	case "and.b64":
		mask := n.args[1]
		if mask.kind != aImm {
			return arg{}, false
		}
		for bits = 0; bits < 64 && mask.v>>bits&1 == 1; bits++ {
		}
		if uint64(mask.v)>>1>>max(bits-1, 0) != 0 || bits == 0 {
			return arg{}, false
		}
	default:
		return arg{}, false
	}
	switch {
	case ok && (bits == 64 || x.kind == aField && 8*l.a.env.Context.Fields[x.m].Size <= bits || x.kind == aBelow && x.v <= 1<<min(bits, 62)):
		return x, true
	case ok && x.kind == aImm:
		x.v &= 1<<bits - 1
		return x, true
	case n.op == "and.b64" && 1<<min(bits, 62) <= MostSlots:
		return arg{kind: aBelow, v: 1 << bits}, true
	}
	return arg{}, false
}

// placedArg returns what an operand is, if that is a number, a field that is known at the site, or small.
func (l *lowering) placedArg(x arg, held map[reg]arg) (arg, bool) {
	switch x.kind {
	case aImm:
		return x, true
	case aField:
		switch f := &l.a.env.Context.Fields[x.m]; {
		case f.Placed:
			return x, true
		case f.Below > 0:
			return arg{kind: aBelow, v: int64(f.Below)}, true
		}
	case aReg:
		x, ok := held[x.r]
		return x, ok
	}
	return arg{}, false
}

// slot notes a call, and replaces it if it is to be.
func (l *lowering) slot(n *node, held map[reg]arg) {
	info := &n.call.info
	key, small := l.keyOf(n.call, held)
	if key == nil {
		return
	}
	u := SlotUse{Insn: info.Insn, Map: info.Map, Key: key}
	if l.a.env.Slots == nil {
		l.report.Slots = append(l.report.Slots, u)
		return
	}
	if !l.a.env.Slots(info) {
		return
	}
	at := arg{kind: aSlot, m: int32(info.Map), v: int64(len(l.report.Slots))}
	*n = node{kind: nInst, op: "mov.b64", dst: n.dst, guard: noReg, args: []arg{at}}
	if u.Slots() > 1 {
		n.op, n.args = "mad.lo.u64", []arg{small.arg(), imm(l.a.env.Maps[info.Map].slotBytes()), at}
	}
	l.report.Slots = append(l.report.Slots, u)
}

// slotBytes is how far the slots of values are from each other.
func (m *Map) slotBytes() uint64 { return (uint64(m.ValueSize) + 7) &^ 7 }

// keyOf returns the parts of a call's key, nil where it is not known at the site, and the register of the one that is known
// in the thread.
func (l *lowering) keyOf(c *callNode, held map[reg]arg) (key []KeyPart, small reg) {
	small = noReg
	for k := range c.args {
		a := &c.args[k]
		if a.spec == nil || a.spec.Kind != ArgKey || a.size == 0 {
			continue
		}
		if a.known {
			for at := 0; at < a.size; at += 8 {
				n := min(8, a.size-at)
				key = append(key, KeyPart{Size: n, Field: -1, Number: little(a.bytes[at : at+n])})
			}
			return key, small
		}
		if a.place.kind != kStack || !a.place.fixed {
			return nil, small
		}
		at := a.place.off
		for _, t := range l.layouts[a.place.depth].between(a.place.off, a.place.off+a.size) {
			x, ok := held[t.reg]
			if !ok || t.off != at || t.off+t.size > a.place.off+a.size {
				return nil, small
			}
			p := KeyPart{Size: t.size, Field: -1, Number: uint64(x.v)}
			switch x.kind {
			case aField:
				p.Field, p.Number = int(x.m), 0
			case aBelow:
				if small != noReg || t.reg.class != c64 {
					return nil, small
				}
				small, p.Below, p.Number = t.reg, int(x.v), 0
			}
			key, at = append(key, p), at+t.size
		}
		if at != a.place.off+a.size {
			return nil, small
		}
		return key, small
	}
	return nil, small
}

// unplaced reports whether a call that Env.Slots names has a key that is not known at the site, or a value that may be
// zeros after it.
func (l *lowering) unplaced() bool {
	return l.uncounted || slices.ContainsFunc(l.nodes, func(n node) bool {
		return n.kind == nCall && n.label == 0 && !n.dead && n.call.op.helper.Slot && l.a.env.Slots != nil && l.a.env.Slots(&n.call.info)
	})
}
