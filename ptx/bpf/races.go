package bpf

import (
	"slices"

	"github.com/cilium/ebpf/asm"
)

// racesAtOnce is how many loads are followed at once.
const racesAtOnce = 64

// A racer follows what was loaded from maps to where it is stored.
type racer struct {
	a        *analysis
	accesses []access
	args     map[int]*[5]argument // of calls
	loads    []int                // ops
	of       map[int]uint64       // those that are followed now, by op
	words    int                  // of the facts at one point
	found    []Race
}

// stackWords is how many facts there are of a stack: one for 8 bytes.
const stackWords = StackSize / 8

// races finds the program's races.
func (a *analysis) races() []Race {
	r := &racer{a: a, accesses: make([]access, len(a.ops)), args: map[int]*[5]argument{}}
	depths, stores := 0, false
	var fx effect
	for i, s := range a.states() {
		o := &a.ops[i]
		depths = max(depths, int(o.depth)+1)
		if err := a.step(s, i, &fx); err != nil {
			return nil
		}
		r.accesses[i] = fx.acc
		shared := fx.acc.kind == kValue && !a.env.ownOf(fx.acc.maps)
		switch {
		case o.kind == opLoad && shared && !fx.acc.readOnly:
			r.loads = append(r.loads, i)
		case o.kind == opStore && shared:
			stores = true
		case o.kind == opHelper:
			args := fx.args
			r.args[i], stores = &args, true
			r.overItself(i)
		}
	}
	if !stores {
		return nil
	}
	r.words = depths * (10 + stackWords)
	for part := range slices.Chunk(r.loads, racesAtOnce) {
		r.of = map[int]uint64{}
		for k, i := range part {
			r.of[i] = 1 << k
		}
		r.follow(part)
	}
	slices.SortFunc(r.found, func(x, y Race) int { return x.Insn - y.Insn })
	return slices.CompactFunc(r.found, func(x, y Race) bool { return x.Insn == y.Insn })
}

// reg and stack are where the facts of a register and of 8 bytes of a stack are.
func (r *racer) reg(d int8, n uint8) int { return int(d)*(10+stackWords) + int(n) }

func (r *racer) stack(d int8, at int) int { return r.reg(d, 10) + at/8 }

// follow finds the stores of what the loads of part read.
func (r *racer) follow(part []int) {
	a := r.a
	in := make([]bitset, len(a.cfg.blocks))
	in[0] = make(bitset, r.words)
	for changed := true; changed; {
		changed = false
		for _, b := range a.cfg.rpo {
			if in[b] == nil || a.in[b] == nil {
				continue
			}
			out := slices.Clone(in[b])
			for i := a.cfg.blocks[b].first; i <= a.cfg.blocks[b].last; i++ {
				r.step(i, out, nil)
			}
			for _, t := range a.cfg.blocks[b].succ {
				if in[t] == nil {
					in[t], changed = slices.Clone(out), true
				} else if in[t].add(out) {
					changed = true
				}
			}
		}
	}
	for b := range a.cfg.blocks {
		if in[b] == nil || a.in[b] == nil {
			continue
		}
		out := slices.Clone(in[b])
		for i := a.cfg.blocks[b].first; i <= a.cfg.blocks[b].last; i++ {
			r.step(i, out, part)
		}
	}
}

