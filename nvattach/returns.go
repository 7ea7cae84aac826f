package nvattach

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// What a device function returns can't be read where it leaves: PTX has its parameter for that
// written only. So each store to it is followed by one to a register of the function.

// returned is that register.
func (g *weaving) returned() string { return "%" + g.w.Stem() + "ret" }

// wantsReturn reports whether a program asks what functions return.
func (q *PlannedProgram) wantsReturn() bool { return slices.Contains(q.Report.Helpers, helperFuncRet) }

// keepReturn has a function keep what it is to return, once.
func (g *weaving) keepReturn(st *ptx.Sites) error {
	if len(st.Returns) == 0 || st.Returns[0].Space != ptx.SpaceParam || g.returns[st.Func] {
		return nil
	}
	if g.returns == nil {
		g.returns = make(map[*ptx.Func]bool)
	}
	g.returns[st.Func] = true
	g.w.Declare(st.Func, ".reg .b64 "+g.returned()+";\n\tmov.b64 "+g.returned()+", 0;")
	for i := st.Func.Open + 1; i < st.Func.Close; i++ {
		s := &g.f.Stmts[i]
		if s.Kind != ptx.StmtInstr || s.Op != ptx.OpSt || !g.f.HasMod(s, ".param") {
			continue
		}
		code := g.storedReturn(st, i)
		if code == "" {
			continue
		}
		if err := g.w.After(st, i, code); err != nil {
			return g.refused(err)
		}
	}
	return nil
}

// storedReturn writes code that keeps what a statement stores to the first 8 bytes of what the
// function returns; "" if it stores elsewhere.
func (g *weaving) storedReturn(st *ptx.Sites, stmt uint32) string {
	s := &g.f.Stmts[stmt]
	args := g.f.Args(s)
	if len(args) != 2 {
		return ""
	}
	at := strings.Trim(strings.TrimSpace(g.f.Text(args[0].Span())), "[]")
	name, offset, _ := strings.Cut(at, "+")
	off, err := strconv.Atoi(strings.TrimSpace(offset))
	if strings.TrimSpace(name) != st.Returns[0].Name || offset != "" && (err != nil || off < 0) || off >= 8 {
		return ""
	}
	size := typeBytes(g.f.FullOpcode(s))
	parts := []ptx.Operand{args[1]}
	if args[1].Kind == ptx.OperandVector {
		parts = g.f.Kids(&args[1])
	}
	var b strings.Builder
	for i := range parts {
		if size == 0 || off+size > 8 {
			break
		}
		r, ok := g.number64(&b, st, stmt, &parts[i], size)
		if !ok {
			return ""
		}
		to := g.returned()
		if size < 8 { // the others stay
			fmt.Fprintf(&b, "\tbfi.b64 %s, %s, %s, %d, %d;\n", to, r, to, 8*off, 8*size)
		} else {
			fmt.Fprintf(&b, "\tmov.b64 %s, %s;\n", to, r)
		}
		off += size
	}
	return b.String()
}

// typeBytes is the size of an instruction's type, which its last modifier names; 0 if that is none
// of 1 to 8 bytes.
func typeBytes(opcode string) int {
	bits, err := strconv.Atoi(strings.TrimLeft(opcode[strings.LastIndexByte(opcode, '.')+1:], "bsuf"))
	if err != nil || bits%8 != 0 || bits < 8 || bits > 64 {
		return 0
	}
	return bits / 8
}

// funcRet is bpf_get_func_ret: up to 8 bytes of what a device function returns.
func (u *unit) funcRet(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k := u.code(g)
	none := func() (ptx.Arg, error) {
		c.Args[1].Store(0, 8, ptx.Imm(0))
		return ptx.Imm(errInval), nil
	}
	if u.at.given != nil || u.q == nil || !u.q.Point.Func || u.q.Point.Kind != KindExit || len(u.at.sites.Returns) == 0 {
		return none()
	}
	p := &u.at.sites.Returns[0]
	r := u.returned
	if p.Space != ptx.SpaceParam {
		var err error
		if r, err = k.widen(p); err != nil {
			return none() //nolint:nilerr // it has no number
		}
	}
	c.Args[1].Store(0, 8, register64(r))
	return ptx.Imm(0), nil
}
