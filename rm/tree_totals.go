package rm

import (
	"cmp"
	"slices"
)

// TotalKey is what memory is counted by.
type TotalKey struct {
	PID      int32 // process that allocated it; 0: all processes
	Kind     Kindred
	Aperture Aperture
}

// Total counts objects and, for those that are memory, bytes.
type Total struct {
	TotalKey
	Objects   int // living, other handles of the same memory not counted
	Made      int // ever made
	Bytes     uint64
	PeakBytes uint64
	PeakTime  int64 // when PeakBytes was first reached
}

// backing is what the handles of one object share.
type backing struct {
	keys  [2]TotalKey // of the process, and of all
	bytes uint64
	refs  int
}

// account counts an object: as a new one, or as another handle of an old one.
func (t *Tree) account(o *Object, b *backing) {
	if b != nil {
		b.refs++
		o.back = b
		return
	}
	b = &backing{refs: 1}
	if o.Kind == Memory || o.Kind == Fabric {
		b.bytes = o.Attr.Size
	}
	key := TotalKey{o.PID, o.Kind, o.Attr.Aperture}
	b.keys = [2]TotalKey{key, {0, key.Kind, key.Aperture}}
	o.back = b
	for _, k := range b.keys {
		x := t.totals[k]
		if x == nil {
			x = &Total{TotalKey: k}
			t.totals[k] = x
		}
		x.Objects++
		x.Made++
		x.Bytes += b.bytes
		if x.Bytes > x.PeakBytes {
			x.PeakBytes, x.PeakTime = x.Bytes, o.Born
		}
	}
}

// release drops an object's share of what it stands for. Memory that was
// exported or duplicated lives as long as any handle of it.
func (t *Tree) release(o *Object) {
	b := o.back
	if b == nil {
		return
	}
	o.back = nil
	if b.refs--; b.refs > 0 {
		return
	}
	for _, k := range b.keys {
		t.totals[k].Objects--
		t.totals[k].Bytes -= b.bytes
	}
}

// Totals returns the counts of one process, or of all with pid 0, by kind and
// aperture.
func (t *Tree) Totals(pid int32) []Total {
	var out []Total
	for k, x := range t.totals {
		if k.PID == pid {
			out = append(out, *x)
		}
	}
	slices.SortFunc(out, func(a, b Total) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Aperture, b.Aperture))
	})
	return out
}
