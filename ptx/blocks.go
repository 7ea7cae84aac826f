package ptx

import "slices"

// A Block is a basic block: statements that run one after another. Blocks begin
// at the body's start, at labels that a branch names (labels that only debug
// sections refer to begin none), and after branches and ways out.
type Block struct {
	First, Last uint32 // indices in File.Stmts, inclusive; declarations and labels included
	Succs       []int  // indices of the blocks that can run next, in source order, no duplicates
	Indirect    bool   // ends in a branch whose targets are not all known
	Target      bool   // a branch goes to its first statement
	Reachable   bool   // from the entry
	Falls       bool   // control can run off its end into the next block, or out of the function
}

// labels resolves label names in one function: PTX labels are scoped like
// variables, inner ones hide outer ones and can't be seen from outside.
type labels struct {
	f      *File
	parent []int32             // by scope; -1 for the body
	scope  []int32             // by statement of the body: its scope
	defs   map[labelKey]uint32 // the label's statement
}

type labelKey struct {
	scope int32
	name  string
}

func (f *File) labelsOf(fn *Func) *labels {
	body := f.Body(fn)
	l := &labels{f: f, parent: []int32{-1}, scope: make([]int32, len(body)), defs: map[labelKey]uint32{}}
	at := int32(0)
	for i := range body {
		s := &body[i]
		switch s.Kind {
		case StmtOpen:
			l.parent = append(l.parent, at)
			at = int32(len(l.parent) - 1)
		case StmtLabel:
			l.defs[labelKey{at, f.Text(s.Name)}] = fn.Open + 1 + uint32(i)
		}
		l.scope[i] = at
		if s.Kind == StmtClose {
			at = l.parent[at]
		}
	}
	return l
}

// find returns the statement of the label that name means in scope.
func (l *labels) find(name string, scope int32) (stmt uint32, ok bool) {
	for ; scope >= 0; scope = l.parent[scope] {
		if stmt, ok = l.defs[labelKey{scope, name}]; ok {
			return stmt, true
		}
	}
	return 0, false
}

// targets returns the label statements that a branch at statement i of the body
// can go to; ok is false when one is unknown.
func (l *labels) targets(fn *Func, i int) (stmts []uint32, ok bool) {
	s := &l.f.Stmts[fn.Open+1+uint32(i)]
	args := l.f.Args(s)
	if len(args) == 0 {
		return nil, false
	}
	list := args[:1]
	if s.Op == OpBrx {
		// brx.idx index, list: the list is the label of a .branchtargets.
		at, found := l.find(l.f.Text(args[len(args)-1].Name), l.scope[i])
		if !found {
			return nil, false
		}
		for at++; int(at) < len(l.f.Stmts) && l.f.Stmts[at].Kind == StmtLabel; at++ {
		}
		d := &l.f.Stmts[at]
		if d.Kind != StmtDirective || l.f.Text(d.Name) != ".branchtargets" {
			return nil, false
		}
		list = l.f.Args(d)
	}
	ok = true
	for j := range list {
		t, found := l.find(l.f.Text(list[j].Name), l.scope[i])
		if !found || list[j].Kind != OperandName {
			ok = false
			continue
		}
		stmts = append(stmts, t)
	}
	return stmts, ok
}

// flow says how control leaves an instruction.
type flow uint8

const (
	flowNext  flow = iota // always to the next statement
	flowJump              // bra, brx
	flowLeave             // ret, exit, trap, call of a function that does not return
)

func (f *File) flowOf(s *Stmt) flow {
	if s.Kind != StmtInstr {
		return flowNext
	}
	switch s.Op {
	case OpBra, OpBrx:
		return flowJump
	case OpRet, OpExit, OpTrap:
		return flowLeave
	case OpCall:
		if fn := f.callee(s); fn != nil && fn.Noreturn {
			return flowLeave
		}
	}
	return flowNext
}

// callee returns the function that a direct call names, or nil.
func (f *File) callee(s *Stmt) *Func {
	name := f.calleeOperand(s)
	if name == nil {
		return nil
	}
	return f.Lookup(f.Text(name.Name))
}

// calleeOperand returns the operand of a call that says whom it calls: the
// first that is not the list of return values.
func (f *File) calleeOperand(s *Stmt) *Operand {
	args := f.Args(s)
	for i := range args {
		if args[i].Kind == OperandName {
			return &args[i]
		}
		if i == 1 {
			break
		}
	}
	return nil
}

// maxEdges is how many branch targets a statement may have on average. Many
// indirect branches over one long list could otherwise take quadratic space;
// the rest of them then count as indirect with unknown targets.
const maxEdges = 64

// jump is a branch at statement at of the body.
type jump struct {
	at      int
	targets []uint32
	unknown bool
}

// blocks returns the basic blocks of fn in source order; nil without a body.
func (f *File) blocks(fn *Func) []Block {
	body := f.Body(fn)
	if len(body) == 0 {
		return nil
	}
	l := f.labelsOf(fn)
	base := fn.Open + 1
	const starts, targeted = 1, 2
	leader := make([]uint8, len(body)+1)
	leader[0] = starts
	var jumps []jump // in source order
	edges := 0
	for i := range body {
		fl := f.flowOf(&body[i])
		if fl == flowNext {
			continue
		}
		leader[i+1] |= starts
		if fl == flowJump {
			var ts []uint32
			ok := false
			if edges < maxEdges*(len(body)+maxEdges) {
				ts, ok = l.targets(fn, i)
			}
			edges += len(ts)
			jumps = append(jumps, jump{i, ts, !ok})
			for _, t := range ts {
				leader[t-base] |= starts | targeted
			}
		}
	}
	blocks := make([]Block, 0, 2*len(jumps)+4)
	number := make([]int32, len(body))
	for i := range body {
		if leader[i] != 0 {
			blocks = append(blocks, Block{First: base + uint32(i), Target: leader[i]&targeted != 0})
		}
		number[i] = int32(len(blocks) - 1)
		blocks[len(blocks)-1].Last = base + uint32(i)
	}
	for b := range blocks {
		last := int(blocks[b].Last - base)
		s := &body[last]
		if len(jumps) > 0 && jumps[0].at == last {
			blocks[b].Indirect = jumps[0].unknown
			for _, t := range jumps[0].targets {
				blocks[b].Succs = append(blocks[b].Succs, int(number[t-base]))
			}
			jumps = jumps[1:]
		}
		blocks[b].Falls = f.flowOf(s) == flowNext || s.Guarded()
		if blocks[b].Falls && b+1 < len(blocks) {
			blocks[b].Succs = append(blocks[b].Succs, b+1)
		}
		slices.Sort(blocks[b].Succs)
		blocks[b].Succs = slices.Compact(blocks[b].Succs)
	}
	reach(blocks)
	return blocks
}

// reach marks what can be reached from the first block. A branch to unknown
// places can reach every block.
func reach(blocks []Block) {
	work := []int{0}
	blocks[0].Reachable = true
	for len(work) > 0 {
		b := work[len(work)-1]
		work = work[:len(work)-1]
		if blocks[b].Indirect {
			for i := range blocks {
				blocks[i].Reachable = true
			}
			return
		}
		for _, s := range blocks[b].Succs {
			if !blocks[s].Reachable {
				blocks[s].Reachable = true
				work = append(work, s)
			}
		}
	}
}
