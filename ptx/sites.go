package ptx

// Sites is what one pass over a function finds: its parameters and every place
// where a probe may want to be. Statement numbers are indices in File.Stmts.
type Sites struct {
	Func     *Func
	Name     string
	Params   []Param
	Returns  []Param
	Regs     []Reg
	Entry    Pos // where an entry probe goes: behind the leading declarations, before the first instruction and before any branch target
	Exits    []Exit
	Traps    []uint32
	Accesses []Access
	Calls    []Call
	Syncs    []Sync
	Chains   []Chain
	Blocks   []Block

	locs []uint32 // the .loc statements of the body
}

// A Param is a parameter or return value of a function.
type Param struct {
	Name     string
	Space    Space // SpaceParam or SpaceReg
	Type     Type
	Offset   uint64 // in the parameter space, bytes; kernel parameters lie one after the other, each at its alignment
	Size     uint64 // bytes; 0 for buf[] and .reg .pred
	Align    uint64
	Pointer  bool // .ptr is written
	PtrSpace Space
	PtrAlign uint32
}

// A Reg is one name of a .reg declaration in a body.
type Reg struct {
	Stmt  uint32 // the declaration
	Name  string // the prefix when Count > 0
	Type  Type
	Vec   uint8
	Count uint32 // n of %r<n>; 0 for a single name
	Depth int    // 0 in the body itself, 1 in a scope in it, …
}

// ExitKind says how threads leave.
type ExitKind uint8

// The kinds of exits.
const (
	ExitRet  ExitKind = iota // ret: ends the thread in an .entry, returns from a .func
	ExitExit                 // exit: ends the thread, in a .func too
	ExitEnd                  // control reaches the closing brace, which is like ret; Stmt is the StmtClose
)

var exitNames = [...]string{"ret", "exit", "end"}

// String returns "ret", "exit" or "end".
func (k ExitKind) String() string { return exitNames[k] }

// An Exit is a way out of a function.
type Exit struct {
	Stmt      uint32
	Kind      ExitKind
	Guarded   bool // only threads whose guard holds leave
	Uniform   bool // .uni
	AfterTrap bool // stands directly behind an unguarded trap: never runs
	Reachable bool
}

// A Call is a call instruction.
type Call struct {
	Stmt     uint32
	Callee   string // function name, or the register of an indirect call
	Indirect bool   // through a register
	Table    string // label of the .callprototype or .calltargets of an indirect call
	Uniform  bool   // .uni
	Noreturn bool   // the callee is declared .noreturn
	Extern   bool   // no body in this file, or not declared at all
}

// SyncKind groups the instructions that make threads wait for or agree with
// one another.
type SyncKind uint8

// The kinds of synchronisation.
const (
	SyncCTA       SyncKind = iota // bar, barrier
	SyncCluster                   // barrier.cluster
	SyncWarp                      // bar.warp.sync
	SyncExchange                  // shfl, vote, match, redux, elect, activemask
	SyncMatrix                    // mma, wmma, ldmatrix and others that a whole warp runs together
	SyncGroup                     // warpgroup and register budget: wgmma.fence/commit_group/wait_group, setmaxnreg
	SyncMbarrier                  // mbarrier.*
	SyncAsync                     // cp.async and tcgen05 commits and waits
	SyncFence                     // membar, fence
	SyncDependent                 // griddepcontrol
)

var syncNames = [...]string{"cta", "cluster", "warp", "exchange", "matrix", "group", "mbarrier", "async", "fence", "grid"}

// String returns the kind in a word.
func (k SyncKind) String() string { return syncNames[k] }

// A Sync is an instruction that synchronises threads or needs them converged.
type Sync struct {
	Stmt    uint32
	Kind    SyncKind
	Aligned bool // all threads of the warp must run it together: put no divergent probe before it
}

// A Chain is a carry chain: from an instruction that sets the carry flag (.cc)
// to the last that reads it (addc, subc, madc) in straight-line code.
type Chain struct{ First, Last uint32 }

