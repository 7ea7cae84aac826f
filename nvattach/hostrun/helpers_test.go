package hostrun

import (
	"maps"
	"testing"

	"nvtrace/nvattach/helper"
	"nvtrace/nvattach/object"
	"nvtrace/nvattach/proof"
)

// TestHelperForms: each helper that the table gives stops has a meaning there, and no other has.
func TestHelperForms(t *testing.T) {
	atStops := make(map[int32]bool)
	kinds := maps.Clone(object.HostKinds)
	maps.Copy(kinds, object.SyscallKinds)
	for section, kind := range kinds {
		for n, h := range helpers(new(proof.Unit), kind, nil) {
			if atStops[n] = true; h.Interpret == nil {
				t.Errorf("helper %d, %s, is not done at a stop (%s)", n, h.Name, section)
			}
		}
	}
	for _, row := range helper.In(helper.All) {
		if has := atStops[row.Number]; has != (row.In&helper.Stop != 0) {
			t.Errorf("helper %d, %s: at stops: %v, the table says %v", row.Number, row.Name, has, !has)
		}
	}
}