// step changes the facts as op i does: of each register and stack word, the loads that
// it was calculated from. With part set it notes races.
func (r *racer) step(i int, t bitset, part []int) {
	o, acc := &r.a.ops[i], &r.accesses[i]
	source := func() uint64 {
		if o.reg && o.src < 10 {
			return t[r.reg(o.depth, o.src)]
		}
		return 0
	}
	switch o.kind {
	case opALU:
		if o.dst > 9 {
			return
		}
		d := &t[r.reg(o.depth, o.dst)]
		switch {
		case o.alu == asm.Mov || o.alu == asm.MovSX8 || o.alu == asm.MovSX16 || o.alu == asm.MovSX32:
			*d = source()
		case o.reg && o.src == o.dst && (o.alu == asm.Xor || o.alu == asm.Sub):
			*d = 0
		default:
			*d |= source()
		}
	case opConst, opMap, opDirect:
		t[r.reg(o.depth, o.dst)] = 0
	case opLoad:
		v := r.of[i]
		if acc.kind == kStack {
			for at := acc.lo; at < acc.hi; at++ {
				v |= t[r.stack(acc.depth, at)]
			}
		}
		t[r.reg(o.depth, o.dst)] = v
	case opStore:
		if acc.kind == kStack {
			for at := acc.lo; at < acc.hi; at++ {
				w := &t[r.stack(acc.depth, at)]
				if acc.fixed && acc.size == 8 && acc.off%8 == 0 {
					*w = 0
				}
				*w |= source()
			}
		} else if part != nil && acc.kind == kValue {
			r.note(i, source(), acc.maps, acc.lo, acc.hi, part)
		}
	case opAtomic:
		if x, ok := o.fetches(); ok && x < 10 {
			t[r.reg(o.depth, x)] = 0
		}
	case opHelper:
		r.call(i, t, part)
	case opEnter:
		d := o.depth + 1
		clear(t[r.reg(d, 0):][:10+stackWords])
		for x := uint8(1); x <= 5; x++ {
			t[r.reg(d, x)] = t[r.reg(o.depth, x)]
		}
	case opLeave:
		t[r.reg(o.depth-1, 0)] = t[r.reg(o.depth, 0)]
		clear(t[r.reg(o.depth-1, 1):][:5])
	}
}

// call looks at a call that stores a value.
func (r *racer) call(i int, t bitset, part []int) {
	o := &r.a.ops[i]
	m := r.mapOf(i)
	for k := range o.helper.Args {
		arg := &r.args[i][k]
		if o.helper.Args[k].Kind != ArgValue || part == nil || m < 0 || arg.acc.kind != kStack {
			continue
		}
		for at := arg.acc.lo; at < arg.acc.hi; at++ {
			from := at - arg.acc.lo
			r.note(i, t[r.stack(arg.acc.depth, at)], []int32{m}, from, from+1, part)
		}
	}
	clear(t[r.reg(o.depth, 0):][:6])
}

// overItself notes a call whose value is in the very map that it goes to: what the helper
// reads it writes back.
func (r *racer) overItself(i int) {
	m := r.mapOf(i)
	for k := range r.a.ops[i].helper.Args {
		acc := &r.args[i][k].acc
		if r.a.ops[i].helper.Args[k].Kind == ArgValue && acc.kind == kValue && slices.Contains(acc.maps, m) && !r.a.env.ownOf(acc.maps) {
			r.found = append(r.found, r.race(i, m, acc.size))
		}
	}
}

// mapOf returns a call's map, -1 for none.
func (r *racer) mapOf(i int) int32 {
	for k := range r.a.ops[i].helper.Args {
		if v := &r.args[i][k].v; r.a.ops[i].helper.Args[k].Kind == ArgMap && v.kind == kMap {
			return v.maps[0]
		}
	}
	return -1
}

// race returns one whose value op i writes.
func (r *racer) race(i int, m int32, size int) Race {
	o := &r.a.ops[i]
	x := Race{Map: int(m), Insn: o.at, Call: o.kind == opHelper, Size: size, Op: r.by(i)}
	x.Source, x.Position = r.a.p.source(o.at)
	return x
}

// note notes a race if bytes lo to hi of a value of one of the maps are among those that
// one of the loads in from read.
func (r *racer) note(i int, from uint64, maps []int32, lo, hi int, part []int) {
	if from == 0 {
		return
	}
	for k, load := range part {
		acc := &r.accesses[load]
		if from>>k&1 == 0 || acc.hi <= lo || acc.lo >= hi {
			continue
		}
		for _, m := range maps {
			if !slices.Contains(acc.maps, m) {
				continue
			}
			r.found = append(r.found, r.race(i, m, acc.size))
			return
		}
	}
}

// by returns what a store's register was calculated by last.
func (r *racer) by(i int) asm.ALUOp {
	o := &r.a.ops[i]
	if o.kind != opStore {
		return asm.InvalidALUOp
	}
	for k := i - 1; k >= r.a.cfg.blocks[r.a.cfg.of[i]].first; k-- {
		if writes(&r.a.ops[k], o.depth, o.src) {
			if r.a.ops[k].kind == opALU {
				return r.a.ops[k].alu
			}
			break
		}
	}
	return asm.InvalidALUOp
}
