package bpf

import "strings"

// An Addition is of a number that is known of a site to a part of a map's value.
type Addition struct {
	Map int // its index in [Env.Maps]
	// Slot is, where the site says where the value is, 1 + the use in Report.Slots.
	Slot int
	// Lookup is the call that found the value; nil: it is that of a map that is Direct.
	Lookup *MapCall
	Offset int64 // in the value
	Bytes  int   // 4 or 8
	// Field is the field of the context that is added, by its index; -1: Number is.
	Field  int
	Number int64
}

// Additions returns what the program does, if that is the same in each run and nothing but
// additions whose results nobody reads: of numbers that it has, or fields of the context. Lookups
// are of its values only; what they find is for the caller to judge.
func (v *Verified) Additions() (list []Addition, ok bool) {
	if v.fails || v.never {
		return nil, false
	}
	held := make(map[reg]Addition) // in registers: fields, numbers, or addresses of values
	hold := func(x arg) (a Addition, ok bool) {
		switch x.kind {
		case aImm:
			return Addition{Map: -1, Field: -1, Number: x.v}, true
		case aField:
			return Addition{Map: -1, Field: int(x.m)}, true
		case aSlot:
			return Addition{Map: int(x.m), Slot: int(x.v) + 1}, true
		case aMap:
			return Addition{Map: int(x.m), Offset: x.v}, true
		case aReg:
			a, ok = held[x.r]
		}
		return a, ok
	}
	for i := range v.nodes {
		n := &v.nodes[i]
		if n.dead {
			continue
		}
		switch n.kind {
		case nLabel, nResult:
		case nBranch:
			return list, len(list) > 0 && n.guard == noReg && n.label == labelDone
		case nInst:
			// What is not moved as a whole nobody adds, nor adds to.
			delete(held, n.dst)
			if n.op == "mov.b64" || n.op == "cvt.u32.u64" {
				if a, ok := hold(n.args[0]); ok && n.guard == noReg {
					held[n.dst] = a
				}
			}
		case nCall:
			if !n.call.op.helper.Pure || n.call.op.helper.Ret != RetValue {
				return nil, false
			}
			held[n.dst] = Addition{Map: n.call.info.Map, Lookup: &MapCall{n.call.op.id, &n.call.info}}
		case nAtomic:
			to, known := hold(n.base)
			what, constant := hold(n.args[0])
			if !n.adds() || !known || to.Map < 0 || !constant || what.Map >= 0 {
				return nil, false
			}
			to.Offset += n.off
			to.Field, to.Number, to.Bytes = what.Field, what.Number, 4
			if strings.HasSuffix(n.op, "64") {
				to.Bytes = 8
			}
			list = append(list, to)
		default:
			return nil, false
		}
	}
	return nil, false
}
