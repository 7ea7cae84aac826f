package nvattach

import (
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// extremeForms adds them.
func (u *unit) extremeForms(list map[int32]form) {
	for n, x := range extremes {
		list[n] = func(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
			u.code(g).extreme(x, c, u.obj.Own)
			return ptx.Arg{}, nil
		}
	}
}
