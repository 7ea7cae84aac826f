package emu

import "math/bits"

// A matrixUnit is how a GPU's matrix unit ("tensor core") adds products to c. No
// document of NVIDIA's says it; what it computes has been measured: Xie et al.,
// "MMA-Sim", arXiv 2511.10909; Khattak and Mikaitis, arXiv 2512.07004, who also publish
// what GPUs computed.
//
//  1. Products are exact. A subnormal operand has its format's least exponent.
//  2. The products of a group and c are aligned to the largest exponent among them,
//     that of a product being the sum of its operands'. What lies more than frac bits
//     below is cut off.
//  3. Their sum is exact. It is cut off to f32, or rounded to the nearest f16.
//  4. The sum of a group is the c of the next.
type matrixUnit struct {
	frac  int // fraction bits that alignment keeps
	group int // products added at once
	out   int // fraction bits of an f32 sum
	// below is how far below the sum's least normal exponent numbers are still aligned
	// to the largest of them; smaller ones are aligned to that.
	below int
	// unpacked marks numbers of 8 bits on GPUs that multiply none in mma: the compiler
	// converts them to f16. Each lane's four neighbours become two pairs, so the group of
	// all first pairs comes before that of the second; c is added last, by an ordinary
	// addition.
	unpacked bool
}

// noFloor as matrixUnit.below: numbers of the type never get that small.
const noFloor = 1 << 10

// matrixUnitOf returns the unit of a device whose instruction multiplies k numbers of type e. An
// error that wraps ErrNotImplemented says that it is not known how that one adds.
func matrixUnitOf(d *Device, e elemType, k int) (*matrixUnit, error) {
	eight := e.f == &fmtE4M3 || e.f == &fmtE5M2
	var u matrixUnit
	switch cc := d.Major*10 + d.Minor; cc {
	case 75, 80, 86, 87, 89:
		u = matrixUnit{frac: 24, group: 8, out: 23, below: 6}
		switch {
		case e.name == ".tf32":
			u.group = 4
		case eight && cc == 89:
			u = matrixUnit{frac: 13, group: 16, out: 13, below: noFloor}
		case eight || cc == 75 && e.f != &fmtF16:
			return nil, errf(ErrInvalid, "compute capability %d.%d does not multiply matrices of %s", d.Major, d.Minor, e.name)
		}
	case 90, 100, 120:
		u = matrixUnit{frac: 25, group: k, out: 23, below: 7}
		if eight && cc != 120 {
			u.group, u.unpacked = k/2, true
		}
	default:
		return nil, errf(ErrNotImplemented, "how compute capability %d.%d adds the products of %s", d.Major, d.Minor, e.name)
	}
	return &u, nil
}

// operand is the format in which the unit multiplies numbers of format f.
func (u *matrixUnit) operand(f *format) *format {
	if u.unpacked {
		return &fmtF16
	}
	return f
}

// unpack reads rows of k numbers of format f, in the order in which the unit adds them.
func (u *matrixUnit) unpack(v []uint64, f *format, k int) []num {
	out := make([]num, len(v))
	for i, x := range v {
		if !u.unpacked {
			out[i] = unpack(x, f)
			continue
		}
		j := i % k
		at := i - j + j/4*2 + j&1 + j&2/2*(k/2)
		out[at] = unpack(unpack(x, f).pack(&fmtF16, roundNearest), &fmtF16) // a subnormal e4m3 is a normal f16
	}
	return out
}

// sum returns c, of format f, plus the products of a's numbers of format fa with b's of
// format fb.
func (u *matrixUnit) sum(a, b []num, fa, fb *format, c uint64, f *format) uint64 {
	s, frac := c, int(u.operand(fa).frac+u.operand(fb).frac)
	if u.unpacked {
		s = 0
	}
	for len(a) > 0 {
		n := min(u.group, len(a))
		s = u.pack(u.add(a[:n], b[:n], frac, unpack(s, f), f), f)
		a, b = a[n:], b[n:]
	}
	if u.unpacked {
		return softAdd(unpack(c, f), unpack(s, f), roundNearest).pack(f, roundNearest)
	}
	return s
}

// add returns the sum of one group, whose products have frac fraction bits.
func (u *matrixUnit) add(a, b []num, frac int, c num, f *format) num {
	top := 1 - f.bias() - u.below
	special := c.class >= numInf
	if c.lo != 0 {
		top = max(top, c.exp+int(f.frac))
	}
	for i := range a {
		special = special || a[i].class >= numInf || b[i].class >= numInf
		if a[i].lo != 0 && b[i].lo != 0 {
			top = max(top, a[i].exp+b[i].exp+frac)
		}
	}
	if special {
		return addSpecial(a, b, c)
	}
	last := top - u.frac // exponent of the last bit that is kept
	s := aligned(c.lo, c.exp-last, c.neg)
	for i := range a {
		s += aligned(a[i].lo*b[i].lo, a[i].exp+b[i].exp-last, a[i].neg != b[i].neg)
	}
	n := fromInt(uint64(s), true)
	n.exp = last
	return n
}

// aligned returns v·2^shift, cut off, with its sign.
func aligned(v uint64, shift int, neg bool) int64 {
	if shift >= 0 {
		v <<= shift
	} else {
		v >>= -shift
	}
	if neg {
		return -int64(v)
	}
	return int64(v)
}

// addSpecial is the sum when an infinity or a NaN is among its numbers.
func addSpecial(a, b []num, c num) num {
	for i := range a {
		c = softAdd(c, softMul(a[i], b[i]), roundNearest)
	}
	return c
}

// pack converts a sum to f. A zero is positive.
func (u *matrixUnit) pack(n num, f *format) uint64 {
	v := n.pack(f, roundNearest)
	if f == &fmtF32 && n.class == numFinite {
		if n.exp+bits.Len64(n.lo) > f.bias()+1 {
			return num{class: numInf, neg: n.neg}.pack(f, roundNearest)
		}
		v = n.pack(f, roundZero) &^ (1<<(int(f.frac)-u.out) - 1)
	}
	if v == f.signBit() {
		return 0
	}
	return v
}
