package sass

import "testing"

// TestReadsBank: instructions as nvdisasm shows them.
func TestReadsBank(t *testing.T) {
	for _, tt := range []struct {
		text         string
		w            Word
		third, other bool // whether it may read banks 3 and 4
	}{
		{"LDC R0, c[0x3][R0]", LDC(90, 0, 3, 0, 4), true, false},
		{"LDC.64 R2, c[0x4][RZ]", LDC(90, 2, 4, 0, 8), false, true},
		{"LDC R1, c[0x0][0x28]", LDC(90, 1, 0, 0x28, 4), false, false},
		{"LDC.IS R1, c[0x0][R1]", LDC(90, 1, 0, 0, 4).SetBits(78, 2, 2), true, true},
		{"FADD R2, R3, c[0x3][0x10]", Word{}.SetBits(0, 12, 0xa21).SetBits(40, 14, 4).SetBits(54, 5, 3), true, false},
		{"FFMA R2, R3, R4, c[0x3][0x10]", Word{}.SetBits(0, 12, 0x623).SetBits(40, 14, 4).SetBits(54, 5, 3), true, false},
		{"MOV R2, R3", Word{}.SetBits(0, 12, 0x202).SetBits(54, 5, 3), false, false},
	} {
		code := tt.w.Append(nil)
		if third, other := ReadsBank(code, 3), ReadsBank(code, 4); third != tt.third || other != tt.other {
			t.Errorf("%s: %v and %v", tt.text, third, other)
		}
	}
}
