package emu

import "slices"

// lifetimes are from where to where registers are named, by their slots. It is the order of the text that counts:
// a register that a loop needs until its end may be named last before that.
type lifetimes map[int32]lifetime

type lifetime struct{ first, last, words int } // statements, both of them included; words of 32 bits

// seen notes that a statement names a register.
func (l *lifetimes) seen(sym *symbol, stmt int) {
	if *l == nil {
		*l = lifetimes{}
	}
	t, ok := (*l)[sym.slot]
	if !ok {
		t = lifetime{first: stmt, words: sym.vec * max(1, sym.typ.Size()/4)}
	}
	t.first, t.last = min(t.first, stmt), max(t.last, stmt)
	(*l)[sym.slot] = t
}

// most returns how many words are held at a time at most.
func (l lifetimes) most() int {
	type change struct{ stmt, words int }
	var changes []change
	for _, t := range l {
		changes = append(changes, change{t.first, t.words}, change{t.last + 1, -t.words})
	}
	slices.SortFunc(changes, func(a, b change) int {
		if a.stmt != b.stmt {
			return a.stmt - b.stmt
		}
		return a.words - b.words // what ends makes room for what begins
	})
	held, most := 0, 0
	for _, c := range changes {
		held += c.words
		most = max(most, held)
	}
	return most
}
