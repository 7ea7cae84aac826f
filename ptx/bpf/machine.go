package bpf

import (
	"fmt"
	"math"
	"slices"

	"github.com/cilium/ebpf/asm"

	"nvtrace/ptx/bpf/internal/amd64"
)

// A Machine is a program as machine code of x86-64, for use in a process on the host.
//
// The code is position-independent and begins with a function that C would declare as
//
//	struct { uint64_t r0, end; } program(const void *context, const uint64_t table[]);
//
// r0 is what the program returned, 0 if that was no number or the run was ended early;
// end is 0, or 1 plus the index in Ends of what ended the run. The context is in memory
// as Env.Context describes it. The table has what Slots say. Helpers are functions that
// get their arguments as C functions do, pointers of all kinds as addresses, and maps as
// the table has them; they may change the registers that functions may, vector registers
// excepted unless the caller of the program saves those. A value of a map that has Inner is
// what helpers take for a map, or 0.
//
// Atomic operations on values of maps are so for all threads of all processes that share
// the memory.
type Machine struct {
	Code  []byte
	Slots []Slot
	Ends  []End
	Stack int // bytes of stack that the program uses, without what helpers do
	// Maps are how the program uses maps, by index of Env.Maps.
	Maps []MapUse
}

// A SlotKind says what a place in the table of a [Machine] holds.
type SlotKind uint8

// The kinds of slots.
const (
	SlotHelper  SlotKind = iota // the address of helper N
	SlotRelease                 // of a function that gives a record of helper N back unused
	SlotMap                     // what helpers get for map N
	SlotValue                   // the address of the value of map N, which is Direct
)

// A Slot is a place of 8 bytes in the table of a [Machine].
type Slot struct {
	Kind SlotKind
	N    int32 // the helper's number, or the map's index
}

// Assemble checks that p is safe in env, as [Verify] does, and compiles it to machine
// code of x86-64. Maps that are Thread and helpers that do not return are not possible.
func Assemble(p *Program, env *Env) (*Machine, error) {
	env, ops, err := read(p, env)
	if err != nil {
		return nil, err
	}
	for i := range ops {
		switch o := &ops[i]; {
		case o.kind == opHelper && o.helper.Ret == RetNever:
			return nil, p.refuse(o.at, "", "%s does not return, which is not possible on the host", o.helper.Name)
		case o.kind == opDirect && env.Maps[o.m].Thread:
			return nil, fmt.Errorf("map %s is in registers of a GPU's threads", env.Maps[o.m].Name)
		}
	}
	a, err := analyze(p, env, ops)
	if err != nil {
		return nil, err
	}
	m := &assembly{a: a, slots: map[Slot]int{}, blocks: make([]amd64.Label, len(a.cfg.blocks)), spills: map[[2]int]int32{}, records: map[int32]int32{}, saved: map[int]uint8{}}
	return m.assemble()
}

// registers of eBPF, but for r10: those in which C passes arguments and results are the
// ones that helpers have them in.
var machineRegs = [10]amd64.Reg{
	amd64.RAX, amd64.RDI, amd64.RSI, amd64.RDX, amd64.RCX, amd64.R8, amd64.RBX, amd64.R13, amd64.R14, amd64.R15,
}

// Registers that are no eBPF register's: scratch1 to scratch3 for one op, and the table.
const (
	scratch1 = amd64.R11
	scratch2 = amd64.R10
	scratch3 = amd64.R9
	tableReg = amd64.R12
)

// An assembly turns the ops of an analysed program into machine code: each op by itself,
// with the registers of eBPF in those of machineRegs. A pointer is an address. Of pointers
// into values and records, the offset from the object's first byte is kept beside, in
// memory, if the program has an access that is tested against the object's bounds.
//
// The frame, from RBP down: the caller's registers, the stacks of the functions by depth,
// then places of 8 bytes as they are needed.
type assembly struct {
	amd64.Asm
	a       *analysis
	slots   map[Slot]int
	list    []Slot
	blocks  []amd64.Label
	fail    amd64.Label
	done    amd64.Label
	ends    []End
	endAt   []amd64.Label
	tops    [MaxCallDepth]int32 // end of the stack of each depth, from RBP
	touched [MaxCallDepth][2]int
	used    [MaxCallDepth][StackSize]bool
	frame   int32 // bytes below RBP
	offsets bool  // offsets of pointers are kept
	comps   [MaxCallDepth][10]int32
	spills  map[[2]int]int32 // by depth and offset: where the offset of a spilled pointer is
	records map[int32]int32  // by id: where a held record's address is, 0 when none
	order   []int32          // their ids, ascending
	context int32            // where the context's address is; 0: it is not kept
	fuel    int32
	saved   map[int]uint8 // by what follows a function's body: the caller's registers that are saved, bit 0 is r6
	saves   [MaxCallDepth][4]int32
	at      int    // the op
	here    *state // before it
}

