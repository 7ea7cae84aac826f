package nvattach

import (
	"nvtrace/nvattach/emit"
	"nvtrace/nvattach/helper"
	"nvtrace/ptx"
	"nvtrace/ptx/bpf"
)

// Helpers that all threads of a warp call that came to the site together, which the proof of the
// program makes sure of: unlike what is in helpers_warp.go, what they say does not depend on which
// threads the hardware runs at that moment, and each waits for the others.

// togetherForms adds them.
func (u *unit) togetherForms(list map[int32]form) {
	for n, emit := range map[int32]func(k *emit.Code, all string, c *bpf.Call) string{
		helper.Ballot: func(k *emit.Code, all string, c *bpf.Call) string {
			return k.Wide(k.Ballot(k.NonZero(&c.Args[0]), all))
		},
		helper.Any: func(k *emit.Code, all string, c *bpf.Call) string {
			return k.Truth("ne", k.Ballot(k.NonZero(&c.Args[0]), all), "0")
		},
		helper.AllOf: func(k *emit.Code, all string, c *bpf.Call) string {
			return k.Truth("eq", k.Ballot(k.NonZero(&c.Args[0]), all), all)
		},
		helper.Together: func(k *emit.Code, all string, _ *bpf.Call) string { return k.Wide(all) },
		helper.Leader: func(k *emit.Code, all string, _ *bpf.Call) string {
			r := k.Reg(ptx.B64)
			k.F("selp.b64 %s, 1, 0, %s;", r, k.Lowest(all))
			return r
		},
		helper.Shuffle: (*emit.Code).Shuffle,
	} {
		list[n] = func(g *bpf.Gen, c *bpf.Call) (ptx.Arg, error) {
			return register64(emit(u.code(g), g.Together().String(), c)), nil
		}
	}
}
