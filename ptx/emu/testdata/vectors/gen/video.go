package main

// videos returns the families of the scalar and packed video instructions.
func videos() []*family {
	var all []*family
	f := newFamily("video_scalar", "6.4", "sm_60", 128, "scalar video instructions: byte and halfword selectors, saturation, secondary operations").in("a", "u32", "mix 1").in("b", "u32", "mix 2").in("c", "u32", "mix 3").in("n", "u32", "range 4 0 40")
	all = append(all, f)
	f.op("u32", each([]string{
		"%s.s32.s32.s32 d, a, b;", "%s.u32.u32.u32 d, a.b0, b.b3;", "%s.s32.u32.s32 d, a.h1, b.h0;", "%s.s32.s32.u32.sat d, a, b;", "%s.u32.s32.u32.sat d, a.b2, b.h1;",
		"%s.s32.s32.s32.add d, a, b, c;", "%s.u32.u32.u32.min d, a.b1, b.b1, c;", "%s.s32.s32.s32.max d, a.h0, b.h1, c;", "%s.s32.s32.s32 d.b1, a, b, c;", "%s.u32.u32.u32.sat d.h1, a, b, c;",
	}, list("vadd vsub vabsdiff vmin vmax")...)...)
	f.op("u32", each([]string{"%s.u32.u32.u32.clamp d, a, n;", "%s.s32.s32.u32.wrap d, a, n;", "%s.u32.u32.u32.clamp.add d, a.b1, n, c;", "%s.s32.s32.u32.sat.wrap d, a.h1, n;"}, list("vshl vshr")...)...)
	f.op("u32", "vmad.u32.u32.u32 d, a.h0, b.h1, c;", "vmad.s32.s32.s32 d, a.b0, b.b1, c;", "vmad.s32.s32.s32.shr7 d, a, b, c;", "vmad.u32.u32.u32.sat.shr15 d, a, b, c;", "vmad.s32.s32.u32.sat d, a.h0, b.h0, c;", "vmad.u32.u32.u32.po d, a.h0, b.h1, c;", "vmad.s32.s32.s32 d, -a.h0, b.h0, c;")
	for _, c := range list("eq ne lt le gt ge") {
		f.op("u32", "vset.u32.u32."+c+" d, a.b0, b.b0;", "vset.s32.s32."+c+" d, a, b;", "vset.s32.u32."+c+".add d, a.h0, b, c;")
	}

	f = newFamily("video_packed", "6.4", "sm_60", 128, "packed video instructions on two halfwords and four bytes").in("a", "u32", "mix 11").in("b", "u32", "mix 12").in("c", "u32", "mix 13")
	all = append(all, f)
	f.op("u32", each([]string{
		"%s2.s32.s32.s32 d, a, b, c;", "%s2.u32.u32.u32.sat d, a, b, c;", "%s2.s32.s32.s32.add d, a, b, c;", "%s2.u32.u32.u32 d.h1, a.h32, b.h10, c;",
		"%s4.s32.s32.s32 d, a, b, c;", "%s4.u32.u32.u32.sat d, a, b, c;", "%s4.u32.u32.u32.add d, a, b, c;", "%s4.s32.s32.s32 d.b20, a.b7610, b.b3210, c;",
	}, list("vadd vsub vabsdiff vmin vmax")...)...)
	f.op("u32", "vavrg2.u32.u32.u32 d, a, b, c;", "vavrg2.s32.s32.s32 d, a, b, c;", "vavrg4.u32.u32.u32 d, a, b, c;", "vavrg4.s32.s32.s32 d, a, b, c;")
	for _, c := range list("eq ne lt le gt ge") {
		f.op("u32", "vset2.u32.u32."+c+" d, a, b, c;", "vset4.s32.s32."+c+" d, a, b, c;", "vset4.u32.u32."+c+".add d, a, b, c;")
	}
	return all
}