// calleeSaved are the registers that a function must leave as they were, in the order in
// which the frame has them.
var calleeSaved = [5]amd64.Reg{tableReg, amd64.RBX, amd64.R13, amd64.R14, amd64.R15}

func (m *assembly) assemble() (*Machine, error) {
	m.fail, m.done = m.NewLabel(), m.NewLabel()
	for b := range m.blocks {
		m.blocks[b] = m.NewLabel()
	}
	m.frame = 8 * int32(len(calleeSaved))
	m.plan()
	m.Endbr64()
	m.Push(amd64.RBP)
	m.Mov(true, amd64.RBP, amd64.RSP)
	size := m.FrameSize()
	saves := []amd64.Reg{tableReg}
	for r := uint8(6); r <= 9; r++ {
		if slices.ContainsFunc(m.a.ops, func(o op) bool { return o.writes(r) }) {
			saves = append(saves, machineRegs[r])
		}
	}
	for _, r := range saves {
		m.Store(8, m.saveOf(r), r)
	}
	m.Mov(true, tableReg, amd64.RSI)
	m.prologue()
	for b := range m.a.cfg.blocks {
		m.block(b)
	}
	for k := range m.ends {
		m.Bind(m.endAt[k])
		m.MovImm(amd64.RDX, uint64(k+1))
		m.Jmp(m.fail)
	}
	m.failed()
	m.Bind(m.done)
	for _, r := range saves {
		m.Load(false, 8, r, m.saveOf(r))
	}
	m.Mov(true, amd64.RSP, amd64.RBP)
	m.Pop(amd64.RBP)
	m.Ret()
	m.frame = (m.frame + 15) &^ 15
	m.SetFrameSize(size, m.frame)
	if err := m.Finish(); err != nil {
		return nil, fmt.Errorf("program %s: %w", m.a.p.Name, err)
	}
	return &Machine{Code: m.Code, Slots: m.list, Ends: m.ends, Stack: int(m.frame) + 16, Maps: m.a.uses()}, nil
}

// failed is where a run that is ended early goes: it gives records back.
func (m *assembly) failed() {
	m.Bind(m.fail)
	if len(m.order) > 0 {
		why := m.place(0)
		m.Store(8, why, amd64.RDX)
		for _, id := range m.order {
			after := m.NewLabel()
			m.Load(false, 8, amd64.RDI, amd64.Mem{Base: amd64.RBP, Off: m.records[id]})
			m.Test(true, amd64.RDI, amd64.RDI)
			m.Jcc(amd64.Equal, after)
			m.CallMem(m.slot(SlotRelease, m.a.ops[id-1].id))
			m.Bind(after)
		}
		m.Load(false, 8, amd64.RDX, why)
	}
	m.MovImm(amd64.RAX, 0)
}

func (m *assembly) saveOf(r amd64.Reg) amd64.Mem {
	return amd64.Mem{Base: amd64.RBP, Off: int32(-8 * (slices.Index(calleeSaved[:], r) + 1))}
}

// slot is the place in the table of something.
func (m *assembly) slot(kind SlotKind, n int32) amd64.Mem {
	s := Slot{kind, n}
	i, ok := m.slots[s]
	if !ok {
		i = len(m.list)
		m.slots[s] = i
		m.list = append(m.list, s)
	}
	return amd64.Mem{Base: tableReg, Off: int32(8 * i)}
}

// place returns a place of 8 bytes in the frame: that at off, or a new one for 0.
func (m *assembly) place(off int32) amd64.Mem {
	if off == 0 {
		m.frame += 8
		off = -m.frame
	}
	return amd64.Mem{Base: amd64.RBP, Off: off}
}

