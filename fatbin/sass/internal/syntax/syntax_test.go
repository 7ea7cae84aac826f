package syntax

import (
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestFacts: what is written is read as it was.
func TestFacts(t *testing.T) {
	b, err := os.ReadFile("../../facts/syntax.txt")
	if err != nil {
		t.Fatal(err)
	}
	head, facts, err := Parse(string(b))
	if err != nil || len(facts) < 300 {
		t.Fatalf("%d opcodes, %v", len(facts), err)
	}
	text := Write(head, facts)
	_, again, err := Parse(text)
	if err != nil || text != string(b) || !reflect.DeepEqual(facts, again) {
		t.Errorf("what was written differs from what was read: %v", err)
	}
}

func TestFactsGarbage(t *testing.T) {
	good := "sm 75,80 op 981\nname (72 0 1) \"LDG\"\nreuse 24 0 64\nframes 0\nframe\nslot 0\nform \"[%+%]\" R24+8 x:1\n"
	good = strings.Replace(good, "x:1", "x40+23,-63+1<<23", 1)
	if _, f, err := Parse(good); err != nil || len(f) != 1 || len(f[0].Op.Frames[0][0].Forms[0].Nums) != 2 {
		t.Fatalf("%+v, %v", f, err)
	}
	for _, bad := range []string{
		"name 0 \"x\"", "sm 75 op", "sm x op 1", "sm 75 op xyz", "sm 75 op 1\nslot 0", "sm 75 op 1\nframe\nform \"\"", "sm 75 op 1\nname (1 2",
		"sm 75 op 1\nname (999 0 1) \"\"", "sm 75 op 1\nname (1+1=full 0 1) \"\"", "sm 75 op 1\nframe\nslot 0\nform \"%\"",
		"sm 75 op 1\nframe\nslot 0\nform \"%\" R300+8", "sm 75 op 1\nwhat",
	} {
		if _, _, err := Parse(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// TestFloats: as nvdisasm writes them.
func TestFloats(t *testing.T) {
	number := func(kind Kind, v uint64) string {
		n := Number{Kind: kind, Runs: []Run{{Pos: 0, N: 64}}}
		return string(n.append(nil, Word{Lo: v}, 0))
	}
	for _, tt := range []struct {
		kind Kind
		v    uint64
		want string
	}{
		{Float32, 0x3f800000, "1"},
		{Float32, 0x3a83126f, "0.0010000000474974513054"},
		{Float32, 0x38d1b717, "9.9999997473787516356e-05"},
		{Float32, 1, "1.4012984643248170709e-45"},
		{Float32, 0x4e6e6b28, "1.00000000000000000000e+09"},
		{Float32, 0x4b000000, "8388608"},
		{Float32, 0x7f7fffff, "3.40282346638528859812e+38"},
		{Float32, 0x7fc00000, "+QNAN"},
		{Float32, 0x7f800001, "+SNAN"},
		{Float32, 0xff800000, "-INF"},
		{Float32, 0x80000000, "-0.0"},
		{Float32, 0, "0"},
		{Float64, 0x3fb99999, "0.099999964237213134766"},
		{Float64, 0x43380000, "6.75539944105574400000e+15"},
		{BFloat, 0x3fb9, "1.4453125"},
		{Float16, 0x0080, "7.62939453125e-06"},
		{Hex, 0x1f, "0x1f"},
	} {
		if got := number(tt.kind, tt.v); got != tt.want {
			t.Errorf("%c of %#x is %q, want %q", tt.kind, tt.v, got, tt.want)
		}
	}
	for _, h := range []uint16{0, 1, 0x3c00, 0xbc00, 0x7bff, 0x0400, 0x03ff} {
		// The value of a half as the sum of its bits.
		e, m := int(h>>10&31), float64(h&1023)/1024
		want := math.Ldexp(1+m, e-15)
		if e == 0 {
			want = math.Ldexp(m, -14)
		}
		if h&0x8000 != 0 {
			want = -want
		}
		if Half(h) != want {
			t.Errorf("%#x is %v, want %v", h, Half(h), want)
		}
	}
}
