package ptrace

import "testing"

func TestStatCPU(t *testing.T) {
	for _, c := range []struct {
		stat string
		want int
	}{
		{"12 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 17 7 0 0\n", 7},
		{"12 (x) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 17 120 0 0 0", 120},
		{"12 (x) S 1 2", -1},
		{"", -1},
	} {
		if got := statCPU([]byte(c.stat)); got != c.want {
			t.Errorf("statCPU(%q) = %d, want %d", c.stat, got, c.want)
		}
	}
}