// plan finds out how the stacks are used, which records there are, and whether offsets of
// pointers are needed.
func (m *assembly) plan() {
	a := m.a
	depth := 0
	for d := range m.touched {
		m.touched[d] = [2]int{StackSize, 0}
	}
	note := func(acc *access) {
		if acc.bound && (acc.kind == kValue || acc.kind == kRecord) {
			m.offsets = true
		}
		if acc.kind != kStack || acc.size == 0 {
			return
		}
		lo, hi := acc.lo, acc.hi
		if acc.fixed {
			lo, hi = acc.off, acc.off+acc.size
		}
		t := &m.touched[acc.depth]
		t[0], t[1] = min(t[0], lo&^7), max(t[1], (hi+7)&^7)
		for i := lo; i < hi; i++ {
			m.used[acc.depth][i] = true
		}
	}
	var fx effect
	for i, s := range a.states() {
		m.a.replay(s, i, &fx)
		o := &a.ops[i]
		depth = max(depth, int(o.depth))
		note(&fx.acc)
		for k := range fx.args {
			note(&fx.args[k].acc)
		}
		if o.kind == opHelper && o.helper.Ret == RetRecord {
			m.order = append(m.order, int32(i)+1)
		}
	}
	slices.Sort(m.order)
	for d := range depth + 1 {
		m.tops[d] = -m.frame &^ 15
		m.frame = -m.tops[d] + int32(StackSize-min(m.touched[d][0], StackSize))
	}
	m.written()
}

// written takes from what is to be cleared of the first stack what the program's first
// instructions write before anything reads it.
func (m *assembly) written() {
	read := [StackSize]bool{}
	s := m.a.in[0].clone()
	var fx effect
	for i := m.a.cfg.blocks[0].first; i <= m.a.cfg.blocks[0].last; i++ {
		m.a.replay(s, i, &fx)
		if acc := &fx.acc; acc.kind == kStack && acc.depth == 0 {
			lo, hi := acc.lo, acc.hi
			if acc.fixed {
				lo, hi = acc.off, acc.off+acc.size
			}
			for k := lo; k < hi; k++ {
				if m.a.ops[i].kind == opStore && acc.fixed && !read[k] {
					m.used[0][k] = false
				} else if m.used[0][k] {
					read[k] = true
				}
			}
		}
		for k := range fx.args { // of helpers, and what they may write
			if acc := &fx.args[k].acc; acc.kind == kStack && acc.depth == 0 {
				lo, hi := acc.lo, acc.hi
				if acc.fixed {
					lo, hi = acc.off, acc.off+acc.size
				}
				for k := lo; k < hi; k++ {
					read[k] = read[k] || m.used[0][k]
				}
			}
		}
	}
}

// prologue sets what must have a value before it is read.
func (m *assembly) prologue() {
	m.clearStack(0)
	if c := m.a.env.Context; c != nil && c.Text > 0 {
		p := m.place(0)
		m.context = p.Off
		m.Store(8, p, amd64.RDI)
	}
	for _, id := range m.order {
		p := m.place(0)
		m.records[id] = p.Off
		m.StoreImm(8, p, 0)
	}
	may := slices.ContainsFunc(m.a.ops, func(o op) bool { return o.kind == opMay })
	for i := range m.a.cfg.loops {
		may = may || m.fueled(i)
	}
	if may {
		p := m.place(0)
		m.fuel = p.Off
		m.StoreImm(4, p, int32(m.a.left))
	}
}

// fueled reports whether loop i takes fuel.
func (m *assembly) fueled(i int) bool {
	lp := &m.a.cfg.loops[i]
	return lp.counted && m.a.in[lp.head] != nil
}

// clearStack makes the stack at depth d read as 0, where the program does not write
// first.
func (m *assembly) clearStack(d int) {
	var words []int
	for off := m.touched[d][0]; off < m.touched[d][1]; off += 8 {
		if slices.Contains(m.used[d][off:off+8], true) {
			words = append(words, off)
		}
	}
	if len(words) == 0 {
		return
	}
	base := m.tops[d] - StackSize
	if len(words) <= 8 {
		for _, off := range words {
			m.StoreImm(8, amd64.Mem{Base: amd64.RBP, Off: base + int32(off)}, 0)
		}
		return
	}
	lo, hi := words[0], words[len(words)-1]+8
	m.Lea(scratch1, amd64.Mem{Base: amd64.RBP, Off: base + int32(lo)})
	m.MovImm(scratch2, uint64(hi-lo)/8)
	again := m.NewLabel()
	m.Bind(again)
	m.StoreImm(8, amd64.Mem{Base: scratch1}, 0)
	m.OpImm(amd64.Add, true, scratch1, 8)
	m.OpImm(amd64.Sub, false, scratch2, 1)
	m.Jcc(amd64.NotEqual, again)
}

