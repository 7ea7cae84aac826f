package emu

import "nvtrace/ptx"

// control executes the instruction at once when every lane that it waits for is
// here. Otherwise the lanes wait for those that have diverged; they may come to
// another instruction of the same kind.
func (s *syncInst) control(w *warp, active, m uint32) bool {
	if m == 0 {
		w.setPC(w.pc + 1)
		return true
	}
	if s.plain {
		s.run(w, m)
		w.setPC(w.pc + 1)
		return true
	}
	masks := w.src(s.mask)
	need := uint32(masks[firstLane(m)])
	same := m
	if s.mask >= 0 {
		same = sameLanes(masks, masks[firstLane(m)], m)
	}
	if out := same &^ need; out != 0 {
		w.fail(firstLane(out), errf(ErrInvalid, "the thread is not in its membermask %#x", need))
		return false
	}
	if same == m && need&w.live == m {
		s.run(w, m)
		w.setPC(w.pc + 1)
		return true
	}
	w.park(active, m, same)
	g := &w.groups[w.cur]
	g.state, g.sync, g.need = groupSync, s, need
	w.trySync(s.key, need)
	return false
}

// park leaves the lanes in same in the current group, behind the instruction;
// the others of m come to it again, the rest of active goes on.
func (w *warp) park(active, m, same uint32) {
	pc := w.pc
	if rest := m &^ same; rest != 0 {
		w.split(rest, pc)
	}
	if rest := active &^ m; rest != 0 {
		w.split(rest, pc+1)
	}
	w.setPC(pc + 1)
}

// run executes the instruction for the lanes in m of the current group.
func (s *syncInst) run(w *warp, m uint32) {
	io := &w.io
	io.m, io.pout = m, 0
	s.gather(io, w.frame, m)
	s.exec(io)
	s.scatter(io, w.frame, m)
}

// gather reads the operands of the lanes in m.
func (s *syncInst) gather(io *syncIO, f *frame, m uint32) {
	for k, src := range s.srcs {
		if src < 0 {
			io.in[k] = f.fn.consts[^src]
			continue
		}
		copyLanes(&io.in[k], &f.regs[src], m)
	}
	if s.pred >= 0 {
		v := f.preds[s.pred]
		if s.not {
			v = ^v
		}
		io.preds = io.preds&^m | v&m
	}
}

// scatter writes the results of the lanes in m.
func (s *syncInst) scatter(io *syncIO, f *frame, m uint32) {
	if s.d >= 0 {
		copyLanes(&f.regs[s.d], &io.out, m)
	}
	if s.p >= 0 {
		f.preds[s.p] = f.preds[s.p]&^m | io.pout&m
	}
}

// trySync executes the instruction that groups wait at when all lanes of the
// membermask that have not exited are there.
func (w *warp) trySync(key string, need uint32) {
	var here uint32
	for i := range w.groups {
		if g := &w.groups[i]; g.waitsFor(key, need) {
			here |= g.mask
		}
	}
	if here == 0 || need&w.live&^here != 0 {
		return
	}
	io := &w.io
	io.m, io.pout = here, 0
	var exec func(io *syncIO)
	for i := range w.groups {
		if g := &w.groups[i]; g.waitsFor(key, need) {
			g.sync.gather(io, g.frame, g.mask)
			exec = g.sync.exec
		}
	}
	exec(io)
	for i := range w.groups {
		if g := &w.groups[i]; g.waitsFor(key, need) {
			g.sync.scatter(io, g.frame, g.mask)
			g.state, g.sync = groupReady, nil
		}
	}
}

func (g *group) waitsFor(key string, need uint32) bool {
	return g.state == groupSync && g.need == need && g.sync.key == key
}

// retrySync looks again at what waits in the warp after lanes have exited.
func (w *warp) retrySync() {
	for i := 0; i < len(w.groups); i++ {
		if g := &w.groups[i]; g.state == groupSync {
			w.trySync(g.sync.key, g.need)
		}
	}
}

func syncBuilders() map[string]builder {
	return map[string]builder{
		"shfl": buildShfl, "vote": buildVote, "match": buildMatch, "redux": buildRedux, "elect": buildElect,
	}
}

// newSync makes the instruction with the membermask as operand maskArg.
func (x *insn) newSync(maskArg int) (*syncInst, error) {
	s := &syncInst{key: x.file.FullOpcode(x.st), pred: -1, d: -1, p: -1}
	x.ignore(".aligned")
	if !x.take(".sync") {
		s.plain = true
		return s, nil
	}
	if maskArg >= len(x.args) {
		return nil, errf(ErrInvalid, "%s without a membermask", x.op)
	}
	var err error
	s.mask, err = x.src(&x.args[maskArg], ptx.B32)
	return s, err
}

// syncDst resolves the destination "d" or "d|p".
func (x *insn) syncDst(s *syncInst, a *ptx.Operand) (err error) {
	s.d, s.p, err = x.pairDst(a)
	if a.Kind == ptx.OperandSink || a.Kind == ptx.OperandPair && x.file.Kids(a)[0].Kind == ptx.OperandSink {
		s.d = -1
	}
	return err
}

