package emu

import "nvtrace/ptx"

func moveBuilders() map[string]builder {
	return map[string]builder{
		"mov": buildMov, "cvta": buildCvta, "isspacep": buildIsspacep, "mapa": buildMapa,
		"getctarank": buildGetctarank, "activemask": buildActivemask,
	}
}

func buildMov(x *insn) error {
	t := x.lastType()
	if err := x.nargs(2); err != nil {
		return err
	}
	d, s := &x.args[0], &x.args[1]
	switch {
	case t == ptx.Pred:
		return x.predOp(1, func(s []uint32) uint32 { return s[0] })
	case d.Kind == ptx.OperandVector || s.Kind == ptx.OperandVector || x.vectorReg(d) || x.vectorReg(s):
		return x.movVector(t, d, s)
	case t == ptx.B128:
		return x.movWide(d, s)
	case x.functionName(s) != nil:
		return x.movFunction(d, s)
	}
	slot, _, err := x.dst(d)
	if err != nil {
		return err
	}
	v, err := x.src(s, t)
	if err != nil {
		return err
	}
	return x.step(lift1(func(a uint64) uint64 { return a }, fast1["mov.64"], slot, v))
}

// vectorReg reports whether a names a vector register as a whole.
func (x *insn) vectorReg(a *ptx.Operand) bool {
	if a.Kind != ptx.OperandName || a.Sel != ptx.SelNone {
		return false
	}
	sym, ok := x.find(x.text(a.Name))
	return ok && sym.kind == symReg && sym.vec > 1
}

// vectorLen is how many elements {a,b} or a vector register has; 0 for others.
func (x *insn) vectorLen(a *ptx.Operand) int {
	if x.vectorReg(a) {
		sym, _ := x.find(x.text(a.Name))
		return sym.vec
	}
	if a.Kind == ptx.OperandVector {
		return len(x.file.Kids(a))
	}
	return 0
}

// elements lists the registers or values of a vector operand: {a,b}, a vector
// register, or a single operand. Sinks are slot 0.
func (x *insn) elements(a *ptx.Operand, t ptx.Type, dst bool) ([]int32, error) {
	one := func(a *ptx.Operand) (int32, error) {
		if dst && t == ptx.B128 {
			return x.dst128(a)
		}
		if dst {
			s, _, err := x.dst(a)
			return s, err
		}
		if a.Kind == ptx.OperandSink && t != ptx.B128 {
			return 0, nil
		}
		return x.src(a, t)
	}
	if x.vectorReg(a) {
		sym, _ := x.find(x.text(a.Name))
		if (sym.typ == ptx.B128) != (t == ptx.B128) {
			return nil, errf(ErrInvalid, "register %s in a %v instruction", x.text(a.Name), t)
		}
		out := make([]int32, sym.vec)
		for i := range out {
			out[i] = sym.slot + int32(i*slots(sym.typ))
		}
		return out, nil
	}
	list := []ptx.Operand{*a}
	if a.Kind == ptx.OperandVector {
		list = x.file.Kids(a)
	}
	out := make([]int32, len(list))
	for i := range list {
		s, err := one(&list[i])
		if err != nil {
			return nil, err
		}
		out[i] = s
	}
	return out, nil
}

// movVector packs, unpacks or copies: mov.b32 d, {a,b}; mov.b64 {a,b}, d;
// mov.v2.u32 v, {a,b}. A vector register stands for its elements.
func (x *insn) movVector(t ptx.Type, d, s *ptx.Operand) error {
	if x.takeOne(".v2", ".v4") != "" {
		return x.movEach(t, d, s)
	}
	dn, sn := x.vectorLen(d), x.vectorLen(s)
	if dn > 0 && sn > 0 {
		return x.movEach(t, d, s)
	}
	size := uint(t.Size()) * 8
	if dn > 0 {
		n := uint(dn)
		parts, err := x.elements(d, packElem(t, dn), true)
		if err != nil {
			return err
		}
		if t == ptx.B128 {
			return x.unpackWide(parts, s)
		}
		if n == 0 || size%n != 0 {
			return x.badType()
		}
		v, err := x.src(s, t)
		if err != nil {
			return err
		}
		return x.step(unpackStep(parts, v, size/n))
	}
	parts, err := x.elements(s, packElem(t, sn), false)
	if err != nil {
		return err
	}
	if t == ptx.B128 {
		slot, err := x.dst128(d)
		if err != nil {
			return err
		}
		if len(parts) != 2 {
			return x.badType()
		}
		return x.step(func(w *warp, m uint32) {
			copyLanes(&w.regs[slot], w.src(parts[0]), m)
			copyLanes(&w.regs[slot+1], w.src(parts[1]), m)
		})
	}
	if len(parts) == 0 || size%uint(len(parts)) != 0 {
		return x.badType()
	}
	slot, _, err := x.dst(d)
	if err != nil {
		return err
	}
	return x.step(packStep(slot, parts, size/uint(len(parts))))
}