// Sites finds everything in fn. For a function without body, only Params and
// Returns are set.
func (f *File) Sites(fn *Func) *Sites {
	st := &Sites{Func: fn, Name: f.Text(fn.Name)}
	st.Params = f.layout(f.Params(fn))
	st.Returns = f.layout(f.Returns(fn))
	if !fn.HasBody() {
		return st
	}
	st.Blocks = f.blocks(fn)
	st.Entry = f.entry(fn, st.Blocks)
	sc := siteScan{f: f, st: st}
	accesses := 0
	for i := range f.Body(fn) {
		if s := &f.Stmts[fn.Open+1+uint32(i)]; s.Kind == StmtInstr && accessDecoders[s.Op] != nil {
			accesses++
		}
	}
	st.Accesses = make([]Access, 0, accesses)
	for i := fn.Open + 1; i < fn.Close; i++ {
		switch s := &f.Stmts[i]; s.Kind {
		case StmtOpen:
			sc.depth++
		case StmtClose:
			sc.depth--
		case StmtDecl:
			sc.regs(i, s)
		case StmtLoc:
			st.locs = append(st.locs, i)
		case StmtLabel:
			if sc.target(i) {
				sc.endChain()
			}
		case StmtInstr:
			sc.instr(i, s)
		}
	}
	sc.endChain()
	sc.exits(fn)
	return st
}

// AllSites returns the sites of every function with a body, in source order.
func (f *File) AllSites() []*Sites {
	var all []*Sites
	for i := range f.Funcs {
		if f.Funcs[i].HasBody() {
			all = append(all, f.Sites(&f.Funcs[i]))
		}
	}
	return all
}

// layout places parameters one after the other.
func (f *File) layout(decls []Decl) []Param {
	if len(decls) == 0 {
		return nil
	}
	params := make([]Param, len(decls))
	at := uint64(0)
	for i := range decls {
		d := &decls[i]
		n := &f.Names(d)[0]
		unit := uint64(d.Type.Size()) * uint64(d.Vec)
		p := Param{
			Name: f.Text(n.Name), Space: d.Space, Type: d.Type, Size: unit * n.Elems, Align: max(unit, uint64(d.Align), 1),
			Pointer: d.Ptr, PtrSpace: d.PtrSpace, PtrAlign: d.PtrAlign,
		}
		if d.Align != 0 {
			p.Align = uint64(d.Align)
		}
		if n.Flex {
			p.Size = 0
		}
		p.Offset = (at + p.Align - 1) / p.Align * p.Align
		at = p.Offset + p.Size
		params[i] = p
	}
	return params
}

// entry returns where an entry probe goes.
func (f *File) entry(fn *Func, blocks []Block) Pos {
	at := f.Stmts[fn.Open].End
	if len(blocks) == 0 || blocks[0].Target {
		return at
	}
	for i := fn.Open + 1; i <= blocks[0].Last; i++ {
		switch s := &f.Stmts[i]; s.Kind {
		case StmtDecl:
			at = s.End
		case StmtInstr, StmtOpen, StmtClose:
			return at
		}
	}
	return at
}

// siteScan is the state of the pass over one body.
type siteScan struct {
	f     *File
	st    *Sites
	depth int
	block int        // the block the scan is in
	mem   accessScan // reused: one allocation for all accesses
	chain Chain      // First != 0: open
}

// target reports whether statement i, which the scan has come to, begins a
// block that a branch goes to.
func (sc *siteScan) target(i uint32) bool {
	for sc.block+1 < len(sc.st.Blocks) && sc.st.Blocks[sc.block+1].First <= i {
		sc.block++
	}
	b := &sc.st.Blocks[sc.block]
	return b.First == i && b.Target
}

func (sc *siteScan) regs(i uint32, s *Stmt) {
	d := sc.f.Decl(s)
	if d.Space != SpaceReg {
		return
	}
	names := sc.f.Names(d)
	for j := range names {
		sc.st.Regs = append(sc.st.Regs, Reg{
			Stmt: i, Name: sc.f.Text(names[j].Name), Type: d.Type, Vec: d.Vec, Count: names[j].Range, Depth: sc.depth,
		})
	}
}

func (sc *siteScan) instr(i uint32, s *Stmt) {
	switch s.Op {
	case OpRet:
		sc.exit(i, s, ExitRet)
	case OpExit:
		sc.exit(i, s, ExitExit)
	case OpTrap:
		sc.st.Traps = append(sc.st.Traps, i)
	case OpCall:
		sc.call(i, s)
	case OpBra, OpBrx:
		sc.endChain()
	case OpAdd, OpSub, OpMad, OpAddc, OpSubc, OpMadc:
		sc.carry(i, s)
	}
	if kind := syncKinds[s.Op]; kind != 0 {
		sc.sync(i, s, SyncKind(kind-1))
	}
	if decode := accessDecoders[s.Op]; decode != nil {
		sc.mem = accessScan{sc: sc, i: i, s: s, args: sc.f.Args(s)}
		decode(&sc.mem)
	}
}

