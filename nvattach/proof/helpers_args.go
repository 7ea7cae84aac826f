package proof

import (
	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/object"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// funcArg is bpf_get_func_arg: parameter n of the kernel. The upper half of n is an
// offset in 8 bytes, for structures that are passed by value. Textures have no number.
func (u *Unit) funcArg(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	n, _ := c.Args[1].Const()
	k := u.Code(g)
	index, off := n&0xffffffff, n>>32*8
	if u.At.Given != nil {
		r := u.At.Given.arg(k, index, off)
		if r == "" {
			c.Args[2].Store(0, 8, ptx.Imm(0))
			return ptx.Imm(helper.EINVAL), nil
		}
		c.Args[2].Store(0, 8, Register64(r))
		return ptx.Imm(0), nil
	}
	params := u.At.Sites.Params
	if index >= uint64(len(params)) || off != 0 && off >= params[index].Size || params[index].Type >= ptx.TexRef {
		c.Args[2].Store(0, 8, ptx.Imm(0))
		return ptx.Imm(helper.EINVAL), nil
	}
	p := &params[index]
	if p.Space != ptx.SpaceParam {
		r, err := k.Widen(p)
		if err != nil {
			return ptx.Arg{}, err
		}
		c.Args[2].Store(0, 8, Register64(r))
		return ptx.Imm(0), nil
	}
	c.Args[2].Store(0, 8, Register64(k.Param(p, off)))
	return ptx.Imm(0), nil
}

func (u *Unit) funcArgCount(*bpf.Gen, *bpf.Call) (ptx.Arg, error) {
	if u.At.Given != nil {
		return ptx.Imm(int64(len(u.At.Given.Kernel))), nil
	}
	return ptx.Imm(int64(len(u.At.Sites.Params))), nil
}

// funcRet is bpf_get_func_ret: up to 8 bytes of what a device function returns.
func (u *Unit) funcRet(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
	k := u.Code(g)
	none := func() (ptx.Arg, error) {
		c.Args[1].Store(0, 8, ptx.Imm(0))
		return ptx.Imm(helper.EINVAL), nil
	}
	if u.At.Given != nil || u.Program == nil || !u.Program.Point.Func || u.Program.Point.Kind != object.KindExit || len(u.At.Sites.Returns) == 0 {
		return none()
	}
	p := &u.At.Sites.Returns[0]
	r := u.Returned
	if p.Space != ptx.SpaceParam {
		var err error
		if r, err = k.Widen(p); err != nil {
			return none() //nolint:nilerr // it has no number
		}
	}
	c.Args[1].Store(0, 8, Register64(r))
	return ptx.Imm(0), nil
}
