package nvattach

import (
	"fmt"
	"strings"

	"nvtrace/ptx"
)

// What a device function returns can't be read where it leaves: PTX has its parameter for that
// written only. So each store to it is followed by one to a register of the function.

// returned is that register.
func (g *weaving) returned() string { return "%" + g.w.Stem() + "ret" }

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
