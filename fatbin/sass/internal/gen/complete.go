package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// completeShapes adds the operands that asking missed. A key bit that lies in the field
// of an operand is part of a register's number: where the operand is there with the bit
// one way, it is there with the bit the other way, too. What nvdisasm was asked for has
// one number in each field, so that the words with the bit the other way were seen only
// where the field names nothing.
func completeShapes(key string, shapes []string) ([]string, error) {
	bits, err := parseBits(key)
	if err != nil {
		return nil, err
	}
	byValue := make(map[uint64]string) // operands
	for _, l := range shapes {
		ops, vals, ok := strings.Cut(l, " = ")
		if !ok {
			return nil, fmt.Errorf("shape %q", l)
		}
		for part := range strings.SplitSeq(vals, ",") {
			lo, hi, two := strings.Cut(part, "-")
			from, err := strconv.ParseUint(lo, 16, 64)
			to := from
			if err == nil && two {
				to, err = strconv.ParseUint(hi, 16, 64)
			}
			if err != nil {
				return nil, err
			}
			for v := from; v <= to; v++ {
				byValue[v] = ops
			}
		}
	}
	for changed := true; changed; {
		changed = false
		for _, v := range slices.Sorted(maps.Keys(byValue)) {
			for o := range strings.FieldsSeq(byValue[v]) {
				mask := keyMask(bits, o)
				// All values that differ in bits of the field.
				for other := range byValue {
					if other == v || (other^v)&^mask != 0 {
						continue
					}
					if more := withOperand(byValue[other], o, byValue[v]); more != byValue[other] {
						byValue[other] = more
						changed = true
					}
				}
			}
		}
	}
	values := make(map[string][]uint64)
	for _, v := range slices.Sorted(maps.Keys(byValue)) {
		values[byValue[v]] = append(values[byValue[v]], v)
	}
	var out []string
	for _, ops := range slices.Sorted(maps.Keys(values)) {
		var list []string
		for _, v := range values[ops] {
			list = append(list, strconv.FormatUint(v, 16))
		}
		out = append(out, ops+" = "+strings.Join(list, ","))
	}
	return out, nil
}

// keyMask returns the bits of a key's value that lie in the field of an operand.
func keyMask(bits []int, operand string) uint64 {
	f, ok := fieldOf(operand)
	if !ok {
		return 0
	}
	at, length, _ := strings.Cut(f[strings.IndexByte(f, '@')+1:], "+")
	pos, err1 := strconv.Atoi(at)
	n, err2 := strconv.Atoi(length)
	var mask uint64
	for i, b := range bits {
		if err1 == nil && err2 == nil && b >= pos && b < pos+n {
			mask |= 1 << i
		}
	}
	return mask
}

// fieldOf returns kind and field of an operand, "R@16+8" of "rw:R@16+8*2"; false if no
// field names its register.
func fieldOf(operand string) (string, bool) {
	_, rest, _ := strings.Cut(operand, ":")
	f, _, _ := strings.Cut(rest, "*")
	return f, strings.Contains(f, "@")
}

// withOperand returns operands with one of full that they lack. Those that no field
// names are what asking took it for.
func withOperand(ops, operand, full string) string {
	role, _, _ := strings.Cut(operand, ":")
	want, ok := fieldOf(operand)
	if !ok {
		return ops
	}
	var fields []string
	for o := range strings.FieldsSeq(ops) {
		f, ok := fieldOf(o)
		if r, _, _ := strings.Cut(o, ":"); ok && f == want && r == role {
			return ops
		}
		if ok {
			fields = append(fields, o)
		}
	}
	all := strings.Fields(full)
	if ops == "none" || !slices.ContainsFunc(fields, func(o string) bool { return !slices.Contains(all, o) }) {
		return full
	}
	return ops + " " + operand
}
