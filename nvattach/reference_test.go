package nvattach

import (
	"slices"
	"testing"

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
