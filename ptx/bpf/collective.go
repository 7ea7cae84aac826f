package bpf

import (
	"maps"
	"slices"
)

// A collective call is made by all threads of a warp that came to the site together, or by none
// of them: each waits for the others. What makes threads part is a branch whose condition may be
// different in them, as far as to where all ways from there come together again: a call before that
// is refused. An early end of the run, which some threads may come to, is such a way, too.

// uncommon returns a collective call that some threads of a warp may make and others not, and
// why; nil if there is none.
func (l *lowering) uncommon() (call *callNode, why string) {
	ends := false
	for i := range l.nodes {
		n := &l.nodes[i]
		if n.dead || n.call == nil || n.label > 0 {
			continue
		}
		ends = ends || n.call.op.helper.Ret == RetNever
		if n.call.op.helper.Collective && call == nil {
			call = n.call
		}
	}
	switch {
	case call == nil:
		return nil, ""
	case ends:
		return call, "the program ends threads, for which the others would wait"
	}
	parted := map[int]bool{} // spans behind which threads may go different ways
	calls := map[int]*callNode{}
	spans := l.varying(false, func(i int, n *node, varies func(arg) bool) {
		if n.kind == nBranch && n.guard != noReg && varies(n.guard.arg()) {
			parted[i] = true
		}
		if n.call != nil && n.label == 0 && n.call.op.helper.Collective {
			calls[i] = n.call
		}
	})
	if spans == nil {
		return call, tooLong
	}
	if len(parted)*len(spans) > mostVarying {
		return call, tooLong
	}
	meet := meetings(spans)
	for _, from := range slices.Sorted(maps.Keys(parted)) {
		for _, i := range between(spans, from, meet[from]) {
			if call := calls[i]; call != nil {
				return call, "threads of a warp may have parted there, as what decides the way to it is not known to be the same in all of them"
			}
		}
	}
	return nil, ""
}

const tooLong = "the program is too long to tell whether threads of a warp have parted there"

// between returns the spans that there are ways to behind one, up to another, -1 for none.
func between(spans []span, from, to int) (list []int) {
	seen := make([]bool, len(spans))
	todo := slices.Clone(spans[from].succ)
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[i] || i == to {
			continue
		}
		seen[i] = true
		list = append(list, i)
		todo = append(todo, spans[i].succ...)
	}
	return list
}

// meetings returns for each span the next that all ways from there to the end lead through, -1
// where there is none: its immediate postdominator, by the algorithm of Cooper, Harvey and Kennedy.
func meetings(spans []span) []int {
	end := len(spans) // behind all that lead nowhere
	pred := make([][]int, end+1)
	for i := range spans {
		for _, t := range spans[i].succ {
			pred[t] = append(pred[t], i)
		}
		if len(spans[i].succ) == 0 {
			pred[end] = append(pred[end], i)
		}
	}
	// Backwards from the end, in postorder.
	order, number := []int(nil), slices.Repeat([]int{-1}, end+1)
	type visit struct{ at, next int }
	seen := make([]bool, end+1)
	seen[end] = true
	for stack := []visit{{at: end}}; len(stack) > 0; {
		v := &stack[len(stack)-1]
		if v.next == len(pred[v.at]) {
			number[v.at] = len(order)
			order = append(order, v.at)
			stack = stack[:len(stack)-1]
			continue
		}
		p := pred[v.at][v.next]
		v.next++
		if !seen[p] {
			seen[p] = true
			stack = append(stack, visit{at: p})
		}
	}
	meet := slices.Repeat([]int{-1}, end+1)
	meet[end] = end
	for changed := true; changed; {
		changed = false
		for k := len(order) - 2; k >= 0; k-- { // the end is the last
			i := order[k]
			succ := spans[i].succ
			if len(succ) == 0 {
				succ = []int{end}
			}
			at := -1
			for _, t := range succ {
				switch {
				case meet[t] < 0:
				case at < 0:
					at = t
				default:
					for u := t; at != u; {
						for number[at] < number[u] {
							at = meet[at]
						}
						for number[u] < number[at] {
							u = meet[u]
						}
					}
				}
			}
			if at >= 0 && meet[i] != at {
				meet[i], changed = at, true
			}
		}
	}
	for i := range meet[:end] {
		if meet[i] == end {
			meet[i] = -1
		}
	}
	// From some of what a span leads to, the end may not be reached at all.
	for i := range spans {
		if slices.ContainsFunc(spans[i].succ, func(t int) bool { return !seen[t] }) {
			meet[i] = -1
		}
	}
	return meet[:end]
}
