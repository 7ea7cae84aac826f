package main

import "fmt"

// comparisons returns the families of setp, set, selp and slct.
func comparisons() []*family {
	var all []*family
	def := func(name, version, target string, n int, doc string) *family {
		f := newFamily(name, version, target, n, doc)
		all = append(all, f)
		return f
	}
	signed := list("eq ne lt le gt ge")
	floating := list("eq ne lt le gt ge equ neu ltu leu gtu geu num nan")

	f := def("cmp_int", "6.4", "sm_60", 256, "setp of every integer type with every comparison")
	for _, w := range list("16 32 64") {
		a, b := "a"+w, "b"+w
		f.in(a, "u"+w, "special 1").in(b, "u"+w, "special 16")
		for _, c := range signed {
			f.op("pred", fmt.Sprintf("setp.%s.s%s d, %s, %s;", c, w, a, b), fmt.Sprintf("setp.%s.u%s d, %s, %s;", c, w, a, b))
		}
		for _, c := range list("lo ls hi hs") {
			f.op("pred", fmt.Sprintf("setp.%s.u%s d, %s, %s;", c, w, a, b))
		}
		f.op("pred", fmt.Sprintf("setp.eq.b%s d, %s, %s;", w, a, b), fmt.Sprintf("setp.ne.b%s d, %s, %s;", w, a, b))
	}

	f = def("cmp_bool", "6.4", "sm_60", 256, "setp with two results, a combined predicate, its negation, and the sink")
	f.in("a", "u32", "special 1").in("b", "u32", "special 16")
	for _, op := range list("and or xor") {
		for _, neg := range []string{"", "!"} {
			f.op("pred", fmt.Sprintf(".reg .pred q, r;\nsetp.gt.u32 r, a, b;\nsetp.lt.%s.s32 d|q, a, b, %sr;", op, neg),
				fmt.Sprintf(".reg .pred q, r;\nsetp.gt.u32 r, a, b;\nsetp.lt.%s.s32 q|d, a, b, %sr;", op, neg))
		}
	}
	f.op("pred", "setp.eq.s32 d|_, a, b;", "setp.eq.s32 _|d, a, b;", "setp.le.s32 d, a, 10;")

	f = def("cmp_f32", "6.4", "sm_60", 576, "setp.f32 with every comparison, plain and with subnormals flushed").in("a", "f32", "special 1").in("b", "f32", "special 24")
	for _, c := range floating {
		f.op("pred", "setp."+c+".f32 d, a, b;")
	}
	for _, c := range list("eq lt geu nan") {
		f.op("pred", "setp."+c+".ftz.f32 d, a, b;")
	}

	f = def("cmp_f64", "6.4", "sm_60", 576, "setp.f64 with every comparison").in("a", "f64", "special 1").in("b", "f64", "special 24")
	for _, c := range floating {
		f.op("pred", "setp."+c+".f64 d, a, b;")
	}

	f = def("cmp_half", "7.8", "sm_90", 576, "setp of f16, bf16 and their packed forms").in("a", "f16", "special 1").in("b", "f16", "special 24").in("e", "bf16", "special 1").in("g", "bf16", "special 24").
		in("x", "u32", "mix 61").in("y", "u32", "mix 62")
	for _, c := range list("eq ne lt geu num nan") {
		f.op("pred", "setp."+c+".f16 d, a, b;", "setp."+c+".bf16 d, e, g;")
	}
	f.op("pred", "setp.lt.ftz.f16 d, a, b;")
	for _, t := range list("f16x2 bf16x2") {
		f.op("pred", ".reg .pred q;\nsetp.lt."+t+" d|q, x, y;", ".reg .pred q;\nsetp.geu."+t+" q|d, x, y;")
	}

	f = def("cmp_set", "7.8", "sm_90", 256, "set with integer and float results, of integer and float operands, with a predicate").
		in("a", "u32", "mix 71").in("b", "u32", "mix 72").in("x", "f32", "special 1").in("y", "f32", "list 3 0 0x3f800000 0x7fc00000 0x80000000 0xc0200000 1").
		in("g", "u64", "mix 73").in("u", "f64", "mix 74").in("h", "f16", "special 1").in("k", "f16", "special 5")
	f.op("u32", each([]string{"set.lt.%s.s32 d, a, b;", "set.hi.%s.u32 d, a, b;", "set.neu.%s.f32 d, x, y;", "set.le.ftz.%s.f32 d, x, y;", "set.gt.%s.s64 d, g, 5;", "set.lt.%s.f64 d, u, 0d3FF0000000000000;"}, "u32", "s32")...)
	f.op("f32", "set.lt.f32.s32 d, a, b;", "set.geu.f32.f32 d, x, y;", "set.eq.f32.f64 d, u, u;", "set.ne.f32.u16 d, 3, 3;")
	f.op("u32", ".reg .pred q;\nsetp.lt.u32 q, a, 1000;\nset.gt.and.u32.s32 d, a, b, q;", ".reg .pred q;\nsetp.lt.u32 q, a, b;\nset.le.xor.u32.f32 d, x, y, !q;")
	f.op("u32", "set.lt.u32.f16 d, h, k;", "set.geu.s32.f16 d, h, k;")
	f.op("u16", "set.lt.u16.f16 d, h, k;", "set.nan.f16.f16 d, h, k;", "set.ge.bf16.bf16 d, h, k;")

	f = def("cmp_select", "6.4", "sm_60", 256, "selp and slct of every type").
		in("a", "u16", "mix 81").in("b", "u32", "mix 82").in("c", "u64", "mix 83").in("x", "f32", "mix 84").in("y", "f64", "mix 85").in("k", "u32", "mix 86").in("z", "f32", "special 1")
	q := ".reg .pred q;\nsetp.lt.s32 q, k, 0;\n"
	f.op("u16", each([]string{q + "selp.%s d, a, 7, q;"}, list("b16 u16 s16")...)...)
	f.op("u32", each([]string{q + "selp.%s d, b, k, q;", q + "selp.%s d, k, -1, !q;"}[:1], list("b32 u32 s32")...)...)
	f.op("u32", q+"selp.b32 d, 1, b, q;")
	f.op("u64", q+"selp.b64 d, c, 5, q;")
	f.op("f32", q+"selp.f32 d, x, z, q;")
	f.op("f64", q+"selp.f64 d, y, 0d4000000000000000, q;")
	f.op("u16", "slct.u16.s32 d, a, 9, k;", "slct.b16.f32 d, a, 9, z;")
	f.op("u32", "slct.b32.s32 d, b, 11, k;", "slct.s32.f32 d, b, 11, z;", "slct.u32.ftz.f32 d, b, 11, z;")
	f.op("u64", "slct.u64.s32 d, c, 13, k;", "slct.b64.f32 d, c, 13, z;")
	f.op("f32", "slct.f32.s32 d, x, z, k;", "slct.f32.f32 d, x, z, z;", "slct.ftz.f32.f32 d, x, z, z;")
	f.op("f64", "slct.f64.s32 d, y, 0d0000000000000000, k;", "slct.f64.f32 d, y, 0d0000000000000000, z;")
	return all
}
