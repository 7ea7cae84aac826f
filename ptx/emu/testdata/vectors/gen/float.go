package main

// floats returns the families of single and double precision arithmetic.
func floats() []*family {
	var all []*family
	def := func(name, version, target string, n int, doc string) *family {
		f := newFamily(name, version, target, n, doc)
		all = append(all, f)
		return f
	}
	modes := list("rn rz rm rp")

	f := def("f32_special", "6.4", "sm_60", 576, "add, sub, mul, min, max over every pair of special values").in("a", "f32", "special 1").in("b", "f32", "special 24")
	f.op("f32", "add.f32 d, a, b;", "sub.f32 d, a, b;", "mul.f32 d, a, b;", "add.ftz.f32 d, a, b;", "mul.ftz.f32 d, a, b;", "min.f32 d, a, b;", "max.f32 d, a, b;")

	// Inputs: x, y, z of similar size, so that sums cancel and round; s, t whose products are near the subnormal border; a, b, c of any bits.
	inputs := func(f *family) *family {
		return f.in("a", "f32", "mix 1").in("b", "f32", "mix 2").in("c", "f32", "mix 3").
			in("x", "f32", "mask 4 0x81FFFFFF 0x3E000000").in("y", "f32", "mask 5 0x81FFFFFF 0x3E000000").in("z", "f32", "mask 6 0x8FFFFFFF 0x30000000").
			in("s", "f32", "mask 7 0x83FFFFFF 0x1E000000").in("t", "f32", "mask 8 0x83FFFFFF 0x1E000000")
	}
	f = inputs(def("f32_round", "6.4", "sm_60", 128, "add, sub, mul, fma of f32 in every rounding mode"))
	f.op("f32", each([]string{"add.%s.f32 d, x, y;", "add.%s.f32 d, x, z;", "sub.%s.f32 d, x, y;", "mul.%s.f32 d, x, y;", "mul.%s.f32 d, s, t;", "fma.%s.f32 d, x, y, z;", "fma.%s.f32 d, s, t, s;", "mad.%s.f32 d, x, y, z;"}, modes...)...)

	f = inputs(def("f32_mix", "6.4", "sm_60", 128, "f32 arithmetic over any bits, with flushing and saturation"))
	f.op("f32", each([]string{"add.%s d, a, b;", "sub.%s d, a, b;", "mul.%s d, a, b;"}, "rn.f32", "rz.f32", "rn.ftz.f32", "rm.ftz.f32", "rn.sat.f32", "rp.ftz.sat.f32")...)
	f.op("f32", each([]string{"fma.%s d, a, b, c;", "fma.%s d, s, t, c;"}, "rn.f32", "rp.f32", "rn.ftz.f32", "rz.sat.f32", "rn.ftz.sat.f32")...)
	f.op("f32", "add.sat.f32 d, x, y;", "mul.sat.f32 d, x, y;", "add.f32 d, a, 0f3F800000;", "mul.ftz.f32 d, s, t;", "sub.ftz.f32 d, s, t;", "mul.ftz.sat.f32 d, s, t;")

	f = inputs(def("f32_div", "6.4", "sm_60", 128, "div, rcp, sqrt of f32 in every rounding mode"))
	f.op("f32", each([]string{"div.%s.f32 d, x, y;", "div.%s.f32 d, a, b;", "div.%s.f32 d, s, z;", "rcp.%s.f32 d, x;", "rcp.%s.f32 d, a;", "sqrt.%s.f32 d, a;", ".reg .f32 e;\nabs.f32 e, x;\nsqrt.%s.f32 d, e;"}, modes...)...)
	f.op("f32", "div.rn.ftz.f32 d, a, b;", "rcp.rn.ftz.f32 d, a;", "sqrt.rn.ftz.f32 d, a;", "rcp.rz.ftz.f32 d, s;")

	f = def("f32_approx", "7.0", "sm_75", 256, "approximate f32 functions over their ordinary range").
		in("x", "f32", "uniform 11 -3.1 3.1").in("p", "f32", "uniform 12 0.001 1000").in("q", "f32", "mask 13 0x87FFFFFF 0x3C000000").in("e", "f32", "uniform 14 -30 30")
	f.ulp("f32", 2, "0", "div.approx.f32 d, x, q;", "div.full.f32 d, x, q;", "div.approx.ftz.f32 d, x, q;", "div.full.ftz.f32 d, p, q;", "rcp.approx.f32 d, q;", "rcp.approx.ftz.f32 d, q;",
		"sqrt.approx.f32 d, p;", "sqrt.approx.ftz.f32 d, p;", "rsqrt.approx.f32 d, p;", "rsqrt.approx.ftz.f32 d, p;")
	f.ulp("f32", 4, "0", "ex2.approx.f32 d, e;", "ex2.approx.ftz.f32 d, e;")
	f.ulp("f32", 4, "5e-7", "lg2.approx.f32 d, p;", "lg2.approx.ftz.f32 d, p;")
	f.ulp("f32", 2, "7e-7", "sin.approx.f32 d, x;", "cos.approx.f32 d, x;", "sin.approx.ftz.f32 d, x;", "cos.approx.ftz.f32 d, x;")
	f.ulp("f32", 8192, "0", "tanh.approx.f32 d, x;")

	f = def("f32_approx_special", "7.0", "sm_75", 64, "approximate f32 functions of zeros, infinities, NaNs, subnormals, powers of two").
		in("a", "f32", "list 1 0 0x80000000 0x7f800000 0xff800000 0x7fc00000 0xffc12345 0x7f800001 1 0x80000001 0x007fffff 0x807fffff 0x00800000 0x80800000 0x3f800000 0xbf800000 0x40000000").
		in("b", "f32", "list 4 0x3f800000 0 0x7f800000 0x80000000")
	f.ulp("f32", 2, "0", "rcp.approx.f32 d, a;", "rcp.approx.ftz.f32 d, a;", "sqrt.approx.f32 d, a;", "sqrt.approx.ftz.f32 d, a;", "rsqrt.approx.f32 d, a;", "rsqrt.approx.ftz.f32 d, a;",
		"ex2.approx.f32 d, a;", "ex2.approx.ftz.f32 d, a;", "div.full.f32 d, a, b;", "div.approx.ftz.f32 d, a, b;", "div.approx.f32 d, a, b;")
	f.ulp("f32", 4, "5e-7", "lg2.approx.f32 d, a;", "lg2.approx.ftz.f32 d, a;")
	f.ulp("f32", 2, "7e-7", "sin.approx.f32 d, a;", "cos.approx.f32 d, a;", "sin.approx.ftz.f32 d, a;", "cos.approx.ftz.f32 d, a;")
	f.ulp("f32", 8192, "0", "tanh.approx.f32 d, a;")

	f = def("f32_minmax", "7.2", "sm_86", 576, "min and max of f32 with NaN, flush, xorsign.abs; neg, abs, copysign, testp").in("a", "f32", "special 1").in("b", "f32", "special 24")
	f.op("f32", each([]string{"min.%s d, a, b;", "max.%s d, a, b;"}, "ftz.f32", "NaN.f32", "ftz.NaN.f32", "xorsign.abs.f32", "NaN.xorsign.abs.f32")...)
	f.op("f32", "copysign.f32 d, a, b;")
	f.op("pred", each([]string{"testp.%s.f32 d, a;"}, list("finite infinite number notanumber normal subnormal")...)...)

	f = def("f32_unary", "6.4", "sm_60", 64, "neg and abs of f32 with and without flush; moves keep NaN bits").in("a", "f32", "special 1").in("b", "f32", "mix 9")
	f.op("f32", "neg.f32 d, a;", "abs.f32 d, a;", "neg.ftz.f32 d, a;", "abs.ftz.f32 d, a;", "neg.f32 d, b;", "abs.f32 d, b;", "mov.f32 d, a;", "mov.f32 d, 0f7FA00001;")

	f = def("f64_special", "6.4", "sm_60", 576, "add, mul, min, max of f64 over every pair of special values").in("a", "f64", "special 1").in("b", "f64", "special 24")
	f.op("f64", "add.f64 d, a, b;", "mul.f64 d, a, b;", "min.f64 d, a, b;", "max.f64 d, a, b;")
	f.op("pred", each([]string{"testp.%s.f64 d, a;"}, list("finite infinite number notanumber normal subnormal")...)...)

	inputs64 := func(f *family) *family {
		return f.in("a", "f64", "mix 21").in("b", "f64", "mix 22").in("x", "f64", "mask 24 0x803FFFFFFFFFFFFF 0x3FC0000000000000").in("y", "f64", "mask 25 0x803FFFFFFFFFFFFF 0x3FC0000000000000").
			in("z", "f64", "mask 26 0x83FFFFFFFFFFFFFF 0x3C00000000000000").in("s", "f64", "mask 27 0x807FFFFFFFFFFFFF 0x1FC0000000000000").in("t", "f64", "mask 28 0x807FFFFFFFFFFFFF 0x1FC0000000000000")
	}
	f = inputs64(def("f64_round", "6.4", "sm_60", 64, "add, sub, mul, fma, div, rcp, sqrt of f64 in every rounding mode"))
	f.op("f64", each([]string{"add.%s.f64 d, x, z;", "sub.%s.f64 d, x, y;", "mul.%s.f64 d, x, y;", "mul.%s.f64 d, s, t;", "fma.%s.f64 d, x, y, z;", "fma.%s.f64 d, s, t, s;", "div.%s.f64 d, x, y;", "div.%s.f64 d, a, b;", "rcp.%s.f64 d, a;", "sqrt.%s.f64 d, a;"}, modes...)...)
	f.op("f64", "neg.f64 d, a;", "abs.f64 d, a;", "copysign.f64 d, a, b;", "mad.rn.f64 d, a, b, x;", "fma.rn.f64 d, a, b, a;", ".reg .f64 e;\nabs.f64 e, z;\nsqrt.rn.f64 d, e;")

	f = def("f64_approx", "7.0", "sm_75", 64, "approximate f64 functions: about 20 good bits").in("a", "f64", "uniform 31 0.01 1000").
		in("b", "f64", "list 1 0 0x8000000000000000 0x7ff0000000000000 0xfff0000000000000 0x7ff8000000000000 0x3ff0000000000000 0xbff0000000000000 0x4000000000000000")
	f.ulp("f64", 1<<35, "0", "rcp.approx.ftz.f64 d, a;", "rsqrt.approx.f64 d, a;", "rsqrt.approx.ftz.f64 d, a;", "rcp.approx.ftz.f64 d, b;", "rsqrt.approx.f64 d, b;", "rsqrt.approx.ftz.f64 d, b;")
	return all
}
