package nvattach

import (
	"errors"
	"slices"

	"github.com/cilium/ebpf/asm"

	"nvtrace/ptx/bpf"
)

// Bounds of splitting paths.
const (
	maxSplits     = 8
	maxSplitInsns = 1 << 12
)

// prove verifies a program. Compilers let several paths share code in which a
// register points to different things, a map's value and the stack for instance. The
// verifier, which looks at all paths together, refuses that; so the code that is
// shared is given to each path on its own, a few times.
func prove(name string, insns asm.Instructions, env *bpf.Env) (*bpf.Verified, error) {
	v, err := bpf.Verify(&bpf.Program{Name: name, Insns: insns}, env)
	first := err
	for range maxSplits {
		refused, ok := errors.AsType[*bpf.RefusedError](err)
		if !ok || refused.Insn < 0 {
			break
		}
		if insns, ok = splitPaths(insns, refused.Insn); !ok {
			break
		}
		v, err = bpf.Verify(&bpf.Program{Name: name, Insns: insns}, env)
	}
	if err != nil {
		return nil, first // about the program as it is in the file
	}
	return v, nil
}

// splitPaths returns the program with a copy of all that follows the last place
// before instruction at where paths meet, one copy for each jump to that place. It
// does so for programs without functions of their own.
func splitPaths(prog asm.Instructions, at int) (asm.Instructions, bool) {
	f := newFlow(prog, nil)
	join := at
	for join > 0 && !f.target[join] {
		join--
	}
	if join == 0 {
		return prog, false
	}
	slots := make([]int64, len(prog)+1)
	for i := range prog {
		if i > 0 && prog[i].Symbol() != "" || prog[i].Reference() != "" && jumps(&prog[i]) {
			return prog, false
		}
		slots[i+1] = slots[i] + int64(prog[i].Width())
	}
	if !ends(&prog[len(prog)-1]) {
		return prog, false
	}
	var sources []int
	for i := range prog {
		if jumps(&prog[i]) && slices.Contains(f.next[i], join) && slots[i+1]+int64(prog[i].Offset) == slots[join] {
			sources = append(sources, i)
		}
	}
	if ends(&prog[join-1]) {
		// Nobody falls into the place, so one of the jumps keeps it.
		sources = sources[:max(len(sources)-1, 0)]
	}
	if len(sources) == 0 || len(prog)+len(sources)*(len(prog)-join) > maxSplitInsns {
		return prog, false
	}
	out := slices.Clone(prog)
	end := slots[len(prog)]
	for _, s := range sources {
		moved := end - slots[join]
		if !redirect(&out[s], end-slots[s+1]) {
			return prog, false
		}
		for i := join; i < len(prog); i++ {
			in := prog[i]
			if jumps(&in) {
				// Jumps within the copy stay; those back out of it go further.
				if to := slots[i+1] + int64(in.Offset); to < slots[join] && !redirect(&in, int64(in.Offset)-moved) {
					return prog, false
				}
			}
			out = append(out, in)
		}
		end += slots[len(prog)] - slots[join]
	}
	return out, true
}

// redirect sets a jump's distance, in slots, if it fits and is a plain one.
func redirect(in *asm.Instruction, offset int64) bool {
	long := in.OpCode.Class() == asm.Jump32Class && in.OpCode.JumpOp() == asm.Ja
	if long || offset != int64(int16(offset)) {
		return false
	}
	in.Offset = int16(offset)
	return true
}
