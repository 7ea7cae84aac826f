package rm

// Domain names a member's values: plain ones, and bit ranges with values of
// their own.
type Domain struct {
	Prefix string     // what the driver's constants start with, taken off the names: "NVOS32_ATTR_"
	Bound  bool       // assigned by hand or by an enum type; false: found by the constants' spelling, may be incomplete
	Values []Value    // sorted by V
	Ranges []BitRange // sorted by Lo
	Beside []Beside   // what the member called data beside an index means, by the index's name
}

// Beside names the values of an index's data: the lists of the GET_INFO
// controls are pairs of these.
type Beside struct {
	Of     string  // name of the index, as in Domain.Values
	Values []Value // sorted by V
}

// Value is a named number.
type Value struct {
	Name string
	V    uint64
}

// BitRange is a named range of bits, hi:lo inclusive, with the names of what it
// may hold.
type BitRange struct {
	Name   string
	Hi, Lo uint8
	Values []Value // sorted by V
}

// lookup finds the first name of v in a sorted list.
func lookup(l []Value, v uint64) (string, bool) {
	lo, hi := 0, len(l)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if l[mid].V < v {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(l) && l[lo].V == v {
		return l[lo].Name, true
	}
	return "", false
}

// Name returns the name of a plain value.
func (d *Domain) Name(v uint64) (string, bool) { return lookup(d.Values, v) }

// DataName returns the name that v has beside the index of that name.
func (d *Domain) DataName(index string, v uint64) (string, bool) {
	for i := range d.Beside {
		if d.Beside[i].Of == index {
			return lookup(d.Beside[i].Values, v)
		}
	}
	return "", false
}

// Of returns what the range holds in v.
func (r *BitRange) Of(v uint64) uint64 {
	if r.Hi < r.Lo || r.Lo > 63 {
		return 0
	}
	return v >> r.Lo & (2<<(r.Hi-r.Lo) - 1)
}

// mask returns the bits of the range.
func (r *BitRange) mask() uint64 {
	if r.Hi < r.Lo || r.Lo > 63 {
		return 0
	}
	return (2<<(r.Hi-r.Lo) - 1) << r.Lo
}

// valueName returns the name of what the range holds.
func (r *BitRange) valueName(v uint64) (string, bool) { return lookup(r.Values, v) }