// shflSource computes the source lane (PTX ISA §9.7.9.6) and whether it is in range.
func shflSource(mode string, lane, b, c int) (src int, ok bool) {
	bval, cval, seg := b&31, c&31, c>>8&31
	maxLane := lane&seg | cval&^seg&31
	switch mode {
	case ".up":
		src = lane - bval
		ok = src >= maxLane
	case ".down":
		src = lane + bval
		ok = src <= maxLane
	case ".bfly":
		src = lane ^ bval
		ok = src <= maxLane
	default:
		src = lane&seg | bval&^seg
		ok = src <= maxLane
	}
	if !ok {
		src = lane
	}
	return src, ok
}

func buildShfl(x *insn) error {
	s, err := x.newSync(4)
	if err != nil {
		return err
	}
	mode := x.takeOne(".up", ".down", ".bfly", ".idx")
	if mode == "" {
		return x.badType()
	}
	if err := x.nargs(4, 5); err != nil {
		return err
	}
	if err := x.syncDst(s, &x.args[0]); err != nil {
		return err
	}
	if s.srcs, err = x.srcs(1, 3, ptx.B32); err != nil {
		return err
	}
	s.exec = func(io *syncIO) {
		for m := io.m; m != 0; m &= m - 1 {
			i := firstLane(m)
			j, ok := shflSource(mode, i, int(io.in[1][i]), int(io.in[2][i]))
			io.out[i] = io.in[0][j&31]
			io.pout |= bit(ok) << i
		}
	}
	return x.control(s.control)
}

// buildVote compiles vote and vote.sync.
func buildVote(x *insn) error {
	s, err := x.newSync(2)
	if err != nil {
		return err
	}
	mode := x.takeOne(".any", ".all", ".uni", ".ballot")
	if err := x.nargs(2, 3); err != nil {
		return err
	}
	if mode == ".ballot" {
		err = x.syncDst(s, &x.args[0])
	} else {
		s.p, err = x.predDst(&x.args[0])
	}
	if err != nil {
		return err
	}
	if s.pred, s.not, err = x.pred(&x.args[1]); err != nil {
		return err
	}
	s.exec = func(io *syncIO) {
		v := io.preds & io.m
		var yes bool
		switch mode {
		case ".any":
			yes = v != 0
		case ".all":
			yes = v == io.m
		case ".uni":
			yes = v == 0 || v == io.m
		default:
			io.all(uint64(v))
		}
		if yes {
			io.pout = io.m
		}
	}
	return x.control(s.control)
}

// all gives every lane the same result.
func (io *syncIO) all(v uint64) {
	for i := range io.out {
		io.out[i] = v
	}
}

func buildMatch(x *insn) error {
	s, err := x.newSync(2)
	if err != nil {
		return err
	}
	all := x.takeOne(".any", ".all") == ".all"
	if err := x.nargs(3); err != nil {
		return err
	}
	if err := x.syncDst(s, &x.args[0]); err != nil {
		return err
	}
	if s.srcs, err = x.srcs(1, 1, x.lastType()); err != nil {
		return err
	}
	s.exec = func(io *syncIO) {
		for m := io.m; m != 0; {
			i := firstLane(m)
			same := sameLanes(&io.in[0], io.in[0][i], io.m)
			if all {
				if same == io.m {
					io.pout = io.m
					io.all(uint64(io.m))
				} else {
					io.all(0)
				}
				return
			}
			for l := same; l != 0; l &= l - 1 {
				io.out[firstLane(l)] = uint64(same)
			}
			m &^= same
		}
	}
	return x.control(s.control)
}

func buildElect(x *insn) error {
	s, err := x.newSync(1)
	if err != nil {
		return err
	}
	if err := x.nargs(2); err != nil {
		return err
	}
	if err := x.syncDst(s, &x.args[0]); err != nil {
		return err
	}
	s.exec = func(io *syncIO) {
		io.all(uint64(firstLane(io.m)))
		io.pout = io.m & -io.m
	}
	return x.control(s.control)
}

// buildRedux compiles redux.sync on integers, bits and single precision.
func buildRedux(x *insn) error {
	s, err := x.newSync(2)
	if err != nil {
		return err
	}
	t := x.lastType()
	op := x.takeOne(".add", ".min", ".max", ".and", ".or", ".xor")
	f, ok := x.reduction(op, t)
	if !ok {
		return x.badType()
	}
	if err := x.nargs(3); err != nil {
		return err
	}
	if err := x.syncDst(s, &x.args[0]); err != nil {
		return err
	}
	if s.srcs, err = x.srcs(1, 1, t); err != nil {
		return err
	}
	s.exec = func(io *syncIO) {
		acc := io.in[0][firstLane(io.m)]
		for m := io.m & (io.m - 1); m != 0; m &= m - 1 {
			acc = f(acc, io.in[0][firstLane(m)])
		}
		io.all(acc)
	}
	return x.control(s.control)
}

// reduction returns the operator of redux.
func (x *insn) reduction(op string, t ptx.Type) (fn2, bool) {
	if t == ptx.F32 && (op == ".min" || op == ".max") {
		abs, nan := x.take(".abs"), x.take(".NaN")
		o := floatOp{f: &fmtF32, abs: abs, nan: nan}
		return o.minmax(op == ".max"), true
	}
	it, ok := intOf(t)
	if !ok || t.Size() != 4 {
		return nil, false
	}
	f, ok := map[string]fn2{
		".add": it.add, ".min": it.min, ".max": it.max, ".and": it.and, ".or": it.or, ".xor": it.xor,
	}[op]
	return f, ok
}