// packElem is the type of one of n elements packed into a t.
func packElem(t ptx.Type, n int) ptx.Type {
	switch t.Size() / max(n, 1) {
	case 1:
		return ptx.B8
	case 2:
		return ptx.B16
	case 4:
		return ptx.B32
	}
	return ptx.B64
}

func unpackStep(parts []int32, v int32, width uint) step {
	mask := widthMask(width)
	return func(w *warp, m uint32) {
		a := *w.src(v) // a part may be the source itself
		for k, p := range parts {
			r, s := &w.regs[p], uint(k)*width
			for l := m; l != 0; l &= l - 1 {
				i := firstLane(l)
				r[i] = a[i] >> s & mask
			}
		}
	}
}

func packStep(d int32, parts []int32, width uint) step {
	mask := widthMask(width)
	return func(w *warp, m uint32) {
		var v lanes
		for k, p := range parts {
			a, s := w.src(p), uint(k)*width
			for l := m; l != 0; l &= l - 1 {
				i := firstLane(l)
				v[i] |= a[i] & mask << s
			}
		}
		copyLanes(&w.regs[d], &v, m)
	}
}

// movEach copies element by element.
func (x *insn) movEach(t ptx.Type, d, s *ptx.Operand) error {
	to, err := x.elements(d, t, true)
	if err != nil {
		return err
	}
	from, err := x.elements(s, t, false)
	if err != nil {
		return err
	}
	if len(to) != len(from) {
		return errf(ErrInvalid, "%d elements from %d", len(to), len(from))
	}
	return x.step(func(w *warp, m uint32) {
		var tmp [8]lanes
		for i, f := range from {
			tmp[i&7] = *w.src(f)
		}
		for i, r := range to {
			copyLanes(&w.regs[r], &tmp[i&7], m)
		}
	})
}

// movWide is mov.b128 between registers.
func (x *insn) movWide(d, s *ptx.Operand) error {
	slot, err := x.dst128(d)
	if err != nil {
		return err
	}
	v, err := x.src(s, ptx.B128)
	if err != nil {
		return err
	}
	if v < 0 {
		return x.badType()
	}
	return x.step(func(w *warp, m uint32) {
		copyLanes(&w.regs[slot], &w.regs[v], m)
		copyLanes(&w.regs[slot+1], &w.regs[v+1], m)
	})
}

func (x *insn) unpackWide(parts []int32, s *ptx.Operand) error {
	v, err := x.src(s, ptx.B128)
	if err != nil {
		return err
	}
	if v < 0 || len(parts) != 2 {
		return x.badType()
	}
	return x.step(func(w *warp, m uint32) {
		copyLanes(&w.regs[parts[0]], &w.regs[v], m)
		copyLanes(&w.regs[parts[1]], &w.regs[v+1], m)
	})
}

// functionName returns the function that the operand names, nil for others.
func (x *insn) functionName(a *ptx.Operand) *symbol {
	if a.Kind != ptx.OperandName {
		return nil
	}
	sym, ok := x.find(x.text(a.Name))
	if !ok || sym.fn == nil {
		return nil
	}
	return &sym
}

