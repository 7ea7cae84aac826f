package atomics

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf/asm"
)

// Bounds of splitting paths.
const (
	MaxSplits     = 8
	maxSplitInsns = 1 << 12
)

// Split returns the program with a copy of all that follows the last place
// before instruction at where paths meet, one copy for each jump to that place. It
// does so for programs without functions of their own.
func Split(prog asm.Instructions, at int) (asm.Instructions, bool) {
	f := NewFlow(prog, nil)
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
			if i == join {
				in = in.WithSource(sourceOf(prog, i))
			}
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

// sourceOf returns the source line of an instruction, which is that of the nearest one
// before it that names one.
func sourceOf(prog asm.Instructions, i int) fmt.Stringer {
	for ; i >= 0; i-- {
		if s := prog[i].Source(); s != nil {
			return s
		}
	}
	return nil
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
