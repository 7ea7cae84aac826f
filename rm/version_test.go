package rm

import "testing"

func TestParseVersion(t *testing.T) {
	for _, s := range []string{"580.159.04", "535.98", "550.100", "550.120", "515.43.04", "545.23.06", "570.123.01"} {
		v, err := ParseVersion(s)
		if err != nil || v.String() != s {
			t.Errorf("ParseVersion(%q) = %v, %v", s, v, err)
		}
	}
	for _, s := range []string{"", "580", "580.", "580.142.1.2", "580.x", "-1.2", "+5.1", "0.1", "70000.1", "580..1", " 580.1"} {
		if v, err := ParseVersion(s); err == nil {
			t.Errorf("ParseVersion(%q) = %v, want an error", s, v)
		}
	}
}

func TestVersionOrder(t *testing.T) {
	asc := []string{"515.43.04", "515.57", "515.65.01", "535.98", "535.104.05", "550.54.14", "550.100", "550.107.02", "580.65.06", "580.142"}
	for i := range asc {
		for j := range asc {
			a, b := version(t, asc[i]), version(t, asc[j])
			if c := a.Compare(b); (c < 0) != (i < j) || (c == 0) != (i == j) {
				t.Errorf("%s compared with %s = %d", a, b, c)
			}
		}
	}
}

func version(tb testing.TB, s string) Version {
	tb.Helper()
	v, err := ParseVersion(s)
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

func load(tb testing.TB, s string) *ABI {
	tb.Helper()
	a := Load(version(tb, s))
	if !a.Exact() {
		tb.Fatalf("the data lacks version %s", s)
	}
	return a
}

func TestLoadNeighbours(t *testing.T) {
	for asked, want := range map[string]string{
		"580.142":    "580.142",
		"580.159.04": "580.142",   // newer within its line: the one before
		"610.43.02":  "595.45.04", // newer than all
		"470.1.2":    "515.43.04", // older than all
		"535.98":     "535.98",
		"535.99":     "535.98",
	} {
		a := Load(version(t, asked))
		if a.Version().String() != want || a.Exact() != (asked == want) || a.Asked() != version(t, asked) {
			t.Errorf("Load(%s): tables of %s, exact %v, asked %s", asked, a.Version(), a.Exact(), a.Asked())
		}
	}
	if n := Newest(); !n.Exact() || n.Version() != Versions()[len(Versions())-1] {
		t.Errorf("Newest is %s", n.Version())
	}
}

func TestCUDAVersion(t *testing.T) {
	for _, v := range Versions() {
		if _, _, ok := CUDAVersion(v); !ok {
			t.Errorf("no CUDA version of driver %s", v)
		}
	}
	if major, minor, _ := CUDAVersion(version(t, "580.142")); major != 13 || minor != 0 {
		t.Errorf("580.142 supports CUDA %d.%d", major, minor)
	}
	if _, _, ok := CUDAVersion(version(t, "999.1")); ok {
		t.Error("driver 999.1 supports a CUDA version")
	}
}