// fuelCost is what loop i executes in a round, at least 1; 1 for no loop, -1.
func (m *assembly) fuelCost(i int) int32 {
	if i < 0 {
		return 1
	}
	return int32(min(max(m.a.cfg.loops[i].cost, 1), math.MaxInt32))
}

// block compiles block b.
func (m *assembly) block(b int) {
	a := m.a
	if a.in[b] == nil {
		return
	}
	blk := &a.cfg.blocks[b]
	m.Bind(m.blocks[b])
	for i := range a.cfg.loops {
		if a.cfg.loops[i].head == b && m.fueled(i) && !a.cfg.loops[i].may {
			m.OpMemImm(amd64.Sub, m.place(m.fuel), m.fuelCost(i))
			m.end(EndLoop, blk.first, amd64.Below)
		}
	}
	s := a.in[b].clone()
	for i := blk.first; i <= blk.last; i++ {
		m.at = i
		m.op(s)
	}
	switch a.ops[blk.last].kind {
	case opJump, opGoto, opMay, opExit, opLeave:
	default:
		if len(blk.succ) == 1 {
			m.goTo(b, blk.succ[0])
		}
	}
}

// goTo jumps to block t unless it is the next that is compiled.
func (m *assembly) goTo(b, t int) {
	if !m.a.follows(b, t) {
		m.Jmp(m.blocks[t])
	}
}

// end ends the run if a condition holds, for a reason that op at has.
func (m *assembly) end(kind EndKind, at int, c amd64.Cond) {
	e := End{Kind: kind, Insn: m.a.ops[at].at}
	e.Source, e.Position = m.a.p.source(e.Insn)
	k := slices.Index(m.ends, e)
	if k < 0 {
		k = len(m.ends)
		m.ends, m.endAt = append(m.ends, e), append(m.endAt, m.NewLabel())
	}
	m.Jcc(c, m.endAt[k])
}

// op compiles op m.at, in front of which s holds, and moves s behind it.
func (m *assembly) op(s *state) {
	o := &m.a.ops[m.at]
	m.here = &state{frames: slices.Clone(s.frames)} // its registers are looked at, not its cells
	var fx effect
	m.a.replay(s, m.at, &fx)
	d, b := o.depth, m.a.cfg.of[m.at]
	switch o.kind {
	case opConst:
		m.MovImm(machineRegs[o.dst], uint64(o.imm))
	case opMap:
		m.Load(false, 8, machineRegs[o.dst], m.slot(SlotMap, o.m))
	case opDirect:
		m.Load(false, 8, machineRegs[o.dst], m.slot(SlotValue, o.m))
		if o.imm != 0 {
			m.OpImm(amd64.Add, true, machineRegs[o.dst], int32(o.imm))
		}
		m.setOffset(d, o.dst, o.imm)
	case opALU:
		m.alu(s, o, &fx)
	case opLoad:
		m.load(s, o, &fx)
	case opStore:
		m.check(o.dst, int64(o.off), &fx.acc)
		m.store(o, &fx.acc)
	case opAtomic:
		m.check(o.dst, int64(o.off), &fx.acc)
		m.atomic(o, &fx.acc)
	case opHelper:
		m.helper(o, &fx)
	case opEnter:
		m.enter(o)
	case opLeave:
		m.leave(o)
		m.goTo(b, m.a.cfg.of[o.target])
	case opExit:
		m.exit(o)
	case opGoto:
		m.goTo(b, m.a.cfg.of[o.target])
	case opJump, opMay:
		m.jump(s, o, b)
	}
}

// enter begins the body of a called function, whose arguments are where they are.
func (m *assembly) enter(o *op) {
	d := o.depth
	after := m.at + 1 // the body's end
	for ; after < len(m.a.ops) && m.a.ops[after].depth > d; after++ {
	}
	mask := uint8(0)
	for r := uint8(6); r <= 9; r++ {
		if v := m.here.reg(d, r); v.kind != kNone && slices.ContainsFunc(m.a.ops[m.at+1:after], func(o op) bool { return o.writes(r) }) {
			mask |= 1 << (r - 6)
			p := m.place(m.saves[d][r-6])
			m.saves[d][r-6] = p.Off
			m.Store(8, p, machineRegs[r])
		}
	}
	m.saved[after] = mask
	for r := uint8(1); r <= 5; r++ {
		m.copyOffset(d, r, d+1, r)
	}
	m.clearStack(int(d) + 1)
}

