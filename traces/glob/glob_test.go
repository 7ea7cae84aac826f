package glob_test

import (
	"path"
	"strings"
	"testing"

	"nvtrace/traces/glob"
)

func TestMatch(t *testing.T) {
	for _, tt := range []struct {
		pattern, s string
		match      bool
		fold       bool // with letters of either case alike
	}{
		{"", "", true, true},
		{"", "a", false, false},
		{"*", "", true, true},
		{"**", "any/text", true, true},
		{"?", "", false, false},
		{"?", "é", true, true},
		{"??", "é", false, false},
		{"ab", "AB", false, true},
		{"cuMem*", "cuMemAlloc_v2", true, true},
		{"cumem*_V2", "cuMemAlloc_v2", false, true},
		{"*_v2", "cuMemAlloc_v2_ptsz", false, false},
		{"a*b*c", "a-b-b-c", true, true},
		{"a*b?c", "a-b-bc", false, false},
		{"f(int [4])", "f(int [4])", true, true}, // a C++ name means itself
		{`a\*`, `a\bc`, true, true},
		{"[ab]", "a", false, false},
		{"*gpu*name*", "NV_GPU_GET_NAME_STRING", false, true},
		{"é*", "Éa", false, false},
		{strings.Repeat("a*", 50) + "b", strings.Repeat("a", 10000), false, false}, // in no time
	} {
		if got := glob.Match(tt.pattern, tt.s); got != tt.match {
			t.Errorf("Match(%q, %q) = %v", tt.pattern, tt.s, got)
		}
		if got := glob.MatchFold(tt.pattern, tt.s); got != tt.fold {
			t.Errorf("MatchFold(%q, %q) = %v", tt.pattern, tt.s, got)
		}
	}
	if !glob.Is("a*") || !glob.Is("?") || glob.Is("[a]") {
		t.Error("Is")
	}
}

// A pattern without what path.Match alone knows means the same there.
func FuzzMatch(f *testing.F) {
	f.Add("a*b?*c", "aabbc")
	f.Add("*é?", "xé\xff")
	f.Fuzz(func(t *testing.T, pattern, s string) {
		if strings.ContainsAny(pattern, `[\`) || strings.Contains(s, "/") || strings.ContainsRune(pattern+s, '\ufffd') ||
			strings.ToValidUTF8(pattern+s, "") != pattern+s {
			t.Skip("the pattern means something else to path.Match")
		}
		want, err := path.Match(pattern, s)
		if err != nil {
			t.Fatal(err)
		}
		if got := glob.Match(pattern, s); got != want {
			t.Errorf("Match(%q, %q) = %v, path.Match says %v", pattern, s, got, want)
		}
	})
}
