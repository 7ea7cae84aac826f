package nvattach

import (
	"slices"
	"strings"

	"nvtrace/fatbin/sass"
)

// waiting begin the names of instructions at which a thread waits for others, or for another kernel.
var waiting = []string{"BAR", "UCGABAR", "SYNCS", "WARPGROUP", "ACQBULK", "ARRIVES", "NANOSLEEP"}

// codeLeaves is allLeave of machine code. It may have several ways out, since the program is the same at all of them: a
// thread takes one.
func codeLeaves(a *sass.Analysis) bool {
	// Blocks are taken away before which there is none: of those in a loop, none ever is.
	into := make([]int, len(a.Blocks))
	reached := make([]bool, len(a.Blocks))
	reached[0] = true
	for todo := []int{0}; len(todo) > 0; {
		b := &a.Blocks[todo[0]]
		todo = todo[1:]
		if b.LeavesAnywhere || len(b.Succ) == 0 && !ends(a, b) {
			return false
		}
		for _, next := range b.Succ {
			if into[next]++; !reached[next] {
				reached[next] = true
				todo = append(todo, next)
			}
		}
	}
	left := 0
	for i := range a.Blocks {
		b := &a.Blocks[i]
		if !reached[i] {
			continue
		}
		left++
		if i > 0 && b.Entry || !passes(a, b) {
			return false
		}
	}
	if into[0] > 0 {
		return false
	}
	for todo := []int{0}; len(todo) > 0; {
		i := todo[0]
		todo = todo[1:]
		left--
		for _, next := range a.Blocks[i].Succ {
			if into[next]--; into[next] == 0 {
				todo = append(todo, next)
			}
		}
	}
	return left == 0
}

// ends reports whether a block ends with the thread.
func ends(a *sass.Analysis, b *sass.Block) bool {
	return b.End > b.Start && a.Insts[b.End-1].Flow().Kind == sass.FlowExit
}

// passes reports whether a thread that comes to a block gets through it, whatever others do.
func passes(a *sass.Analysis, b *sass.Block) bool {
	for i := b.Start; i < b.End; i++ {
		in := &a.Insts[i]
		if !in.Known() {
			return false
		}
		switch in.Flow().Kind {
		case sass.FlowCall, sass.FlowReturn, sass.FlowIndirect, sass.FlowTrap, sass.FlowWarp:
			return false
		}
		if slices.ContainsFunc(waiting, func(name string) bool { return strings.HasPrefix(in.Name(), name) }) {
			return false
		}
	}
	return true
}
