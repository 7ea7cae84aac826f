package main

import "fmt"

// covers reports whether integer type a has every value of b: then ptxas refuses cvt.sat.
func covers(a, b string) bool {
	var wa, wb int
	if _, err := fmt.Sscanf(a[1:]+" "+b[1:], "%d %d", &wa, &wb); err != nil {
		panic("BUG: " + err.Error())
	}
	switch {
	case a[0] == b[0]:
		return wa >= wb
	case a[0] == 's':
		return wa > wb
	}
	return false
}

// conversions returns the families of cvt.
func conversions() []*family {
	var all []*family
	def := func(name, version, target string, n int, doc string) *family {
		f := newFamily(name, version, target, n, doc)
		all = append(all, f)
		return f
	}
	ints := list("u8 s8 u16 s16 u32 s32 u64 s64")
	hold := func(t string) string { // the description's type that holds integer type t in memory; 8 bits live in 16-bit registers
		switch t[1:] {
		case "8", "16":
			return "u16"
		}
		return "u" + t[1:]
	}

	f := def("cvt_int", "6.4", "sm_60", 64, "cvt among all integer types, plain and saturating").in("x16", "u16", "mix 1").in("x32", "u32", "mix 2").in("x64", "u64", "mix 3")
	for _, from := range ints {
		for _, to := range ints {
			src := "x" + hold(from)[1:]
			f.op(hold(to), fmt.Sprintf("cvt.%s.%s d, %s;", to, from, src))
			if !covers(to, from) {
				f.op(hold(to), fmt.Sprintf("cvt.sat.%s.%s d, %s;", to, from, src))
			}
		}
	}

	f = def("cvt_int_float", "6.4", "sm_60", 64, "cvt from every integer type to f16, f32, f64 in every rounding mode").in("x16", "u16", "mix 11").in("x32", "u32", "mix 12").in("x64", "u64", "mix 13")
	for _, from := range ints {
		for _, to := range list("f16 f32 f64") {
			for _, m := range list("rn rz rm rp") {
				f.op(to, fmt.Sprintf("cvt.%s.%s.%s d, x%s;", m, to, from, hold(from)[1:]))
			}
		}
	}
	f.op("f32", "cvt.rn.sat.f32.s32 d, x32;")

	f = def("cvt_f32_int", "6.4", "sm_60", 128, "cvt from f32 to every integer type in every rounding mode, flushed and saturating").in("a", "f32", "mix 21").in("b", "f32", "uniform 22 -70000 70000").
		in("c", "f32", "list 1 0x3f000000 0xbf000000 0x3fc00000 0x40200000 0xc0200000 0x4effffff 0x4f000000 0xcf000000 0xcf000001 0x4f7fffff 0x4f800000 0x5effffff 0x5f000000 0xdf000000 0x5f7fffff 0x5f800000 0x42fe8000 0x42ff0000 0xc3008000 0x437f8000 0x46ffff00 0x47000000 0x477fff80 0x3effffff 0x4affffff 0x4b000001 1 0x80000001 0x7f800000 0xff800000 0x7fc00000 0x80000000")
	for _, to := range ints {
		f.op(hold(to), fmt.Sprintf("cvt.rni.%s.f32 d, c;", to), fmt.Sprintf("cvt.rzi.%s.f32 d, a;", to), fmt.Sprintf("cvt.rzi.%s.f32 d, c;", to), fmt.Sprintf("cvt.rmi.%s.f32 d, b;", to), fmt.Sprintf("cvt.rpi.%s.f32 d, b;", to))
	}
	f.op("u32", "cvt.rpi.ftz.s32.f32 d, c;", "cvt.rzi.sat.u32.f32 d, a;", "cvt.rni.ftz.u32.f32 d, a;")

	f = def("cvt_f64_int", "6.4", "sm_60", 64, "cvt from f64 to every integer type in every rounding mode").in("a", "f64", "mix 31").in("b", "f64", "uniform 32 -5e9 5e9").
		in("c", "f64", "list 1 0x3fe0000000000000 0xbfe0000000000000 0x3ff8000000000000 0x4004000000000000 0xc004000000000000 0x41dfffffffc00000 0x41dfffffffe00000 0x41e0000000000000 0xc1e0000000000000 0xc1e0000000200000 0x41efffffffe00000 0x41f0000000000000 0x43dfffffffffffff 0x43e0000000000000 0xc3e0000000000000 0x43efffffffffffff 0x43f0000000000000 0x7ff0000000000000 0xfff0000000000000 0x7ff8000000000000 0x8000000000000000 1")
	for _, to := range ints {
		f.op(hold(to), fmt.Sprintf("cvt.rni.%s.f64 d, c;", to), fmt.Sprintf("cvt.rzi.%s.f64 d, a;", to), fmt.Sprintf("cvt.rzi.%s.f64 d, c;", to), fmt.Sprintf("cvt.rmi.%s.f64 d, b;", to), fmt.Sprintf("cvt.rpi.%s.f64 d, b;", to))
	}

	f = def("cvt_f16_int", "7.8", "sm_90", 128, "cvt from f16 and bf16 to integers and back").in("a", "f16", "mix 41").in("b", "bf16", "mix 42").in("x", "u32", "range 43 -300 300").in("y", "u64", "mix 44")
	for _, to := range ints {
		f.op(hold(to), fmt.Sprintf("cvt.rni.%s.f16 d, a;", to), fmt.Sprintf("cvt.rzi.%s.f16 d, a;", to))
		if to[1:] != "8" {
			f.op(hold(to), fmt.Sprintf("cvt.rpi.%s.bf16 d, b;", to))
		}
	}
	f.op("bf16", "cvt.rn.bf16.s32 d, x;", "cvt.rz.bf16.u32 d, x;", "cvt.rn.bf16.u64 d, y;")
	f.op("f16", "cvt.rn.f16.s64 d, y;", "cvt.rp.f16.u64 d, y;")

	f = def("cvt_float", "7.8", "sm_90", 256, "cvt among f16, bf16, f32, f64 in every rounding mode; rounding to an integral value").in("h", "f16", "mix 51").in("k", "bf16", "mix 52").in("a", "f32", "mix 53").in("b", "f32", "mask 54 0x87FFFFFF 0x38000000").in("x", "f64", "mix 55").in("y", "f64", "mask 56 0x80FFFFFFFFFFFFFF 0x3F00000000000000").in("z", "f64", "mask 57 0x803FFFFFFFFFFFFF 0x3800000000000000").in("q", "f32", "uniform 58 -9 9")
	f.op("f16", each([]string{"cvt.%s.f16.f32 d, a;", "cvt.%s.f16.f32 d, b;"}, list("rn rz rm rp")...)...)
	f.op("f16", "cvt.rn.f16.f64 d, x;", "cvt.rn.f16.f64 d, y;", "cvt.rz.f16.f64 d, y;", "cvt.rn.sat.f16.f32 d, b;", "cvt.rni.f16.f16 d, h;", "cvt.rmi.f16.f16 d, h;")
	f.op("f32", "cvt.f32.f16 d, h;", "cvt.f32.bf16 d, k;", "cvt.ftz.f32.f16 d, h;", "cvt.sat.f32.f16 d, h;")
	f.op("f32", each([]string{"cvt.%s.f32.f64 d, x;", "cvt.%s.f32.f64 d, y;", "cvt.%s.f32.f64 d, z;"}, list("rn rz rm rp")...)...)
	f.op("f32", "cvt.rn.ftz.f32.f64 d, z;", "cvt.rn.sat.f32.f64 d, y;", "cvt.rni.f32.f32 d, q;", "cvt.rzi.f32.f32 d, q;", "cvt.rmi.f32.f32 d, q;", "cvt.rpi.f32.f32 d, q;", "cvt.rni.f32.f32 d, a;", "cvt.rni.ftz.f32.f32 d, a;", "cvt.sat.f32.f32 d, a;", "cvt.ftz.f32.f32 d, a;")
	f.op("f64", "cvt.f64.f32 d, a;", "cvt.ftz.f64.f32 d, a;", "cvt.f64.f16 d, h;", "cvt.rni.f64.f64 d, x;", "cvt.rzi.f64.f64 d, y;", "cvt.rmi.f64.f64 d, y;", "cvt.rpi.f64.f64 d, y;", "cvt.sat.f64.f64 d, x;", "cvt.f64.bf16 d, k;")

	f = def("cvt_bf16", "7.8", "sm_90", 256, "cvt to bf16, tf32 and packed pairs, with relu").in("a", "f32", "mix 61").in("b", "f32", "mix 62").in("c", "f32", "mask 63 0x87FFFFFF 0x3C000000")
	f.op("bf16", "cvt.rn.bf16.f32 d, a;", "cvt.rz.bf16.f32 d, a;", "cvt.rn.relu.bf16.f32 d, a;", "cvt.rz.relu.bf16.f32 d, a;", "cvt.rm.bf16.f32 d, a;")
	f.op("f16", "cvt.rn.relu.f16.f32 d, c;")
	f.op("u32", each([]string{"cvt.%s.f32 d, a, b;", "cvt.%s.f32 d, c, a;"}, "rn.bf16x2", "rz.bf16x2", "rn.relu.bf16x2", "rn.f16x2", "rz.f16x2", "rn.relu.f16x2")...)
	f.op("u32", "cvt.rna.tf32.f32 d, a;", "cvt.rna.tf32.f32 d, c;", "cvt.rn.tf32.f32 d, c;", "cvt.rz.tf32.f32 d, c;", "cvt.rn.relu.tf32.f32 d, c;")

	f = def("cvt_fp8", "8.1", "sm_89", 256, "cvt between pairs of 8-bit floats and f32, f16x2").in("a", "f32", "mix 71").in("b", "f32", "mask 72 0x87FFFFFF 0x3C000000").in("c", "f32", "mask 73 0x87FFFFFF 0x40000000").in("h", "u32", "mix 74").in("e", "u16", "rand 75").in("g", "u16", "seq 0 257")
	for _, t := range list("e4m3x2 e5m2x2") {
		f.op("u16", "cvt.rn.satfinite."+t+".f32 d, a, b;", "cvt.rn.satfinite."+t+".f32 d, b, c;", "cvt.rn.satfinite.relu."+t+".f32 d, b, c;", "cvt.rn.satfinite."+t+".f16x2 d, h;")
		f.op("u32", "cvt.rn.f16x2."+t+" d, e;", "cvt.rn.f16x2."+t+" d, g;", "cvt.rn.relu.f16x2."+t+" d, g;")
	}

	f = def("cvt_pack", "6.5", "sm_75", 256, "cvt.pack: two 32-bit integers saturated and packed, with and without a third operand").in("a", "u32", "mix 81").in("b", "u32", "range 82 -300 300").in("c", "u32", "rand 83")
	f.op("u32", each([]string{"cvt.pack.sat.%s.s32 d, a, b;"}, "u16", "s16")...)
	f.op("u32", each([]string{"cvt.pack.sat.%s.s32.b32 d, a, b, c;", "cvt.pack.sat.%s.s32.b32 d, b, b, c;"}, list("u8 s8 u4 s4 u2 s2")...)...)
	return all
}
