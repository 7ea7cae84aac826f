package emu

import (
	"math/bits"

	"nvtrace/ptx"
)

func flowBuilders() map[string]builder {
	return map[string]builder{
		"bra": buildBra, "brx": buildBrx, "call": buildCall,
		"ret":  func(x *insn) error { x.ignore(".uni"); return x.control(x.endOfBody()) },
		"exit": func(x *insn) error { return x.control(exit()) },
		"trap": func(x *insn) error { return x.step(failStep(ErrTrap)) },
		"brkpt": func(x *insn) error {
			return x.step(failStep(errf(ErrTrap, "brkpt without a debugger")))
		},
		"nanosleep":  buildNanosleep,
		"setmaxnreg": ignoreAll, "griddepcontrol": ignoreAll, "pmevent": ignoreAll,
	}
}

// ignoreAll compiles instructions that have no effect on results.
func ignoreAll(x *insn) error {
	for i := range x.used {
		x.used[i] = true
	}
	return x.step(func(*warp, uint32) {})
}

// buildNanosleep compiles nanosleep, which ends the warp's turn.
func buildNanosleep(x *insn) error {
	return x.step(func(w *warp, _ uint32) { w.tire(sliceFuel) })
}

// target resolves a label operand.
func (x *insn) target(name string) (*int, error) {
	p := x.scope.findLabel(name)
	if p == nil {
		return nil, errf(ErrInvalid, "unknown label %q", name)
	}
	return p, nil
}

func buildBra(x *insn) error {
	x.ignore(".uni")
	if err := x.nargs(1); err != nil {
		return err
	}
	p, err := x.target(x.text(x.args[0].Name))
	if err != nil {
		return err
	}
	return x.control(branch(p))
}

func buildBrx(x *insn) error {
	if !x.take(".idx") {
		return x.badType()
	}
	x.ignore(".uni")
	if err := x.nargs(2); err != nil {
		return err
	}
	index, err := x.src(&x.args[0], ptx.B32)
	if err != nil {
		return err
	}
	names, ok := x.tables[x.text(x.args[1].Name)]
	if !ok {
		return errf(ErrInvalid, "unknown branch table %q", x.text(x.args[1].Name))
	}
	targets := make([]*int, len(names))
	for i, n := range names {
		if targets[i], err = x.target(n); err != nil {
			return err
		}
	}
	return x.control(branchIndexed(index, targets))
}

// buildCall compiles call.
func buildCall(x *insn) error {
	x.ignore(".uni")
	cs := &callSite{}
	args := x.args
	var err error
	if len(args) != 0 && args[0].Kind == ptx.OperandGroup {
		if cs.rets, err = x.arguments(&args[0], true); err != nil {
			return err
		}
		args = args[1:]
	}
	if len(args) == 0 || args[0].Kind != ptx.OperandName {
		return errf(ErrInvalid, "call of nothing")
	}
	callee := &args[0]
	if args = args[1:]; len(args) != 0 && args[0].Kind == ptx.OperandGroup {
		if cs.args, err = x.arguments(&args[0], false); err != nil {
			return err
		}
	}
	if err := x.callee(cs, callee); err != nil {
		return err
	}
	return x.control(cs.control)
}

// callee resolves what is called.
func (x *insn) callee(cs *callSite, a *ptx.Operand) error {
	sym, err := x.lookup(a)
	if err != nil {
		return err
	}
	if sym.kind == symReg {
		x.prog.indirect = true
		cs.address, err = x.component(a, &sym)
		return err
	}
	if sym.fn == nil {
		return errf(ErrInvalid, "%s is no function", x.text(a.Name))
	}
	def := x.mod.definition(&sym)
	if def == nil {
		name := x.text(a.Name)
		if cs.builtin = builtins[name]; cs.builtin == nil {
			return errf(ErrNotImplemented, "function %s has no body", name)
		}
		return nil
	}
	cs.fn, err = x.prog.compile(def.file, def.fn)
	if err != nil {
		return err
	}
	return cs.check(cs.fn)
}

// check compares the call with the function's parameters.
func (cs *callSite) check(fn *function) error {
	if len(cs.args) != len(fn.params) || len(cs.rets) != len(fn.rets) {
		return errf(ErrInvalid, "call of %s with %d arguments and %d results, it has %d and %d", fn.name, len(cs.args), len(cs.rets), len(fn.params), len(fn.rets))
	}
	return nil
}

// arguments resolves the operands in parentheses.
func (x *insn) arguments(group *ptx.Operand, dst bool) ([]argument, error) {
	kids := x.file.Kids(group)
	out := make([]argument, 0, len(kids))
	for i := range kids {
		a, err := x.argument(&kids[i], dst)
		if err != nil {
			return nil, err
		}
		out = append(out, a...)
	}
	return out, nil
}

func (x *insn) argument(a *ptx.Operand, dst bool) ([]argument, error) {
	arg := argument{slot: noSlot, pred: -1, size: 8}
	if a.Kind == ptx.OperandName {
		sym, ok := x.find(x.text(a.Name))
		switch {
		case ok && sym.kind == symLocal && sym.space == ptx.SpaceParam:
			arg.off, arg.size = sym.addr, sym.size
			return []argument{arg}, nil
		case ok && sym.kind == symPred:
			arg.pred = sym.slot
			return []argument{arg}, nil
		case ok && sym.kind == symReg && a.Sel == ptx.SelNone && passedSlots(&sym) > 1:
			arg.size = min(uint64(sym.typ.Size()), 8)
			var list []argument
			for i := range passedSlots(&sym) {
				arg.slot = sym.slot + int32(i)
				list = append(list, arg)
			}
			return list, nil
		case ok && sym.kind == symReg:
			arg.size = uint64(sym.typ.Size())
		}
	}
	var err error
	if dst {
		arg.slot, _, err = x.dst(a)
	} else {
		arg.slot, err = x.src(a, ptx.B64)
	}
	return []argument{arg}, err
}

