package main

import "fmt"

// integers returns the families of integer arithmetic.
func integers() []*family {
	var all []*family
	def := func(name, doc string) *family {
		f := newFamily(name, "6.4", "sm_60", 256, doc)
		all = append(all, f)
		return f
	}

	f := def("int_add32", "add, sub, min, max, neg, abs of 32-bit integers; saturation; immediates").in("a", "u32", "special 1").in("b", "u32", "special 16")
	f.op("u32", each([]string{"add.%s d, a, b;", "sub.%s d, a, b;", "min.%s d, a, b;", "max.%s d, a, b;"}, "s32", "u32")...)
	f.op("u32", "add.sat.s32 d, a, b;", "sub.sat.s32 d, a, b;", "neg.s32 d, a;", "abs.s32 d, a;", "add.s32 d, a, -7;", "sub.u32 d, a, 0xFFFFFFFF;", "min.s32 d, a, -1;")

	f = def("int_add16", "add, sub, min, max, neg, abs of 16-bit integers; results stored from 16-bit registers").in("a", "u16", "special 1").in("b", "u16", "special 16")
	f.op("u16", each([]string{"add.%s d, a, b;", "sub.%s d, a, b;", "min.%s d, a, b;", "max.%s d, a, b;"}, "s16", "u16")...)
	f.op("u16", "neg.s16 d, a;", "abs.s16 d, a;")

	f = def("int_add64", "add, sub, min, max, neg, abs of 64-bit integers").in("a", "u64", "special 1").in("b", "u64", "special 16")
	f.op("u64", each([]string{"add.%s d, a, b;", "sub.%s d, a, b;", "min.%s d, a, b;", "max.%s d, a, b;"}, "s64", "u64")...)
	f.op("u64", "neg.s64 d, a;", "abs.s64 d, a;", "add.s64 d, a, -4294967297;")

	f = def("int_mul32", "mul and mad of 32-bit integers, every part; 24-bit forms").in("a", "u32", "mix 1").in("b", "u32", "mix 2").in("c", "u32", "mix 3")
	f.op("u32", each([]string{"mul.lo.%s d, a, b;", "mul.hi.%s d, a, b;", "mad.lo.%s d, a, b, c;", "mad.hi.%s d, a, b, c;", "mul24.lo.%s d, a, b;", "mul24.hi.%s d, a, b;", "mad24.lo.%s d, a, b, c;", "mad24.hi.%s d, a, b, c;"}, "s32", "u32")...)
	f.op("u32", "mad.hi.sat.s32 d, a, b, c;", "mad24.hi.sat.s32 d, a, b, c;", "mul.lo.s32 d, a, -3;")
	f.op("u64", each([]string{"mul.wide.%s d, a, b;", ".reg .b64 e;\ncvt.u64.u32 e, c;\nmad.wide.%s d, a, b, e;"}, "s32", "u32")...)

	f = def("int_mul16", "mul and mad of 16-bit integers").in("a", "u16", "mix 4").in("b", "u16", "mix 5").in("c", "u16", "mix 6")
	f.op("u16", each([]string{"mul.lo.%s d, a, b;", "mul.hi.%s d, a, b;", "mad.lo.%s d, a, b, c;", "mad.hi.%s d, a, b, c;"}, "s16", "u16")...)
	f.op("u32", each([]string{"mul.wide.%s d, a, b;", ".reg .b32 e;\ncvt.u32.u16 e, c;\nmad.wide.%s d, a, b, e;"}, "s16", "u16")...)

	f = def("int_mul64", "mul and mad of 64-bit integers").in("a", "u64", "mix 7").in("b", "u64", "mix 8").in("c", "u64", "mix 9")
	f.op("u64", each([]string{"mul.lo.%s d, a, b;", "mul.hi.%s d, a, b;", "mad.lo.%s d, a, b, c;", "mad.hi.%s d, a, b, c;"}, "s64", "u64")...)

	// The divisors' low bit is set: division by zero has a family of its own.
	f = def("int_div", "div and rem of all widths by non-zero divisors, also of the most negative number by -1")
	for _, w := range []string{"16", "32", "64"} {
		f.in("a"+w, "u"+w, "mix 1"+w).in("b"+w, "u"+w, "mix 2"+w)
		or := fmt.Sprintf(".reg .b%s e;\nor.b%s e, b%s, 1;\n", w, w, w)
		f.op("u"+w, each([]string{or + "div.%s d, a" + w + ", e;", or + "rem.%s d, a" + w + ", e;"}, "s"+w, "u"+w)...)
	}
	f.op("u32", "div.s32 d, a32, -1;", "rem.s32 d, a32, -1;", "div.u32 d, a32, 10;", "rem.s32 d, a32, 7;", "div.s32 d, a32, 16;")

	f = def("int_div_zero", "div and rem by zero: what the ISA leaves open, as this GPU answers").in("a", "u32", "mix 31").in("b", "u32", "fill 0").in("e", "u64", "mix 32").in("z", "u64", "fill 0")
	f.op("u32", each([]string{"div.%s d, a, b;", "rem.%s d, a, b;"}, "s32", "u32")...)
	f.op("u64", each([]string{"div.%s d, e, z;", "rem.%s d, e, z;"}, "s64", "u64")...)

	f = def("int_carry32", "carry chains of 32-bit add, sub and mad").in("a", "u32", "mix 41").in("b", "u32", "mix 42").in("c", "u32", "mix 43")
	f.op("u32", ".reg .b32 e;\nadd.cc.u32 e, a, b;\naddc.u32 d, c, 0;", ".reg .b32 e;\nsub.cc.u32 e, a, b;\nsubc.u32 d, c, 0;",
		".reg .b32 e;\nadd.cc.s32 e, a, b;\naddc.cc.s32 e, b, c;\naddc.s32 d, e, a;", ".reg .b32 e;\nsub.cc.s32 e, a, b;\nsubc.cc.s32 e, b, c;\nsubc.s32 d, e, a;",
		".reg .b32 e;\nmad.lo.cc.u32 e, a, b, c;\nmadc.hi.u32 d, a, b, c;", ".reg .b32 e;\nmad.hi.cc.u32 e, a, b, c;\nmadc.lo.cc.u32 e, a, c, e;\naddc.u32 d, e, 0;",
		".reg .b32 e;\nmad.lo.cc.s32 e, a, b, c;\nmadc.hi.s32 d, a, b, c;",
		// The flag survives instructions that do not write it.
		".reg .b32 e;\nadd.cc.u32 e, a, b;\nxor.b32 e, e, c;\nmul.lo.u32 e, e, 3;\naddc.u32 d, e, c;")
	f.op("u64", ".reg .b32 lo, hi;\nmul.lo.u32 lo, a, b;\nmul.hi.u32 hi, a, b;\nadd.cc.u32 lo, lo, c;\naddc.u32 hi, hi, a;\nmov.b64 d, {lo, hi};")

	f = newFamily("int_carry64", "6.4", "sm_60", 256, "carry chains of 64-bit add, sub and mad").in("a", "u64", "mix 44").in("b", "u64", "mix 45").in("c", "u64", "mix 46")
	all = append(all, f)
	f.op("u64", ".reg .b64 e;\nadd.cc.u64 e, a, b;\naddc.u64 d, c, 0;", ".reg .b64 e;\nsub.cc.u64 e, a, b;\nsubc.u64 d, c, 0;",
		".reg .b64 e;\nmad.lo.cc.u64 e, a, b, c;\nmadc.hi.u64 d, a, b, c;", ".reg .b64 e;\nadd.cc.s64 e, a, b;\naddc.cc.s64 e, b, c;\naddc.s64 d, e, a;")

	f = newFamily("int_carry_mixed", "6.4", "sm_60", 256, "carry chains in which additions and subtractions share the flag").
		in("a", "u32", "mix 47").in("b", "u32", "mix 48").in("c", "u64", "mix 49").in("e", "u64", "mix 50")
	all = append(all, f)
	f.op("u32", ".reg .b32 e;\nsub.cc.u32 e, a, b;\naddc.u32 d, 0, 0;", ".reg .b32 e;\nadd.cc.u32 e, a, b;\nsubc.u32 d, b, a;",
		".reg .b32 e;\nsub.cc.u32 e, a, b;\naddc.cc.u32 e, e, b;\nsubc.cc.u32 e, e, a;\naddc.u32 d, e, 0;",
		".reg .b32 e;\nmad.lo.cc.u32 e, a, b, b;\nsubc.cc.u32 e, b, e;\nmadc.hi.u32 d, a, b, e;")
	f.op("u64", ".reg .b64 f;\nsub.cc.u64 f, c, e;\naddc.u64 d, 0, 0;", ".reg .b64 f;\nadd.cc.u64 f, c, e;\nsubc.u64 d, e, c;")

	f = newFamily("int_dot", "6.4", "sm_61", 256, "sad, dp4a, dp2a").in("a", "u32", "mix 51").in("b", "u32", "mix 52").in("c", "u32", "mix 53").in("e", "u16", "mix 54").in("g", "u64", "mix 55")
	all = append(all, f)
	f.op("u32", each([]string{"sad.%s d, a, b, c;"}, "s32", "u32")...)
	f.op("u16", each([]string{".reg .b16 h;\nadd.s16 h, e, 99;\nsad.%s d, e, h, 3;"}, "s16", "u16")...)
	f.op("u64", each([]string{".reg .b64 h;\nmul.lo.u64 h, g, 5;\nsad.%s d, g, h, g;"}, "s64", "u64")...)
	f.op("u32", each([]string{"dp4a.%s d, a, b, c;", "dp2a.lo.%s d, a, b, c;", "dp2a.hi.%s d, a, b, c;"}, "s32.s32", "s32.u32", "u32.s32", "u32.u32")...)

	f = newFamily("int_x2", "8.0", "sm_90", 256, "add, min, max of two packed 16-bit integers").in("a", "u32", "mix 61").in("b", "u32", "mix 62")
	all = append(all, f)
	f.op("u32", each([]string{"add.%s d, a, b;", "min.%s d, a, b;", "max.%s d, a, b;"}, "s16x2", "u16x2")...)
	f.op("u32", "min.relu.s16x2 d, a, b;", "max.relu.s16x2 d, a, b;", "min.relu.s32 d, a, b;", "max.relu.s32 d, a, b;")
	return all
}