// leave returns from a called function.
func (m *assembly) leave(o *op) {
	d := o.depth
	m.copyOffset(d, 0, d-1, 0)
	for r := uint8(6); r <= 9; r++ {
		if m.saved[o.target]>>(r-6)&1 != 0 {
			m.Load(false, 8, machineRegs[r], m.place(m.saves[d-1][r-6]))
		}
	}
}

// writes reports whether the op changes register r.
func (o *op) writes(r uint8) bool {
	switch o.kind {
	case opALU, opConst, opMap, opDirect, opLoad:
		return o.dst == r
	case opAtomic:
		f, ok := o.fetches()
		return ok && f == r
	}
	return false
}

// exit ends the program.
func (m *assembly) exit(o *op) {
	if v := m.here.reg(o.depth, 0); v.kind != kScalar {
		m.MovImm(amd64.RAX, 0)
	}
	m.MovImm(amd64.RDX, 0)
	m.Jmp(m.done)
}

// reg returns the machine register with register r; r10 is computed in scratch.
func (m *assembly) reg(d int8, r uint8, scratch amd64.Reg) amd64.Reg {
	if r < 10 {
		return machineRegs[r]
	}
	m.Lea(scratch, amd64.Mem{Base: amd64.RBP, Off: m.tops[d]})
	return scratch
}

// Conditions of jumps.
var conditions = map[asm.JumpOp]amd64.Cond{
	asm.JEq: amd64.Equal, asm.JNE: amd64.NotEqual, asm.JSet: amd64.NotEqual,
	asm.JGT: amd64.Above, asm.JGE: amd64.AboveEqual, asm.JLT: amd64.Below, asm.JLE: amd64.BelowEqual,
	asm.JSGT: amd64.Greater, asm.JSGE: amd64.GreaterEqual, asm.JSLT: amd64.Less, asm.JSLE: amd64.LessEqual,
}

// jump compiles a conditional jump or may_goto.
func (m *assembly) jump(s *state, o *op, b int) {
	taken, next := m.a.cfg.blocks[b].succ[0], m.a.cfg.blocks[b].succ[1]
	if o.kind == opMay {
		loop := m.a.cfg.blocks[b].loop
		if loop >= 0 && !m.a.cfg.loops[loop].may {
			loop = -1 // its head takes the fuel
		}
		m.OpMemImm(amd64.Cmp, m.place(m.fuel), m.fuelCost(loop))
		m.Jcc(amd64.Below, m.blocks[taken])
		m.OpMemImm(amd64.Sub, m.place(m.fuel), m.fuelCost(loop))
		m.goTo(b, next)
		return
	}
	t, n, err := m.a.branch(s.clone(), m.at)
	switch {
	case err != nil:
		panic("BUG: a branch that the analysis took fails: " + err.Error())
	case t == nil && n == nil: // no value comes here
		m.MovImm(amd64.RAX, 0)
		m.MovImm(amd64.RDX, 0)
		m.Jmp(m.done)
	case t == nil:
		m.goTo(b, next)
	case n == nil:
		m.goTo(b, taken)
	default:
		m.compare(o)
		m.Jcc(conditions[o.jump], m.blocks[taken])
		m.goTo(b, next)
	}
}

// compare sets the flags for a jump.
func (m *assembly) compare(o *op) {
	x := m.reg(o.depth, o.dst, scratch2)
	switch wide := !o.w32; {
	case o.reg && o.jump == asm.JSet:
		m.Test(wide, x, m.reg(o.depth, o.src, scratch1))
	case o.reg:
		m.Op(amd64.Cmp, wide, x, m.reg(o.depth, o.src, scratch1))
	case o.jump == asm.JSet:
		m.TestImm(wide, x, int32(o.imm))
	case o.imm == 0:
		if c := conditions[o.jump]; c == amd64.Equal || c == amd64.NotEqual {
			m.Test(wide, x, x)
			return
		}
		m.OpImm(amd64.Cmp, wide, x, 0)
	default:
		m.OpImm(amd64.Cmp, wide, x, int32(o.imm))
	}
}
