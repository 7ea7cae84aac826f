package nvattach

import (
	"nvtrace/nvattach/emit"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// extremeForms adds them.
func (u *unit) extremeForms(list map[int32]form) {
	for n, x := range emit.Extremes {
		list[n] = func(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
			u.code(g).Extreme(x, c, u.obj.Own)
			return ptx.Arg{}, nil
		}
	}
}
