package nvattach

import (
	"maps"
	"slices"
	"strings"
	"testing"
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
	for _, h := range Helpers() {
		if h.Name == "" || strings.Contains(strings.Join(h.Args, "\x00"), "\x00\x00") {
			t.Errorf("helper %d: %+v", h.Number, h)
		}
	}
	// The header, from which programs call them, has each by its number.
	for _, h := range Helpers() {
		if h.Number >= HelperLog2 && !strings.Contains(Header, "(*"+h.Name+")(") {
			t.Errorf("the header lacks %s", h.Name)
		}
	}
}

// TestHelperNumbers: a number means the same helper wherever programs run.
func TestHelperNumbers(t *testing.T) {
	names := map[int32]string{}
	for n, h := range new(unit).helpers() {
		names[n] = h.Name
	}
	kinds := maps.Clone(hostKinds)
	maps.Copy(kinds, syscallKinds)
	for section, kind := range kinds {
		for n, h := range new(unit).hostHelpers(kind, nil) {
			if old, ok := names[n]; ok && old != h.Name {
				t.Errorf("helper %d is %s, and %s at %s", n, old, h.Name, section)
			}
			names[n] = h.Name
		}
	}
}
