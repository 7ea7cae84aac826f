package ptx

import (
	"strings"
	"sync"
)

// knownModifier reports whether m, given with its dot, is a modifier of some
// instruction of PTX ISA 1.0 to 9.3. Unknown ones are kept like any other;
// [File.Check] warns of them.
func knownModifier(m string) bool {
	if typeOf(m) != TypeNone || modifierWords()[m] {
		return true
	}
	if head, _, ok := strings.Cut(m, "::"); ok {
		return modifierFamilies()[head]
	}
	return shapeWord(m)
}

// shapeWord reports whether m is a matrix shape or a count: .m16n8k16, .32x32b,
// .x4.
func shapeWord(m string) bool {
	letters := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, m)
	switch letters {
	case ".mnk", ".mn", ".xb", ".x":
		return len(m) > len(letters)
	}
	return false
}

var modifierWords = sync.OnceValue(func() map[string]bool { return wordSet(modifierTable) })

// modifierFamilies holds the heads of modifiers with "::" parts.
var modifierFamilies = sync.OnceValue(func() map[string]bool {
	return wordSet(`shared param L1 L2 mbarrier kind collector fence sync_restrict scale_vec cta_group multicast
		warpx2 tile im2col acc pack unpack wait tensormap async sp query_cancel reduction report_mechanism level`)
})

func wordSet(words string) map[string]bool {
	set := map[string]bool{}
	for w := range strings.FieldsSeq(words) {
		set["."+w] = true
	}
	return set
}

// modifierTable lists the modifiers that are neither types nor shapes nor have
// "::" parts, by the chapter of PTX ISA §9.7 that introduces them.
const modifierTable = `
	cc hi lo wide sat satfinite relu ftz approx full rn rz rm rp rna rs rni rzi rmi rpi noftz oob scaled
	abs NaN nan num xorsign finite infinite number notanumber normal subnormal shiftamt clamp wrap
	f4e b4e rc8 ecl ecr rc16 l r u2 s2 u4 s4 b1 po shr7 shr15
	eq ne lt le gt ge ls hs equ neu ltu leu gtu geu and or xor popc add sub min max inc dec exch cas
	global const local param shared tex reg sreg generic to
	ca cg cs lu cv wb wt nc volatile mmio weak relaxed acquire release acq_rel sc cta cluster gpu sys gl
	v2 v4 v8 unified L1 L2 evict_last evict_normal fractional range cvt mask
	sync aligned warp red arrive wait all any uni ballot up down bfly idx
	proxy alias async mbarrier_init cp_fenceproxy
	init inval arrive_drop test_wait try_wait pending_count expect_tx complete_tx noComplete parity noinc ignore_src
	bulk tensor reduce prefetch im2col im2col_no_offs tile bulk_group commit_group wait_group wait_all read cp_mask ignore_oob mbarrier
	replace global_address rank box_dim global_dim global_stride element_stride elemtype interleave_layout swizzle_mode
	swizzle_atomicity fill_mode b1024 tensormap b512
	row col trans load store mma mma_async sp a b c d e2m1 e2m3 e3m2 e4m3 e5m2 ue8m0 ue4m3 e8m0 e2m1x2 e2m3x2 e3m2x2 e2m1x4
	e2m3x4 e3m2x4 e4m3x4 e5m2x4 ue8m0x2 s2f6x2 bf16x4 f16x4 b8x16 b6x16_p32 b4x16_p64 b8x4 block_scale block16 block32
	ld st cp shift alloc dealloc relinquish_alloc_permit commit ws ashift warpx4 spcompress
	fence ld_reduce try_cancel query_cancel is_canceled get_first_ctaid launch_dependents
	1d 2d 3d 4d 5d a1d a2d cube acube 2dms a2dms base level grad lz level_zero zero trap p f g z w x y
	width height depth channel_data_type channel_order normalized_coords force_unnormalized_coords filter_mode addr_mode_0
	addr_mode_1 addr_mode_2 num_mipmap_levels num_samples array_size memory_layout texref samplerref surfref
	pack
`
