package emu

// Loops over whole warps for the hottest operations. Each must compute what its
// scalar function does (TestFastLoops compares them); the machine uses it when all
// 32 lanes are active.
type (
	vec1 func(d, a *lanes)
	vec2 func(d, a, b *lanes)
	vec3 func(d, a, b, c *lanes)
)

var fast1 = map[string]vec1{
	"mov.32": func(d, a *lanes) { *d = *a },
	"mov.64": func(d, a *lanes) { *d = *a },
	"cvt.u64.u32": func(d, a *lanes) {
		for i := range d {
			d[i] = uint64(uint32(a[i]))
		}
	},
	"cvt.s64.s32": func(d, a *lanes) {
		for i := range d {
			d[i] = uint64(int64(int32(a[i])))
		}
	},
}

var fast2 = map[string]vec2{
	"add.32": func(d, a, b *lanes) {
		for i := range d {
			d[i] = uint64(uint32(a[i] + b[i]))
		}
	},
	"add.64": func(d, a, b *lanes) {
		for i := range d {
			d[i] = a[i] + b[i]
		}
	},
	"sub.32": func(d, a, b *lanes) {
		for i := range d {
			d[i] = uint64(uint32(a[i] - b[i]))
		}
	},
	"sub.64": func(d, a, b *lanes) {
		for i := range d {
			d[i] = a[i] - b[i]
		}
	},
	"mul.lo.32": func(d, a, b *lanes) {
		for i := range d {
			d[i] = uint64(uint32(a[i]) * uint32(b[i]))
		}
	},
	"mul.lo.64": func(d, a, b *lanes) {
		for i := range d {
			d[i] = a[i] * b[i]
		}
	},
	"mul.wide.s32": func(d, a, b *lanes) {
		for i := range d {
			d[i] = uint64(int64(int32(a[i])) * int64(int32(b[i])))
		}
	},
	"mul.wide.u32": func(d, a, b *lanes) {
		for i := range d {
			d[i] = uint64(uint32(a[i])) * uint64(uint32(b[i]))
		}
	},
	"and": func(d, a, b *lanes) {
		for i := range d {
			d[i] = a[i] & b[i]
		}
	},
	"or": func(d, a, b *lanes) {
		for i := range d {
			d[i] = a[i] | b[i]
		}
	},
	"xor": func(d, a, b *lanes) {
		for i := range d {
			d[i] = a[i] ^ b[i]
		}
	},
	"shl.32": func(d, a, b *lanes) {
		for i := range d {
			d[i] = uint64(uint32(a[i]) << uint32(b[i]))
		}
	},
	"shl.64": func(d, a, b *lanes) {
		for i := range d {
			d[i] = a[i] << uint32(b[i])
		}
	},
	"shr.u32": func(d, a, b *lanes) {
		for i := range d {
			d[i] = uint64(uint32(a[i]) >> uint32(b[i]))
		}
	},
	"shr.s32": func(d, a, b *lanes) {
		for i := range d {
			d[i] = uint64(uint32(int32(a[i]) >> uint32(b[i])))
		}
	},
	"shr.u64": func(d, a, b *lanes) {
		for i := range d {
			d[i] = a[i] >> uint32(b[i])
		}
	},
	"add.f32": func(d, a, b *lanes) {
		for i := range d {
			d[i] = canon32(f32(a[i]) + f32(b[i]))
		}
	},
	"sub.f32": func(d, a, b *lanes) {
		for i := range d {
			d[i] = canon32(f32(a[i]) - f32(b[i]))
		}
	},
	"mul.f32": func(d, a, b *lanes) {
		for i := range d {
			d[i] = canon32(f32(a[i]) * f32(b[i]))
		}
	},
}

var fast3 = map[string]vec3{
	"mad.lo.32": func(d, a, b, c *lanes) {
		for i := range d {
			d[i] = uint64(uint32(a[i])*uint32(b[i]) + uint32(c[i]))
		}
	},
	"mad.lo.64": func(d, a, b, c *lanes) {
		for i := range d {
			d[i] = a[i]*b[i] + c[i]
		}
	},
	"mad.wide.s32": func(d, a, b, c *lanes) {
		for i := range d {
			d[i] = uint64(int64(int32(a[i]))*int64(int32(b[i]))) + c[i]
		}
	},
	"fma.f32": func(d, a, b, c *lanes) {
		for i := range d {
			d[i] = canon32(fma32(f32(a[i]), f32(b[i]), f32(c[i])))
		}
	},
}

// fastCmp holds whole-warp comparisons by operator and type.
var fastCmp = map[string]func(a, b *lanes) uint32{
	".eq.32": func(a, b *lanes) (m uint32) {
		for i := range a {
			m |= bit(uint32(a[i]) == uint32(b[i])) << i
		}
		return m
	},
	".ne.32": func(a, b *lanes) (m uint32) {
		for i := range a {
			m |= bit(uint32(a[i]) != uint32(b[i])) << i
		}
		return m
	},
	".lt.s32": func(a, b *lanes) (m uint32) {
		for i := range a {
			m |= bit(int32(a[i]) < int32(b[i])) << i
		}
		return m
	},
	".ge.s32": func(a, b *lanes) (m uint32) {
		for i := range a {
			m |= bit(int32(a[i]) >= int32(b[i])) << i
		}
		return m
	},
	".gt.s32": func(a, b *lanes) (m uint32) {
		for i := range a {
			m |= bit(int32(a[i]) > int32(b[i])) << i
		}
		return m
	},
	".lt.u32": func(a, b *lanes) (m uint32) {
		for i := range a {
			m |= bit(uint32(a[i]) < uint32(b[i])) << i
		}
		return m
	},
	".ge.u32": func(a, b *lanes) (m uint32) {
		for i := range a {
			m |= bit(uint32(a[i]) >= uint32(b[i])) << i
		}
		return m
	},
	".lt.f32": func(a, b *lanes) (m uint32) {
		for i := range a {
			m |= bit(f32(a[i]) < f32(b[i])) << i
		}
		return m
	},
	".gt.f32": func(a, b *lanes) (m uint32) {
		for i := range a {
			m |= bit(f32(a[i]) > f32(b[i])) << i
		}
		return m
	},
}

func bit(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// canon32 returns the bits of v, the canonical ones for a NaN.
func canon32(v float32) uint64 {
	if v != v {
		return fmtF32.nan
	}
	return bits32(v)
}