func (sc *siteScan) exit(i uint32, s *Stmt, k ExitKind) {
	e := Exit{Stmt: i, Kind: k, Guarded: s.Guarded(), Uniform: sc.f.HasMod(s, ".uni")}
	if n := len(sc.st.Traps); n > 0 && sc.st.Traps[n-1] == i-1 && !sc.f.Stmts[i-1].Guarded() {
		e.AfterTrap = true
	}
	sc.st.Exits = append(sc.st.Exits, e)
	sc.endChain()
}

// exits adds the closing brace if control can get there, and says of every
// exit whether it can be reached.
func (sc *siteScan) exits(fn *Func) {
	st := sc.st
	falls := len(st.Blocks) == 0
	if !falls {
		last := &st.Blocks[len(st.Blocks)-1]
		falls = last.Reachable && last.Falls
	}
	b := 0
	for i := range st.Exits {
		for st.Blocks[b].Last < st.Exits[i].Stmt {
			b++
		}
		st.Exits[i].Reachable = st.Blocks[b].Reachable
	}
	if falls {
		st.Exits = append(st.Exits, Exit{Stmt: fn.Close, Kind: ExitEnd, Reachable: true})
	}
}

func (sc *siteScan) call(i uint32, s *Stmt) {
	c := Call{Stmt: i, Uniform: sc.f.HasMod(s, ".uni")}
	args := sc.f.Args(s)
	if o := sc.f.calleeOperand(s); o != nil {
		c.Callee = sc.f.Text(o.Name)
		fn := sc.f.Lookup(c.Callee)
		last := &args[len(args)-1]
		if fn == nil && last != o && last.Kind == OperandName {
			c.Indirect, c.Table = true, sc.f.Text(last.Name)
		}
		c.Extern = !c.Indirect && (fn == nil || !fn.HasBody())
		c.Noreturn = fn != nil && fn.Noreturn
	}
	sc.st.Calls = append(sc.st.Calls, c)
}

// carry follows carry chains: add.cc begins one, addc goes on.
func (sc *siteScan) carry(i uint32, s *Stmt) {
	reads := s.Op == OpAddc || s.Op == OpSubc || s.Op == OpMadc
	if reads && sc.chain.First != 0 {
		sc.chain.Last = i
		return
	}
	if sc.f.HasMod(s, ".cc") {
		sc.endChain()
		sc.chain = Chain{i, i}
	}
}

func (sc *siteScan) endChain() {
	if sc.chain.Last > sc.chain.First {
		sc.st.Chains = append(sc.st.Chains, sc.chain)
	}
	sc.chain = Chain{}
}

// syncKinds says which opcodes synchronise: 1 + the kind, which sync refines.
var syncKinds = [opCount]uint8{
	OpBar: uint8(SyncCTA) + 1, OpBarrier: uint8(SyncCTA) + 1,
	OpShfl: uint8(SyncExchange) + 1, OpVote: uint8(SyncExchange) + 1, OpMatch: uint8(SyncExchange) + 1, OpRedux: uint8(SyncExchange) + 1, OpElect: uint8(SyncExchange) + 1, OpActivemask: uint8(SyncExchange) + 1,
	OpMma: uint8(SyncMatrix) + 1, OpWmma: uint8(SyncMatrix) + 1, OpLdmatrix: uint8(SyncMatrix) + 1, OpStmatrix: uint8(SyncMatrix) + 1, OpMovmatrix: uint8(SyncMatrix) + 1,
	OpWgmma: uint8(SyncGroup) + 1, OpSetmaxnreg: uint8(SyncGroup) + 1, OpMbarrier: uint8(SyncMbarrier) + 1, OpCp: uint8(SyncAsync) + 1, OpTcgen05: uint8(SyncAsync) + 1,
	OpMembar: uint8(SyncFence) + 1, OpFence: uint8(SyncFence) + 1, OpGriddepcontrol: uint8(SyncDependent) + 1,
}

func (sc *siteScan) sync(i uint32, s *Stmt, k SyncKind) {
	y := Sync{Stmt: i, Kind: k}
	wait, warp, aligned := false, false, false
	for m := range sc.f.mods(s) {
		switch m {
		case ".cluster":
			if s.Op == OpBarrier {
				y.Kind = SyncCluster
			}
		case ".warp":
			warp = true
		case ".aligned":
			aligned = true
		case ".commit_group", ".wait_group", ".wait_all", ".commit", ".wait", ".mbarrier":
			wait = true
		}
	}
	switch s.Op {
	case OpBar:
		if warp {
			y.Kind = SyncWarp
		}
		y.Aligned = !warp
	case OpCp:
		if !wait {
			return
		}
	case OpTcgen05:
		y.Aligned = aligned
		if !wait && !aligned {
			return
		}
	default:
		y.Aligned = aligned
	}
	sc.st.Syncs = append(sc.st.Syncs, y)
}
