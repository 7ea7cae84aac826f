package nvattach

import (
	"slices"
	"strings"
	"testing"

	"nvtrace/fatbin"
	"nvtrace/fatbin/sass"
)

// threeStores has three accesses to shared memory, and no branch.
const threeStores = `.version 7.0
.target sm_75
.address_size 64
.visible .entry stores(.param .u32 stride)
{
	.reg .b32 %r<6>;
	.shared .align 16 .b8 s[16384];
	mov.u32 %r1, %tid.x;
	ld.param.u32 %r2, [stride];
	mul.lo.u32 %r3, %r1, %r2;
	and.b32 %r4, %r3, 4095;
	shl.b32 %r4, %r4, 2;
	mov.u32 %r5, s;
	add.u32 %r5, %r5, %r4;
	st.shared.u32 [%r5], %r1;
	st.shared.u32 [%r5+4], %r2;
	st.shared.u32 [%r5+8], %r3;
	ret;
}
`

// TestThreadsMeet: what the assembler makes of a program with loops in which it puts YIELDs has the
// threads of a warp run together again at the kernel's next instruction. All of the program is
// between a BSSY and its BSYNC, and in front of that they wait for each other: whoever waits at the BSYNC
// can't be let go by a YIELD.
func TestThreadsMeet(t *testing.T) {
	r := newRig(t, nil, testObject(t, "example_memory"))
	text := r.weave(threeStores).Text
	for _, sm := range []string{"sm_75", "sm_80", "sm_90", "sm_100", "sm_120"} {
		image, err := compiler(t, sm)(text)
		if err != nil {
			t.Fatal(err)
		}
		c, err := fatbin.ParseCubin(image)
		if err != nil {
			t.Fatal(err)
		}
		arch, err := sass.ParseArch(sm)
		if err != nil {
			t.Fatal(err)
		}
		k := kernelNamed(t, c, "stores")
		fn := &sass.Func{Arch: arch, Name: "stores", Code: sass.Words(image[c.Sections[k.Section].Offset+k.Offset:][:k.Size])}
		checkMeets(t, fn)
	}
}

// checkMeets looks at what is before each STS.
func checkMeets(t *testing.T, fn *sass.Func) {
	t.Helper()
	a, err := sass.Analyze(fn)
	if err != nil {
		t.Fatal(err)
	}
	barrier := func(i int) uint64 { return a.Insts[i].Word.Bits(16, 4) }
	last := func(from, to int, names ...string) int {
		for i := to - 1; i >= from; i-- {
			if slices.Contains(names, a.Insts[i].Name()) {
				return i
			}
		}
		return -1
	}
	stores, yields, from := 0, 0, 0
	for i := range a.Insts {
		if a.Insts[i].Name() != "STS" {
			continue
		}
		stores++
		meet := last(from, i, "BSYNC")
		enter := -1
		for j := from; j < meet && enter < 0; j++ {
			if a.Insts[j].Name() == "BSSY" {
				enter = j
			}
		}
		if enter < 0 || barrier(enter) != barrier(meet) {
			t.Fatalf("%s, store %d: from +%#x on, +%#x does not meet from +%#x", fn.Arch, stores, from*sass.WordSize, meet*sass.WordSize, enter*sass.WordSize)
		}
		if at, ok := a.Target(enter); !ok || at != meet && at != meet+1 {
			t.Errorf("%s, store %d: the BSSY is for +%#x, the BSYNC at +%#x", fn.Arch, stores, at*sass.WordSize, meet*sass.WordSize)
		}
		for j := enter + 1; j < meet; j++ {
			for _, o := range a.Insts[j].Operands(nil) {
				if o.Kind == sass.Barrier && uint64(o.Reg) == barrier(meet) {
					t.Errorf("%s, store %d: +%#x, %s, names the barrier", fn.Arch, stores, j*sass.WordSize, a.Insts[j].Name())
				}
			}
		}
		// The last thing before is a wait for all: at once, or in code aside for those that came apart.
		wait := last(enter, meet, "WARPSYNC", "BRA")
		if full := a.Insts[wait].FullName(); full != "BRA.DIV" && full != "BRA.CONV" && !strings.HasPrefix(full, "WARPSYNC") {
			t.Errorf("%s, store %d: %s at +%#x before they meet", fn.Arch, stores, full, wait*sass.WordSize)
		}
		for j := range a.Insts[:i] {
			if a.Insts[j].Name() != "YIELD" || j < from {
				continue
			}
			if yields++; j < enter || j > wait {
				t.Errorf("%s, store %d: a YIELD at +%#x, not between +%#x and +%#x", fn.Arch, stores, j*sass.WordSize, enter*sass.WordSize, wait*sass.WordSize)
			}
		}
		if aside, ok := a.Target(wait); ok && a.Insts[wait].FullName() == "BRA.DIV" {
			waits := false
			for ; aside < len(a.Insts) && a.Insts[aside].Name() != "BRA"; aside++ {
				waits = waits || a.Insts[aside].Name() == "WARPSYNC"
				if a.Insts[aside].Name() == "YIELD" {
					t.Errorf("%s, store %d: a YIELD at +%#x", fn.Arch, stores, aside*sass.WordSize)
				}
			}
			if back, _ := a.Target(aside); !waits || back <= wait || back > meet {
				t.Errorf("%s, store %d: it waits: %t, and goes on at +%#x", fn.Arch, stores, waits, back*sass.WordSize)
			}
		}
		from = meet + 1
	}
	if stores != 3 || yields == 0 {
		t.Errorf("%s: %d stores, %d YIELDs before them", fn.Arch, stores, yields)
	}
}
