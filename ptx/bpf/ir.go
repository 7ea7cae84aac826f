package bpf

// A class is a kind of PTX register.
type class uint8

const (
	c64   class = iota // .b64
	c32                // .b32
	cPred              // .pred
	classes
)

// A reg is a virtual register; noReg is none.
type reg struct {
	class class
	n     int32
}

var noReg = reg{n: -1}

// An argKind says what an operand is.
type argKind uint8

const (
	aImm      argKind = iota // v
	aReg                     // r
	aMap                     // the address of byte v of the value of Direct map m
	aField                   // field m of the context
	aText                    // n bytes at v of the context's text, as a number
	aTextAddr                // address of the context's text
	aLocal                   // address of the local memory of the stack at depth m
	aSlot                    // the address that the site has for use v of Report.Slots, of map m
	aBelow                   // of what a register holds, see slots: some number less than v
	aOwn                     // the register with word v of the value of map m, which is Thread
)

// An arg is an operand of a node.
type arg struct {
	kind argKind
	n    uint8
	m    int32
	r    reg
	v    int64
}

func imm(v uint64) arg { return arg{kind: aImm, v: int64(v)} }

func (r reg) arg() arg { return arg{kind: aReg, r: r} }

// A nodeKind is what a node is.
type nodeKind uint8

const (
	nInst   nodeKind = iota // op dst, args
	nLabel                  // label:
	nBranch                 // [@guard] bra label
	nLoad                   // op dst, [base+off]
	nStore                  // op [base+off], args
	nAtomic                 // op dst, [base+off], args; red when dst is not used
	nCall                   // a helper
	nResult                 // r0 at the program's end: args
	nLocal                  // a load or store of .local: as nLoad, nStore with dst or not
	nOwn                    // mov.b64 base, args: base is an aOwn
)

// labels that are no block.
const (
	labelFail = -1 - iota
	labelDone
	labelEnd // and below: where a run is ended for a reason
)

// A node is one PTX instruction, label or helper call.
type node struct {
	kind  nodeKind
	op    string // nInst, nLoad, nStore: the whole opcode; nAtomic: what follows the space: "add.u64"
	mods  string // nLoad, nStore, nAtomic: semantics: "relaxed", "acquire", "release", "acq_rel" or ""
	sys   bool   // nAtomic and semantics: system scope
	neg   bool   // of the guard
	sum   bool   // nAtomic: the threads of a warp may add different numbers
	apart bool   // nAtomic: the threads of a warp may have different addresses, and add the same; nOwn: different numbers
	alike bool   // nAtomic: the threads of a warp have the same address and add the same
	dead  bool
	label int
	guard reg
	dst   reg
	base  arg
	off   int64
	args  []arg
	call  *callNode
	maps  []int32 // nLoad, nStore, nAtomic: maps whose values they touch
	bits  int     // nAtomic: those of what is added, at most
	lo    int     // bytes that a nAtomic may touch
	hi    int
}

// A callNode is a helper's call.
type callNode struct {
	op   *op
	info CallInfo
	args [5]callArg
	used bool // the result is
}

// A callArg is an argument of a helper's call.
type callArg struct {
	spec  *ArgSpec
	value arg // the number; the address of a record
	n     num
	size  int // bytes of memory
	lo    int // of a map's value: the first byte that may be touched, and the one behind the last
	hi    int
	place place
	bytes []byte
	known bool
}

// A place is memory that code can be written for.
type place struct {
	kind  kind
	fixed bool // the stack, text: at the offset off
	depth int8
	off   int
	base  arg // elsewhere: base+boff
	boff  int64
	align int
	maps  []int32
}

// reads calls fn for every register that the node reads.
func (n *node) reads(c *coder, fn func(reg)) {
	if n.guard != noReg {
		fn(n.guard)
	}
	if n.base.kind == aReg {
		fn(n.base.r)
	}
	for i := range n.args {
		if n.args[i].kind == aReg {
			fn(n.args[i].r)
		}
	}
	if n.call == nil {
		return
	}
	for k := range n.call.args {
		a := &n.call.args[k]
		if a.spec == nil {
			continue
		}
		if a.value.kind == aReg {
			fn(a.value.r)
		}
		if a.size == 0 {
			continue
		}
		if a.place.base.kind == aReg {
			fn(a.place.base.r)
		}
		if a.spec.Kind == ArgWrite || !a.known { // a helper may leave some of what it may write as it was
			c.touched(a, fn)
		}
	}
}

// sets calls fn for every register that the node writes, or may write and reads.
func (n *node) sets(c *coder, fn func(reg)) {
	if n.dst != noReg {
		fn(n.dst)
	}
	if n.call == nil {
		return
	}
	for k := range n.call.args {
		if a := &n.call.args[k]; a.spec != nil && a.spec.Kind == ArgWrite {
			c.touched(a, fn)
		}
	}
}

// effect reports whether the node must stay even if nobody reads what it
// writes.
func (n *node) effect(used bool) bool {
	switch n.kind {
	case nInst, nLoad:
		return n.mods != ""
	case nLocal:
		return n.dst == noReg
	case nCall:
		return used || !n.call.op.helper.Pure
	}
	return true
}

// bitset is a set of small numbers.
type bitset []uint64

