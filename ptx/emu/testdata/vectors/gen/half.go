package main

// halves returns the families of f16 and bf16 arithmetic, scalar and packed.
func halves() []*family {
	var all []*family
	def := func(name string, n int, doc string) *family {
		f := newFamily(name, "7.8", "sm_90", n, doc)
		all = append(all, f)
		return f
	}

	f := def("f16_special", 576, "f16 arithmetic over every pair of special values").in("a", "f16", "special 1").in("b", "f16", "special 24")
	f.op("f16", "add.f16 d, a, b;", "sub.f16 d, a, b;", "mul.f16 d, a, b;", "add.ftz.f16 d, a, b;", "mul.ftz.f16 d, a, b;", "add.sat.f16 d, a, b;", "min.f16 d, a, b;", "max.f16 d, a, b;", "min.NaN.f16 d, a, b;", "max.ftz.f16 d, a, b;",
		"max.xorsign.abs.f16 d, a, b;", "fma.rn.f16 d, a, b, a;")

	f = def("f16_mix", 256, "f16 arithmetic over any bits").in("a", "f16", "mix 1").in("b", "f16", "mix 2").in("c", "f16", "mix 3").in("x", "f16", "mask 4 0x8FFF 0x3000").in("y", "f16", "mask 5 0x8FFF 0x3000").in("z", "f16", "mask 6 0x9FFF 0x2000")
	f.op("f16", "add.rn.f16 d, x, y;", "sub.rn.f16 d, x, z;", "mul.rn.f16 d, x, y;", "mul.rn.f16 d, z, z;", "fma.rn.f16 d, x, y, z;", "fma.rn.f16 d, a, b, c;", "fma.rn.ftz.f16 d, a, b, c;", "fma.rn.sat.f16 d, x, y, z;", "fma.rn.ftz.sat.f16 d, a, b, c;",
		"fma.rn.relu.f16 d, x, y, z;", "fma.rn.ftz.relu.f16 d, a, b, c;", "neg.f16 d, a;", "abs.f16 d, a;", "neg.ftz.f16 d, a;", "abs.ftz.f16 d, a;", "mul.ftz.sat.f16 d, a, b;")
	f.ulp("f16", 3, "0", "ex2.approx.f16 d, x;")
	f.ulp("f16", 2, "0.001", "tanh.approx.f16 d, x;")

	f = def("bf16_special", 576, "bf16 arithmetic over every pair of special values").in("a", "bf16", "special 1").in("b", "bf16", "special 24")
	f.op("bf16", "add.bf16 d, a, b;", "sub.bf16 d, a, b;", "mul.bf16 d, a, b;", "min.bf16 d, a, b;", "max.bf16 d, a, b;", "max.NaN.bf16 d, a, b;", "min.xorsign.abs.bf16 d, a, b;", "fma.rn.bf16 d, a, b, a;")

	f = def("bf16_mix", 256, "bf16 arithmetic over any bits").in("a", "bf16", "mix 11").in("b", "bf16", "mix 12").in("c", "bf16", "mix 13").in("x", "bf16", "mask 14 0x80FF 0x3F00").in("y", "bf16", "mask 15 0x81FF 0x3E00")
	f.op("bf16", "add.rn.bf16 d, x, y;", "sub.rn.bf16 d, x, y;", "mul.rn.bf16 d, x, y;", "mul.rn.bf16 d, a, b;", "fma.rn.bf16 d, x, y, x;", "fma.rn.bf16 d, a, b, c;", "fma.rn.relu.bf16 d, x, y, c;", "neg.bf16 d, a;", "abs.bf16 d, a;")
	f.ulp("bf16", 2, "0", "ex2.approx.ftz.bf16 d, x;")
	f.ulp("bf16", 2, "0.004", "tanh.approx.bf16 d, x;")

	f = def("half_packed", 256, "f16x2 and bf16x2 arithmetic").in("a", "u32", "mix 21").in("b", "u32", "mix 22").in("c", "u32", "mix 23").in("x", "u32", "mask 24 0x8FFF8FFF 0x30003000").in("y", "u32", "mask 25 0x80FF80FF 0x3F003F00")
	f.op("u32", each([]string{"add.%s d, a, b;", "sub.%s d, a, b;", "mul.%s d, a, b;", "fma.rn.%s d, a, b, c;", "fma.rn.relu.%s d, a, b, c;", "neg.%s d, a;", "abs.%s d, a;", "min.%s d, a, b;", "max.NaN.%s d, a, b;", "fma.rn.%s d, x, y, x;"}, "f16x2", "bf16x2")...)
	f.op("u32", "add.sat.f16x2 d, x, x;", "mul.ftz.f16x2 d, a, b;", "fma.rn.sat.f16x2 d, x, x, x;", "min.ftz.f16x2 d, a, b;", "max.xorsign.abs.f16x2 d, a, b;", "min.xorsign.abs.bf16x2 d, a, b;")
	return all
}