// control executes the call.
func (cs *callSite) control(w *warp, active, m uint32) bool {
	switch {
	case m == 0:
		w.setPC(w.pc + 1)
		return true
	case cs.builtin != nil:
		w.setPC(w.pc + 1)
		for l := m; l != 0 && w.err == nil; l &= l - 1 {
			cs.callBuiltin(w, firstLane(l))
		}
		return w.err == nil
	case cs.fn != nil:
		w.push(cs, cs.fn, m, active)
		return false
	}
	return cs.indirect(w, active, m)
}

// indirect calls each lane's function, lanes with the same one together.
func (cs *callSite) indirect(w *warp, active, m uint32) bool {
	addrs := *w.src(cs.address)
	for m != 0 {
		i := firstLane(m)
		fn := w.wk.launch.prog.byAddr[addrs[i]]
		if fn == nil {
			w.fail(i, errf(ErrAddress, "%#x, call of no function", addrs[i]))
			return false
		}
		if err := cs.check(fn); err != nil {
			w.fail(i, err)
			return false
		}
		same := sameLanes(&addrs, addrs[i], m)
		m &^= same
		w.push(cs, fn, same, active)
		active &^= same
	}
	return false
}

// push enters fn with the lanes in m, leaving the others of active behind the
// call.
func (w *warp) push(cs *callSite, fn *function, m, active uint32) {
	caller := w.groups[w.cur].frame
	f := w.newFrame(fn)
	f.parent, f.call, f.retPC, f.depth = caller, cs, w.pc+1, caller.depth+1
	f.lanes = bits.OnesCount32(m)
	f.local = caller.top
	f.top = f.local + fn.localSize
	if f.depth > w.wk.launch.maxDepth {
		w.fail(firstLane(m), errf(ErrStack, "more than %d nested calls", w.wk.launch.maxDepth))
		return
	}
	if err := w.growLocal(f.top); err != nil {
		w.fail(firstLane(m), err)
		return
	}
	for l := m; l != 0; l &= l - 1 {
		i := firstLane(l)
		clear(w.local[uint64(i)*w.stride+f.local : uint64(i)*w.stride+f.top])
		for k, p := range fn.params {
			w.pass(&cs.args[k], caller, &p, f, i)
		}
	}
	g := &w.groups[w.cur]
	if m == active {
		g.frame, g.pc = f, 0
		return
	}
	g.pc = w.pc + 1
	w.split(m, 0).frame = f
}

// pass copies lane i's argument a of the caller to the parameter p of the callee.
func (w *warp) pass(a *argument, caller *frame, p *paramVar, callee *frame, i int) {
	base := uint64(i) * w.stride
	switch {
	case p.reg >= 0 && p.pred:
		v := w.argValue(a, caller, i) & 1
		callee.preds[p.reg] = callee.preds[p.reg]&^(1<<i) | uint32(v)<<i
	case p.reg >= 0:
		callee.regs[p.reg][i] = w.argValue(a, caller, i)
	case a.slot == noSlot && a.pred < 0:
		dst := w.local[base+callee.local+p.off:]
		copy(dst[:p.size], w.local[base+caller.local+a.off:][:min(a.size, p.size)])
	default:
		writeSome(w.local[base+callee.local+p.off:], p.size, w.argValue(a, caller, i))
	}
}

// giveBack copies lane i's result p of the callee to the caller's a.
func (w *warp) giveBack(p *paramVar, callee *frame, a *argument, caller *frame, i int) {
	base := uint64(i) * w.stride
	if p.reg < 0 && a.slot == noSlot && a.pred < 0 {
		copy(w.local[base+caller.local+a.off:][:a.size], w.local[base+callee.local+p.off:][:min(a.size, p.size)])
		return
	}
	var v uint64
	switch {
	case p.reg >= 0 && p.pred:
		v = uint64(callee.preds[p.reg] >> i & 1)
	case p.reg >= 0:
		v = callee.regs[p.reg][i]
	default:
		v = readSome(w.local[base+callee.local+p.off:], p.size)
	}
	w.setArg(a, caller, i, v)
}

// ret returns the control of ret in a function.
func ret() control {
	return func(w *warp, active, m uint32) bool {
		if m == 0 {
			w.setPC(w.pc + 1)
			return true
		}
		f := w.frame
		for l := m; l != 0; l &= l - 1 {
			i := firstLane(l)
			for k := range f.fn.rets {
				w.giveBack(&f.fn.rets[k], f, &f.call.rets[k], f.parent, i)
			}
		}
		g := &w.groups[w.cur]
		parent, pc := f.parent, f.retPC
		if m == active {
			g.frame, g.pc = parent, pc
		} else {
			g.pc = w.pc + 1
			w.split(m, pc).frame = parent
		}
		w.release(f, bits.OnesCount32(m))
		return false
	}
}

func (c *compiler) endOfBody() control {
	if c.out.entry {
		return exit()
	}
	return ret()
}
