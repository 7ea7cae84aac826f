package nvattach

import (
	"errors"
	"path/filepath"
	"testing"

	"nvtrace/fatbin"
	"nvtrace/internal/need"
	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
)

// testObjects reads the objects that tests attach, but those whose programs must be given a place first.
func testObjects(tb testing.TB) []*object.Object {
	tb.Helper()
	names, err := filepath.Glob("testdata/obj/*.bpf.o")
	if err != nil || len(names) == 0 {
		tb.Fatal("no objects", err)
	}
	var list []*object.Object
	for _, name := range names {
		o, err := object.Open(name)
		if err != nil {
			tb.Fatal(err)
		}
		if len(o.Programs)+len(o.Host) > 0 { // others run where --at says
			list = append(list, o)
		}
	}
	return list
}

// placedPlan plans an object's programs, and places their maps.
func placedPlan(tb testing.TB, o *object.Object) (*Plan, *mapmem.Maps) {
	tb.Helper()
	return placedPlanAt(tb, o, 0x7f1200000000)
}

func placedPlanAt(tb testing.TB, o *object.Object, base uint64) (*Plan, *mapmem.Maps) {
	tb.Helper()
	plan, err := NewPlan([]*object.Object{o}, &PlanOptions{AllowExit: true})
	if err != nil {
		tb.Fatal(err)
	}
	maps, err := plan.NewMaps(&mapmem.MapOptions{SMs: 132})
	if err != nil {
		tb.Fatal(err)
	}
	if err := maps.Place(base); err != nil {
		tb.Fatal(err)
	}
	return plan, maps
}

// Every program becomes a function that the assembler takes in the mode for tools, for
// each generation of GPUs.
func TestBodiesAssemble(t *testing.T) {
	need.OneThread(t)
	params := []fatbin.Param{{Offset: 0, Size: 8}, {Offset: 8, Size: 4}, {Offset: 12, Size: 2}, {Offset: 14, Size: 1}, {Offset: 16, Size: 40}}
	for _, o := range testObjects(t) {
		plan, maps := placedPlan(t, o)
		for _, q := range plan.Programs {
			if q.Point.Kind == object.KindRun {
				continue
			}
			for _, sm := range []uint32{75, 90, 120} {
				b, err := plan.bodyText(q, maps, fatbin.Arch{SM: sm}, params, "st.global.b32 [R2+16], R4;", bodyForm{guarded: q.Point.Kind == object.KindMem})
				if err != nil {
					if errors.Is(err, ErrNotWoven) && q.UsesOwn() || errors.Is(err, errBlocks) {
						continue
					}
					t.Errorf("%s %s: %v", o.Name, q.Name, err)
					continue
				}
				assemble(t, b.Text, fatbin.Arch{SM: sm}.String(), "--compile-as-tools-patch")
			}
		}
	}
}