// movFunction takes the address of a function.
func (x *insn) movFunction(d, s *ptx.Operand) error {
	sym := x.functionName(s)
	slot, _, err := x.dst(d)
	if err != nil {
		return err
	}
	addr := x.mod.functionAddress(sym)
	return x.step(lift1(func(a uint64) uint64 { return a }, nil, slot, x.constant(addr)))
}

// windows gives the generic address of offset 0 of each space.
func windowOf(space ptx.Space) (uint64, bool) {
	switch space {
	case ptx.SpaceGlobal:
		return 0, true
	case ptx.SpaceShared:
		return sharedWindow, true
	case ptx.SpaceLocal:
		return localWindow, true
	case ptx.SpaceConst:
		return constWindow, true
	case ptx.SpaceParam:
		return paramWindow, true
	}
	return 0, false
}

// space takes the state space modifier.
func (x *insn) space() ptx.Space {
	switch x.takeOne(".global", ".shared", ".shared::cta", ".shared::cluster", ".local", ".const", ".param", ".param::entry", ".param::func") {
	case ".global":
		return ptx.SpaceGlobal
	case ".shared", ".shared::cta", ".shared::cluster":
		return ptx.SpaceShared
	case ".local":
		return ptx.SpaceLocal
	case ".const":
		return ptx.SpaceConst
	case ".param", ".param::entry", ".param::func":
		return ptx.SpaceParam
	}
	return ptx.SpaceGeneric
}

// buildCvta converts between a space's addresses and generic ones. The null
// pointer of a space is no null pointer of another; the ISA promises nothing.
func buildCvta(x *insn) error {
	to := x.take(".to")
	space := x.space()
	base, ok := windowOf(space)
	t := x.lastType()
	if !ok {
		return x.badType()
	}
	if base != 0 && t.Size() == 4 {
		return errf(ErrNotImplemented, "generic addresses of %v in 32-bit code", space)
	}
	if space == ptx.SpaceParam && !x.out.entry {
		base = localWindow // a function's parameters are in its frame
	}
	if to {
		return x.op1(t, func(a uint64) uint64 { return a - base }, nil)
	}
	return x.op1(t, func(a uint64) uint64 { return a + base }, nil)
}

func buildIsspacep(x *insn) error {
	cluster := false
	for _, m := range x.mods {
		cluster = cluster || m == ".shared::cluster"
	}
	space := x.space()
	if err := x.nargs(2); err != nil {
		return err
	}
	p, err := x.predDst(&x.args[0])
	if err != nil {
		return err
	}
	s, err := x.src(&x.args[1], ptx.B64)
	if err != nil {
		return err
	}
	return x.step(func(w *warp, m uint32) {
		a := w.src(s)
		var v uint32
		for l := m; l != 0; l &= l - 1 {
			i := firstLane(l)
			got, off := splitGeneric(a[i])
			ok := got == space
			if ok && space == ptx.SpaceShared && !cluster {
				ok = off>>clusterShift == 0 || off>>clusterShift == uint64(w.block.rank+1)
			}
			v |= bit(ok) << i
		}
		w.setPred(p, m, v)
	})
}

// buildMapa gives the address of a shared variable in another block of the
// cluster.
func buildMapa(x *insn) error {
	generic := x.space() == ptx.SpaceGeneric
	t := x.lastType()
	return x.op2types(t, ptx.B32, func(a, b uint64) uint64 {
		base := uint64(0)
		if generic {
			base = sharedWindow
		}
		off := (a - base) & (1<<clusterShift - 1)
		return base + ((b&0xff)+1)<<clusterShift + off
	}, nil)
}

// buildGetctarank gives the rank of the block that a shared address belongs to.
func buildGetctarank(x *insn) error {
	x.space()
	if err := x.nargs(2); err != nil {
		return err
	}
	d, _, err := x.dst(&x.args[0])
	if err != nil {
		return err
	}
	s, err := x.src(&x.args[1], x.lastType())
	if err != nil {
		return err
	}
	return x.step(func(w *warp, m uint32) {
		r, a := &w.regs[d], w.src(s)
		for ; m != 0; m &= m - 1 {
			i := firstLane(m)
			rank := a[i] & (windowSize - 1) >> clusterShift
			if rank == 0 {
				rank = uint64(w.block.rank) + 1
			}
			r[i] = rank - 1
		}
	})
}

