package nvattach

import (
	"fmt"
	"slices"
	"strings"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/object"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// What a device function returns can't be read where it leaves: PTX has its parameter for that
// written only. So each store to it is followed by one to a register of the function.

// returned is that register.
func (g *weaving) returned() string { return "%" + g.w.Stem() + "ret" }

// wantsReturn reports whether a program asks what functions return.
func (q *PlannedProgram) wantsReturn() bool { return slices.Contains(q.Report.Helpers, helper.FuncRet) }

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
	for i := range st.Accesses {
		a := &st.Accesses[i]
		if a.Class != ptx.AccessStore || a.Space != ptx.SpaceParam {
			continue
		}
		code := g.storedReturn(st, a)
		if code == "" {
			continue
		}
		if err := g.w.After(st, a.Stmt, code); err != nil {
			return g.refused(err)
		}
	}
	return nil
}

// storedReturn writes code that keeps what a store stores to the first 8 bytes of what the
// function returns; "" if it stores elsewhere.
func (g *weaving) storedReturn(st *ptx.Sites, a *ptx.Access) string {
	args := g.f.Args(&g.f.Stmts[a.Stmt])
	if len(args) != 2 || a.Addr != 0 {
		return ""
	}
	off, size := args[0].Int(), int64(a.Type.Size())
	if g.f.Text(args[0].Name) != st.Returns[0].Name || off < 0 || off >= 8 {
		return ""
	}
	parts := []ptx.Operand{args[1]}
	if args[1].Kind == ptx.OperandVector {
		parts = g.f.Kids(&args[1])
	}
	var b strings.Builder
	for i := range parts {
		if size == 0 || off+size > 8 {
			break
		}
		r, ok := g.number64(&b, st, a.Stmt, &parts[i], int(size))
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

// funcRet is bpf_get_func_ret: up to 8 bytes of what a device function returns.
func (u *unit) funcRet(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k := u.code(g)
	none := func() (ptx.Arg, error) {
		c.Args[1].Store(0, 8, ptx.Imm(0))
		return ptx.Imm(helper.EINVAL), nil
	}
	if u.at.given != nil || u.q == nil || !u.q.Point.Func || u.q.Point.Kind != object.KindExit || len(u.at.sites.Returns) == 0 {
		return none()
	}
	p := &u.at.sites.Returns[0]
	r := u.returned
	if p.Space != ptx.SpaceParam {
		var err error
		if r, err = k.Widen(p); err != nil {
			return none() //nolint:nilerr // it has no number
		}
	}
	c.Args[1].Store(0, 8, register64(r))
	return ptx.Imm(0), nil
}
