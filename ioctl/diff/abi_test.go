package diff

import (
	"strings"
	"testing"

	"nvtrace/rm"
)

func load(t testing.TB, s string) *rm.ABI {
	v, err := rm.ParseVersion(s)
	if err != nil {
		t.Fatal(err)
	}
	return rm.Load(v)
}

func TestABI(t *testing.T) {
	r, err := CompareABI(load(t, "535.43.02"), load(t, "580.142"), "NVOS*")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "abi-nvos", string(r.AppendText(nil)))
	r, err = CompareABI(load(t, "580.142"), load(t, "595.45.04"), "*GPU_GET_NAME*")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "abi-name", string(r.AppendText(nil)))
}

func TestABISelf(t *testing.T) {
	for _, v := range []string{"515.43.04", "550.54.14", "595.45.04"} {
		r, err := CompareABI(load(t, v), load(t, v), "")
		if err != nil || !r.Same || !strings.HasSuffix(string(r.AppendText(nil)), "no differences\n") {
			t.Errorf("%s: %v %+v", v, err, r)
		}
	}
	if _, err := CompareABI(rm.Newest(), rm.Newest(), "*CHANEL_GPFIFO*"); err == nil ||
		!strings.Contains(err.Error(), `"*CHANEL_GPFIFO*" matches nothing in 595.45.04 or 595.45.04; did you mean NV50_CHANNEL_GPFIFO`) {
		t.Errorf("a pattern that matches nothing gives %v", err)
	}
}

// TestABIKnown: steps whose changes are known from the driver's release.
func TestABIKnown(t *testing.T) {
	for _, c := range []struct{ a, b, layout, member string }{
		{"580.65.05", "580.65.06", "NVOS46_PARAMETERS", "flags2"},
		{"550.40.06", "550.40.07", "NVOS47_PARAMETERS", "size"},
		{"535.86.04", "535.86.05", "NV_CHANNEL_ALLOC_PARAMS", ""},
		{"570.86.10", "570.86.15", "NV_CHANNEL_ALLOC_PARAMS", "tpcConfigID"},
	} {
		r, err := CompareABI(load(t, c.a), load(t, c.b), c.layout)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Layouts) != 1 || r.Layouts[0].Name != c.layout || r.Layouts[0].SizeB <= r.Layouts[0].SizeA {
			t.Fatalf("%s -> %s: %+v", c.a, c.b, r.Layouts)
		}
		found := c.member == ""
		for _, f := range r.Layouts[0].Fields {
			found = found || f.Name == c.member && f.A == nil
		}
		if !found {
			t.Errorf("%s -> %s: no new member %s in %+v", c.a, c.b, c.member, r.Layouts[0].Fields)
		}
	}
}

func BenchmarkCompareABI(b *testing.B) {
	x, y := load(b, "570.211.01"), load(b, "580.142")
	for b.Loop() {
		r, err := CompareABI(x, y, "")
		if err != nil || len(r.Layouts) == 0 || len(r.Entries) == 0 {
			b.Fatalf("%v: %d layouts, %d entries", err, len(r.Layouts), len(r.Entries))
		}
	}
}