func buildActivemask(x *insn) error {
	if err := x.nargs(1); err != nil {
		return err
	}
	d, _, err := x.dst(&x.args[0])
	if err != nil {
		return err
	}
	return x.step(func(w *warp, m uint32) {
		r := &w.regs[d]
		for l := m; l != 0; l &= l - 1 {
			r[firstLane(l)] = uint64(m)
		}
	})
}

func convertBuilders() map[string]builder { return map[string]builder{"cvt": buildCvt} }

// cvtIntegral are the rounding modes to an integral value.
var cvtIntegral = map[string]rounding{".rni": roundNearest, ".rzi": roundZero, ".rmi": roundDown, ".rpi": roundUp}

func buildCvt(x *insn) error {
	if x.take(".pack") {
		return buildCvtPack(x)
	}
	if len(x.types) != 2 {
		return x.badType()
	}
	c := conversion{dst: x.types[0], src: x.types[1]}
	for m, mode := range cvtIntegral {
		if x.take(m) {
			c.integral, c.mode = true, mode
		}
	}
	if !c.integral {
		c.mode = x.rounding()
	}
	c.ftz, c.sat, c.relu, c.satfinite = x.take(".ftz"), x.take(".sat"), x.take(".relu"), x.take(".satfinite")
	if _, ok := cvtPacked[c.dst]; ok {
		return x.cvtPacked(c)
	}
	f, ok := c.build()
	if !ok {
		return x.badType()
	}
	if err := x.nargs(2); err != nil {
		return err
	}
	d, mask, err := x.dst(&x.args[0])
	if err != nil {
		return err
	}
	s, err := x.src(&x.args[1], c.src)
	if err != nil {
		return err
	}
	var fast vec1
	if !c.sat {
		fast = fast1["cvt"+c.dst.String()+c.src.String()]
	}
	if it, ok := intOf(c.dst); ok && it.signed && mask > it.mask() {
		narrow := f
		f = func(a uint64) uint64 { return it.ext(narrow(a)) & mask }
		fast = nil
	}
	return x.step(lift1(f, fast, d, s))
}

// cvtPacked maps the packed destination types of cvt to their element.
var cvtPacked = map[ptx.Type]ptx.Type{
	ptx.F16x2: ptx.F16, ptx.BF16x2: ptx.BF16, ptx.E4M3x2: ptx.E4M3, ptx.E5M2x2: ptx.E5M2,
}

func (x *insn) cvtPacked(c conversion) error {
	elem := cvtPacked[c.dst]
	if c.src == ptx.F32 && len(x.args) == 3 {
		f, ok := c.packed(elem)
		if !ok {
			return x.badType()
		}
		return x.op2(ptx.F32, f, nil)
	}
	if _, ok := packed(c.src); !ok && c.src != ptx.E4M3x2 && c.src != ptx.E5M2x2 {
		return x.badType()
	}
	f, ok := c.lanes(elem, scalarOf(c.src))
	if !ok {
		return x.badType()
	}
	return x.op1(c.src, f, nil)
}

// packTypes are the narrow types of cvt.pack.
var packTypes = map[string]intType{
	".u16": {16, false}, ".s16": {16, true}, ".u8": {8, false}, ".s8": {8, true},
	".u4": {4, false}, ".s4": {4, true}, ".u2": {2, false}, ".s2": {2, true},
}

// buildCvtPack compiles cvt.pack.sat.convertType.abType{.cType}.
func buildCvtPack(x *insn) error {
	if !x.take(".sat") || len(x.mods) < 4 {
		return x.badType()
	}
	dst, ok1 := packTypes[x.mods[2]]
	src, ok2 := intOf(typeNames[x.mods[3]])
	if !ok1 || !ok2 {
		return x.badType()
	}
	x.used[2] = true
	f := cvtPack(dst, src)
	if len(x.args) == 3 {
		return x.op2(ptx.S32, func(a, b uint64) uint64 { return f(a, b, 0) }, nil)
	}
	return x.op3(ptx.S32, ptx.B32, f, nil)
}
