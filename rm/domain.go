package rm

// Domain names a member's values: plain ones, and bit ranges with values of
// their own.
type Domain struct {
	Prefix string // what the driver's constants start with, taken off the names: "NVOS32_ATTR_"
	Bound  bool   // assigned by hand or by an enum type; false: found by the constants' spelling, may be incomplete
	Values []Value
	Ranges []BitRange
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
