package nvattach

import (
	"nvtrace/nvattach/helper"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// Helpers that all threads of a warp call that came to the site together, which the proof of the
// program makes sure of: unlike what is in helpers_warp.go, what they say does not depend on which
// threads the hardware runs at that moment, and each waits for the others.

// togetherForms adds them.
func (u *unit) togetherForms(list map[int32]form) {
	for n, emit := range map[int32]func(k *code, all string, c *bpf.Call) string{
		helper.Ballot: func(k *code, all string, c *bpf.Call) string { return k.wide(k.ballot(k.nonZero(&c.Args[0]), all)) },
		helper.Any: func(k *code, all string, c *bpf.Call) string {
			return k.truth("ne", k.ballot(k.nonZero(&c.Args[0]), all), "0")
		},
		helper.AllOf: func(k *code, all string, c *bpf.Call) string {
			return k.truth("eq", k.ballot(k.nonZero(&c.Args[0]), all), all)
		},
		helper.Together: func(k *code, all string, _ *bpf.Call) string { return k.wide(all) },
		helper.Leader: func(k *code, all string, _ *bpf.Call) string {
			r := k.reg(ptx.B64)
			k.f("selp.b64 %s, 1, 0, %s;", r, k.lowest(all))
			return r
		},
		helper.Shuffle: (*code).shuffle,
	} {
		list[n] = func(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
			return register64(emit(u.code(g), g.Together().String(), c)), nil
		}
	}
}
