package nvattach

import (
	"maps"
	"slices"
	"testing"

	"nvtrace/nvattach/helper"
)

// TestReference: what the reference lists is what there is.
func TestReference(t *testing.T) {
	types := MapTypes()
	for _, want := range []MapType{MapHash, MapArray, MapPerfEventArray, MapPerCPUHash, MapPerCPUArray, MapRingbuf, MapGPUThreadArray} {
		if !slices.Contains(types, want) {
			t.Errorf("%s is missing in %v", want, types)
		}
	}
	if slices.Contains(types, mapProgArray) || len(types) != 16 || slices.ContainsFunc(types, func(t MapType) bool { return (&MapDef{Type: t}).HostOnly() }) {
		t.Errorf("%v", types)
	}
	for _, k := range Kinds() {
		if p, err := ParsePoint("cuda."+k.String()+"/k:*", ""); k == KindInsn && (err != nil || p.Kind != k) {
			t.Errorf("%s: %v", k, err)
		}
		if len(ContextFields(k)) == 0 {
			t.Errorf("%s has no context", k)
		}
	}
}

// TestHelperForms: each row of the table of helpers is done where it says so, and nowhere else.
func TestHelperForms(t *testing.T) {
	forms := new(unit).forms()
	atStops := make(map[int32]bool)
	kinds := maps.Clone(hostKinds)
	maps.Copy(kinds, syscallKinds)
	for section, kind := range kinds {
		for n, h := range new(unit).hostHelpers(kind, nil) {
			if atStops[n] = true; h.Interpret == nil {
				t.Errorf("helper %d, %s, is not done at a stop (%s)", n, h.Name, section)
			}
		}
	}
	for _, row := range helper.In(helper.All) {
		if has := forms[row.Number] != nil; has != (row.In&helper.Kernel != 0) {
			t.Errorf("helper %d, %s: PTX for it: %v, the table says %v", row.Number, row.Name, has, !has)
		}
		if has := atStops[row.Number]; has != (row.In&helper.Stop != 0) {
			t.Errorf("helper %d, %s: at stops: %v, the table says %v", row.Number, row.Name, has, !has)
		}
	}
	for n := range forms {
		if helper.Of(n) == nil {
			t.Errorf("helper %d has no row", n)
		}
	}
}
