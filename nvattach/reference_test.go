package nvattach

import (
	"maps"
	"slices"
	"testing"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
)

// TestReference: what the reference lists is what there is.
func TestReference(t *testing.T) {
	types := MapTypes()
	for _, want := range []object.MapType{object.MapHash, object.MapArray, object.MapPerfEventArray, object.MapPerCPUHash, object.MapPerCPUArray, object.MapRingbuf, object.MapGPUThreadArray} {
		if !slices.Contains(types, want) {
			t.Errorf("%s is missing in %v", want, types)
		}
	}
	if slices.Contains(types, object.MapProgArray) || len(types) != 16 || slices.ContainsFunc(types, func(t object.MapType) bool { return (&object.MapDef{Type: t}).HostOnly() }) {
		t.Errorf("%v", types)
	}
	for _, k := range Kinds() {
		if p, err := object.ParsePoint("cuda."+k.String()+"/k:*", ""); k == object.KindInsn && (err != nil || p.Kind != k) {
			t.Errorf("%s: %v", k, err)
		}
		if len(proof.ContextFields(k)) == 0 {
			t.Errorf("%s has no context", k)
		}
	}
}

// TestHelperForms: each row of the table of helpers is done where it says so, and nowhere else.
func TestHelperForms(t *testing.T) {
	forms := new(proof.Unit).Forms()
	atStops := make(map[int32]bool)
	kinds := maps.Clone(object.HostKinds)
	maps.Copy(kinds, object.SyscallKinds)
	for section, kind := range kinds {
		for n, h := range hostHelpers(new(proof.Unit), kind, nil) {
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
