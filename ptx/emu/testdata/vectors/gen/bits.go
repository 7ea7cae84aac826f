package main

import "fmt"

// bits returns the families of shifts, logic and bit fields.
func bits() []*family {
	var all []*family
	def := func(name, version, target, doc string) *family {
		f := newFamily(name, version, target, 256, doc)
		all = append(all, f)
		return f
	}

	f := def("bit_shift", "6.4", "sm_60", "shl and shr of every width by counts from 0 to beyond the width; shf")
	f.in("a", "u16", "mix 1").in("b", "u32", "mix 2").in("c", "u64", "mix 3").in("n", "u32", "range 4 0 70").in("big", "u32", "special 1")
	for _, s := range []string{"n", "big"} {
		f.op("u16", each([]string{"%s d, a, " + s + ";"}, "shl.b16", "shr.u16", "shr.s16", "shr.b16")...)
		f.op("u32", each([]string{"%s d, b, " + s + ";"}, "shl.b32", "shr.u32", "shr.s32")...)
		f.op("u64", each([]string{"%s d, c, " + s + ";"}, "shl.b64", "shr.u64", "shr.s64")...)
		f.op("u32", each([]string{".reg .b32 e;\nnot.b32 e, b;\nxor.b32 e, e, big;\nshf.%s.b32 d, b, e, " + s + ";"}, "l.clamp", "l.wrap", "r.clamp", "r.wrap")...)
	}

	f = def("bit_logic", "6.4", "sm_60", "and, or, xor, not, cnot of every width; predicates; lop3 with many tables")
	f.in("a", "u32", "mix 11").in("b", "u32", "mix 12").in("c", "u32", "mix 13").in("e", "u16", "mix 14").in("g", "u64", "mix 15")
	f.op("u32", each([]string{"%s.b32 d, a, b;"}, "and", "or", "xor")...)
	f.op("u32", "not.b32 d, a;", "cnot.b32 d, a;", "and.b32 d, a, 0xF0F0;")
	f.op("u16", each([]string{".reg .b16 h;\nshr.u16 h, e, 3;\n%s.b16 d, e, h;"}, "and", "or", "xor")...)
	f.op("u16", "not.b16 d, e;", "cnot.b16 d, e;")
	f.op("u64", each([]string{".reg .b64 h;\nshr.u64 h, g, 5;\n%s.b64 d, g, h;"}, "and", "or", "xor")...)
	f.op("u64", "not.b64 d, g;", "cnot.b64 d, g;")
	f.op("pred", each([]string{".reg .pred q, r;\nsetp.lt.s32 q, a, b;\nsetp.lt.u32 r, a, c;\n%s.pred d, q, r;"}, "and", "or", "xor")...)
	f.op("pred", ".reg .pred q;\nsetp.lt.s32 q, a, b;\nnot.pred d, q;", ".reg .pred q;\nsetp.lt.s32 q, a, b;\nmov.pred d, q;")
	for _, t := range []int{0x00, 0x01, 0x17, 0x80, 0x96, 0xe8, 0xca, 0xf8, 0x3c, 0x6a, 0xd8, 0xfe, 0xff} {
		f.op("u32", fmt.Sprintf("lop3.b32 d, a, b, c, 0x%X;", t))
	}

	f = def("bit_prmt", "6.4", "sm_60", "prmt, generic and every mode, selectors with sign replication")
	f.in("a", "u32", "rand 21").in("b", "u32", "rand 22").in("c", "u32", "rand 23").in("n", "u32", "range 24 0 9")
	f.op("u32", "prmt.b32 d, a, b, c;", "prmt.b32 d, a, b, 0x3210;", "prmt.b32 d, a, b, 0xBA98;", "prmt.b32 d, a, 0, 0x0123;", "prmt.b32 d, a, b, 0xF7E6;")
	f.op("u32", each([]string{"prmt.b32.%s d, a, b, n;"}, "f4e", "b4e", "rc8", "ecl", "ecr", "rc16")...)

	f = def("bit_field", "6.4", "sm_60", "bfe and bfi with positions and lengths inside, at and beyond the ends")
	f.in("a", "u32", "mix 31").in("b", "u32", "mix 32").in("p", "u32", "range 33 0 70").in("n", "u32", "range 34 0 70").in("w", "u32", "special 1").in("g", "u64", "mix 35").in("h", "u64", "mix 36")
	f.op("u32", each([]string{"bfe.%s d, a, p, n;", "bfe.%s d, a, w, n;", "bfe.%s d, a, p, w;"}, "u32", "s32")...)
	f.op("u64", each([]string{"bfe.%s d, g, p, n;", "bfe.%s d, g, w, n;", "bfe.%s d, g, p, w;"}, "u64", "s64")...)
	f.op("u32", "bfi.b32 d, a, b, p, n;", "bfi.b32 d, a, b, w, n;", "bfi.b32 d, a, b, p, w;")
	f.op("u64", "bfi.b64 d, g, h, p, n;", "bfi.b64 d, g, h, w, n;", "bfi.b64 d, g, h, p, w;")

	f = def("bit_count", "6.4", "sm_60", "popc, clz, brev, bfind of 32 and 64 bits")
	f.in("a", "u32", "mix 41").in("g", "u64", "mix 42").in("b", "u32", "list 1 0 1 2 0x80000000 0xFFFFFFFF 0x7FFFFFFF 0xFFFF0000 0x00010000").in("h", "u64", "list 1 0 1 0x100000000 0x8000000000000000 -1 -2 0xFFFFFFFF")
	for _, s := range list("a b") {
		f.op("u32", each([]string{"%s d, " + s + ";"}, list("popc.b32 clz.b32 brev.b32 bfind.u32 bfind.s32 bfind.shiftamt.u32 bfind.shiftamt.s32")...)...)
	}
	for _, s := range list("g h") {
		f.op("u32", each([]string{"%s d, " + s + ";"}, list("popc.b64 clz.b64 bfind.u64 bfind.s64 bfind.shiftamt.u64 bfind.shiftamt.s64")...)...)
		f.op("u64", "brev.b64 d, "+s+";")
	}

	f = def("bit_fns", "7.6", "sm_70", "fns, szext, bmsk")
	f.in("a", "u32", "mix 51").in("b", "u32", "range 52 0 31").in("o", "u32", "range 53 -34 34").in("n", "u32", "range 54 0 40")
	f.op("u32", "fns.b32 d, a, b, o;", "fns.b32 d, a, 5, 2;")
	f.op("u32", each([]string{"szext.%s d, a, n;"}, "clamp.s32", "clamp.u32", "wrap.s32", "wrap.u32")...)
	f.op("u32", "bmsk.clamp.b32 d, b, n;", "bmsk.wrap.b32 d, b, n;", "bmsk.clamp.b32 d, n, b;", "bmsk.wrap.b32 d, n, a;")
	return all
}
