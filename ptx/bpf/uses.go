package bpf

import (
	"slices"

	"github.com/cilium/ebpf/asm"
)

// uses says how the program uses each map of Env.Maps, by its code as it is: what a
// compiler would leave out counts, too. [Report].Maps is that of the code that is left.
func (a *analysis) uses() []MapUse {
	list := make([]MapUse, len(a.env.Maps))
	var fx effect
	for i, s := range a.states() {
		o := &a.ops[i]
		a.replay(s, i, &fx)
		switch o.kind {
		case opMap, opDirect:
			list[o.m].Used = true
		case opLoad, opStore, opAtomic:
			if fx.acc.kind == kValue {
				for _, m := range fx.acc.maps {
					list[m].access(o, &fx.acc)
				}
			}
		case opHelper:
			useCall(list, o, &fx)
		}
	}
	return list
}

// access notes a load, a store or an atomic operation.
func (u *MapUse) access(o *op, acc *access) {
	u.Used = true
	x := AddRange{acc.lo, acc.hi, acc.size}
	switch {
	case o.kind == opLoad:
		u.Loads = true
	case o.kind == opStore:
		u.Stores = true
	case o.atomic == asm.AddAtomic && acc.size >= 4:
		u.adds(x)
	case o.atomic == asm.OrAtomic && acc.size >= 4:
		u.merges(0, x)
	default:
		u.Atomics, u.Strays = true, true
	}
}

// adds notes an addition.
func (u *MapUse) adds(x AddRange) {
	if !slices.Contains(u.Adds, x) {
		u.Adds = append(u.Adds, x)
	}
}

// merges notes an operation that is one of Merges.
func (u *MapUse) merges(helper int32, x AddRange) {
	u.Atomics = true
	if m := (Merge{helper, x}); !slices.Contains(u.Merges, m) {
		u.Merges = append(u.Merges, m)
	}
}

// useCall notes what a call of a helper does with maps.
func useCall(list []MapUse, o *op, fx *effect) {
	if fx.m >= 0 {
		list[fx.m].called(MapCall{o.id, fx.info(o)}, o.helper.Ret == RetValue)
	}
	for k := range o.helper.Args {
		arg := &fx.args[k]
		if arg.acc.size == 0 || arg.acc.kind != kValue {
			continue
		}
		for _, m := range arg.acc.maps {
			list[m].passed(o.id, arg.spec.Kind, AddRange{arg.acc.lo, arg.acc.hi, arg.acc.size})
		}
	}
}

// called notes a call of a helper that is handed the map, which may return values of it.
func (u *MapUse) called(c MapCall, lookup bool) {
	u.Used = true
	u.Calls = append(u.Calls, c)
	u.Lookups = u.Lookups || lookup
	u.Helpers = u.Helpers || !lookup
}

// passed notes that a helper takes a pointer to a value.
func (u *MapUse) passed(helper int32, kind ArgKind, x AddRange) {
	u.Used = true
	switch kind {
	case ArgShared:
		u.merges(helper, x)
	case ArgWrite:
		u.Stores = true
	default:
		u.Loads = true
	}
}
