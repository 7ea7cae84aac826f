package bpf

import (
	"fmt"
	"slices"
	"strings"
)

// read returns the operations of p, and env or, if that is nil, an empty one.
func read(p *Program, env *Env) (*Env, []op, error) {
	if env == nil {
		env = &Env{}
	}
	if err := env.check(); err != nil {
		return nil, nil, err
	}
	ops, err := flatten(p, env)
	return env, ops, err
}

// Verify checks that p is safe in env and prepares it for [Verified.Emit]. The
// error is a *RefusedError if the program is at fault, otherwise env is.
func Verify(p *Program, env *Env) (*Verified, error) {
	env, ops, err := read(p, env)
	if err != nil {
		return nil, err
	}
	for i := range ops {
		if o := &ops[i]; o.kind == opMap && env.Maps[o.m].Inner > 0 {
			return nil, p.refuse(o.at, "", "map %s has maps for values, which is possible on the host only", env.Maps[o.m].Name)
		}
	}
	a, err := analyze(p, env, ops)
	if err != nil {
		return nil, err
	}
	l := lower(a)
	l.account()
	if l.unplaced() {
		return nil, fmt.Errorf("program %s: a key is not known where it is put, or its value not counted", p.Name)
	}
	if c, why := l.uncommon(); c != nil {
		i := slices.IndexFunc(a.ops, func(o op) bool { return o.kind == opHelper && o.at == c.op.at })
		return nil, a.refuse(i, "call it where all threads come to, before the condition, and use what it returns there", "%s: %s", c.op.helper.Name, why)
	}
	v := &Verified{p: p, env: env, nodes: l.nodes, coder: l.coder, fails: l.fails, vague: l.vague, why: l.why, report: l.report, slotted: env.Slots != nil && len(l.report.Slots) > 0}
	v.coder.add = nil
	for i := range ops {
		if ops[i].kind == opHelper && ops[i].helper.Ret == RetNever {
			v.never = true
		}
	}
	v.report.Races = a.races()
	v.fields = l.report.Fields
	v.number()
	return v, nil
}

// check finds mistakes in the description.
func (e *Env) check() error {
	for i := range e.Maps {
		if m := &e.Maps[i]; m.Align != 0 && m.Align != 1 && m.Align != 2 && m.Align != 4 && m.Align != 8 {
			return fmt.Errorf("map %s: alignment %d is not 1, 2, 4 or 8", m.Name, m.Align)
		}
	}
	if e.Context == nil {
		return nil
	}
	if e.Context.Text < 0 || e.Context.Text > 0 && len(e.Context.Fields) > 0 {
		return fmt.Errorf("the context is a text of %d bytes and has %d fields", e.Context.Text, len(e.Context.Fields))
	}
	for _, f := range e.Context.Fields {
		if f.Offset < 0 || f.Size != 1 && f.Size != 2 && f.Size != 4 && f.Size != 8 {
			return fmt.Errorf("field %s of the context: %d bytes at offset %d", f.Name, f.Size, f.Offset)
		}
	}
	return nil
}

// Report says what the program does and needs. It must not be changed.
func (v *Verified) Report() *Report { return &v.report }

// number gives the registers that are still used small numbers.
func (v *Verified) number() {
	for k := range v.remap {
		v.remap[k] = slices.Repeat([]int32{-1}, int(v.coder.next[k]))
	}
	see := func(r reg) {
		if v.remap[r.class][r.n] < 0 {
			v.remap[r.class][r.n] = v.count[r.class]
			v.count[r.class]++
		}
	}
	for i := range v.nodes {
		if n := &v.nodes[i]; !n.dead {
			n.reads(&v.coder, see)
			n.sets(&v.coder, see)
		}
	}
}

// account fills in the report from the code that is left.
func (l *lowering) account() {
	r, a := &l.report, l.a
	r.Maps = make([]MapUse, len(a.env.Maps))
	fields := map[int]bool{}
	held := map[reg]bool{}
	for d := range l.regs {
		for k := range l.regs[d] {
			held[l.regs[d][k]], held[l.comps[d][k]] = true, true
		}
		for _, t := range l.layouts[d].atoms {
			held[t.reg] = true
		}
		r.LocalBytes += l.layouts[d].hi - l.layouts[d].lo
	}
	seen := map[reg]bool{}
	for i := range l.nodes {
		n := &l.nodes[i]
		if n.dead {
			continue
		}
		n.sets(&l.coder, func(x reg) { seen[x] = seen[x] || held[x] })
		for _, x := range n.args {
			if x.kind == aField {
				fields[int(x.m)] = true
			}
			if x.kind == aMap || x.kind == aOwn || x.kind == aSlot {
				r.Maps[x.m].Used = true
			}
		}
		l.accountMaps(n)
	}
	for _, used := range seen {
		if used {
			r.Registers++
		}
	}
	for f := range fields {
		r.Fields = append(r.Fields, f)
	}
	slices.Sort(r.Fields)
	for i := range a.cfg.loops {
		switch lp := &a.cfg.loops[i]; {
		case a.in[lp.head] == nil:
		case lp.counted:
			r.FueledLoops++
		default:
			r.ProvenLoops++
		}
	}
	r.Ends = l.ends
	slices.Sort(r.Helpers)
	r.Helpers = slices.Compact(r.Helpers)
}

// atomicBytes is how many bytes an atomic operation of that name is of.
func atomicBytes(op string) int {
	if strings.HasSuffix(op, "64") {
		return 8
	}
	return 4
}

// accountMaps notes what node n does with maps.
func (l *lowering) accountMaps(n *node) {
	for _, m := range n.maps {
		u := &l.report.Maps[m]
		u.Used = true
		switch {
		case n.kind == nLoad:
			u.Loads = true
		case n.kind == nStore, n.kind == nOwn:
			u.Stores = true
			u.Apart = u.Apart || n.apart
		case n.kind == nAtomic && n.dst == noReg && (n.op == "add.u64" || n.op == "add.u32"):
			u.adds(AddRange{n.lo, n.hi, atomicBytes(n.op)})
		case n.kind == nAtomic && n.dst == noReg && (n.op == "or.b64" || n.op == "or.b32"):
			u.merges(0, AddRange{n.lo, n.hi, atomicBytes(n.op)})
		case n.kind == nAtomic:
			u.Atomics, u.Strays = true, true
		}
	}
	if n.call == nil || n.label > 0 { // n.label: of a record's release
		return
	}
	l.report.Helpers = append(l.report.Helpers, n.call.op.id)
	if m := n.call.info.Map; m >= 0 {
		l.report.Maps[m].called(MapCall{n.call.op.id, &n.call.info}, n.call.op.helper.Ret == RetValue)
	}
	for k := range n.call.args {
		a := &n.call.args[k]
		if a.value.kind == aMap {
			l.report.Maps[a.value.m].Used = true
		}
		if a.size == 0 {
			continue
		}
		for _, m := range a.place.maps {
			l.report.Maps[m].passed(n.call.op.id, a.spec.Kind, AddRange{a.lo, a.hi, a.size})
		}
	}
}
