package proof

import (
	"testing"

	"nvtrace/nvattach/helper"
)

// TestHelperForms: each helper that the table gives kernels has PTX, and no other has.
func TestHelperForms(t *testing.T) {
	forms := new(Unit).forms()
	for _, row := range helper.In(helper.All) {
		if has := forms[row.Number] != nil; has != (row.In&helper.Kernel != 0) {
			t.Errorf("helper %d, %s: PTX for it: %v, the table says %v", row.Number, row.Name, has, !has)
		}
	}
	for n := range forms {
		if helper.Of(n) == nil {
			t.Errorf("helper %d has no row", n)
		}
	}
}