func newBitset(n int) bitset { return make(bitset, (n+63)/64) }

func (b bitset) has(i int) bool { return b[i>>6]>>(i&63)&1 != 0 }
func (b bitset) set(i int)      { b[i>>6] |= 1 << (i & 63) }
func (b bitset) clear(i int)    { b[i>>6] &^= 1 << (i & 63) }

// add adds the members of c and reports whether there were new ones.
func (b bitset) add(c bitset) bool {
	changed := false
	for i, w := range c {
		if w&^b[i] != 0 {
			b[i] |= w
			changed = true
		}
	}
	return changed
}

// A span is a run of nodes without a label inside or a branch before its end.
type span struct {
	from, to int // nodes [from, to)
	succ     []int
	in, out  bitset
}

// sweep marks nodes dead whose results nobody reads, and says of atomics and
// calls whether their results are read.
func sweep(nodes []node, c *coder) {
	spans, ok := splitNodes(nodes)
	if !ok {
		panic("BUG: a branch to no label")
	}
	global, index := crossing(nodes, spans, c)
	for i := range spans {
		spans[i].in, spans[i].out = newBitset(global), newBitset(global)
	}
	all := global
	for _, k := range index {
		all = max(all, k+1)
	}
	scratch := newBitset(all)
	start := func(s *span) bitset { // only registers of the span itself are above global
		clear(scratch)
		copy(scratch, s.out)
		return scratch
	}
	run := func(s *span, live bitset, final bool) {
		for i := s.to - 1; i >= s.from; i-- {
			n := &nodes[i]
			used := false
			n.sets(c, func(r reg) { used = used || live.has(index[r]) })
			if final {
				n.dead = !used && !n.effect(false)
				if n.kind == nAtomic && !used {
					n.dst = noReg
				}
				if n.call != nil {
					n.call.used = n.dst != noReg && live.has(index[n.dst])
				}
			}
			if !used && !n.effect(used) {
				continue
			}
			n.sets(c, func(r reg) { live.clear(index[r]) })
			n.reads(c, func(r reg) { live.set(index[r]) })
		}
	}
	for changed := true; changed; {
		changed = false
		for i := len(spans) - 1; i >= 0; i-- {
			s := &spans[i]
			for _, t := range s.succ {
				s.out.add(spans[t].in)
			}
			live := start(s)
			run(s, live, false)
			if s.in.add(live[:len(s.in)]) {
				changed = true
			}
		}
	}
	for i := range spans {
		run(&spans[i], start(&spans[i]), true)
	}
}

// crossing numbers the registers: below global those that more than one span
// has, behind them the rest, with numbers that other spans use again. The
// boundary is a whole word of a bitset.
func crossing(nodes []node, spans []span, c *coder) (global int, index map[reg]int) {
	home := map[reg]int{}
	index = map[reg]int{}
	visit := func(i int, fn func(reg, int)) {
		for k := spans[i].from; k < spans[i].to; k++ {
			nodes[k].sets(c, func(r reg) { fn(r, i) })
			nodes[k].reads(c, func(r reg) { fn(r, i) })
		}
	}
	for i := range spans {
		visit(i, func(r reg, i int) {
			if at, seen := home[r]; !seen {
				home[r] = i
			} else if _, known := index[r]; at != i && !known {
				index[r] = global
				global++
			}
		})
	}
	global = (global + 63) &^ 63
	for i := range spans {
		next := global
		visit(i, func(r reg, _ int) {
			if _, known := index[r]; !known {
				index[r] = next
				next++
			}
		})
	}
	return global, index
}

// splitNodes cuts the code at labels and branches.
func splitNodes(nodes []node) ([]span, bool) {
	var spans []span
	at := map[int]int{} // label to span
	from := 0
	cut := func(to int) {
		if to > from {
			spans = append(spans, span{from: from, to: to})
			from = to
		}
	}
	for i := range nodes {
		switch nodes[i].kind {
		case nLabel:
			cut(i)
			at[nodes[i].label] = len(spans)
		case nBranch:
			cut(i + 1)
		}
	}
	cut(len(nodes))
	for i := range spans {
		s := &spans[i]
		last := &nodes[s.to-1]
		if last.kind == nBranch {
			t, ok := at[last.label]
			if !ok {
				return nil, false
			}
			s.succ = append(s.succ, t)
			if last.guard == noReg {
				continue
			}
		}
		if i+1 < len(spans) {
			s.succ = append(s.succ, i+1)
		}
	}
	return spans, true
}

// A lowering turns the ops of an analysed program into nodes.
type lowering struct {
	coder
	a         *analysis
	nodes     []node
	regs      [MaxCallDepth][10]reg // eBPF registers
	comps     [MaxCallDepth][10]reg // offsets of pointers from their objects
	fields    map[int]bool          // of the context that are read
	recs      map[int32]reg         // by id: address of a record that is held, 0 when not
	recOf     []int32               // their ids, ascending
	fuel      reg
	why       reg   // index in ends of what ended the run
	ends      []End // what may end it
	fails     bool  // something branches to labelFail
	vague     bool  // what is returned is a number on some paths only
	uncounted bool  // see unplaced
	report    Report
	at        int    // the op
	here      *state // before it
}
