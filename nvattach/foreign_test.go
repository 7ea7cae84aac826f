package nvattach

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nvtrace/nvattach/mapmem"
	"nvtrace/nvattach/object"
	"nvtrace/ptx"
	"nvtrace/ptx/emu"
)

// TestForeignObjects loads every object in the folder that NVTRACE_PROBE_OBJECTS
// names, weaves those that have programs into vectorAdd, runs it with each and shows
// the maps. It is for objects that are not in this repository.
func TestForeignObjects(t *testing.T) {
	dir := os.Getenv("NVTRACE_PROBE_OBJECTS")
	if dir == "" {
		t.Skip("NVTRACE_PROBE_OBJECTS names no folder of objects")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.o"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no objects in %s: %v", dir, err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			o, err := object.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			if err := o.List(&out); err != nil {
				t.Fatal(err)
			}
			defer func() { t.Log(out.String()) }()
			if len(o.Programs) == 0 {
				_, err := NewPlan([]*object.Object{o}, nil)
				out.WriteString("refused: " + err.Error())
				return
			}
			r := newRig(t, &PlanOptions{AllowExit: true}, o)
			if err := r.plan.List(&out); err != nil {
				t.Fatal(err)
			}
			foreign(t, r, &out)
		})
	}
}

func foreign(t *testing.T, r *rig, out *strings.Builder) {
	src := vectorAdd
	for _, p := range r.plan.Programs {
		// The kernel is given the name that the program wants.
		if p.Point.Exact && p.Point.Kernel != "" {
			src = strings.ReplaceAll(vectorAdd, "_Z9vectorAddPKfS0_Pf", p.Point.Kernel)
		}
		if p.Point.Kind == object.KindRun {
			text, kernel, err := r.plan.runModule(p, r.maps, ptx.Version{Major: 8}, ptx.Target{SM: 90})
			if err != nil {
				t.Fatal(err)
			}
			r.launch(text, kernel, emu.Dim3{X: 2}, emu.Dim3{X: 4}, nil)
		}
	}
	w := r.weave(src)
	out.WriteString(w.report())
	for _, q := range r.plan.Programs {
		// A program that ends threads changes what the kernel computes.
		r.unchecked = r.unchecked || slices.Contains(q.Report.Helpers, 507)
	}
	for _, q := range w.Kernels {
		text := strings.ReplaceAll(w.Text, q.Name, "_Z9vectorAddPKfS0_Pf")
		r.runAdd(text, 2, 5)
		r.runAdd(text, 2, 5)
	}
	for _, x := range r.maps.All {
		tab, err := r.maps.Read(r.machine, x)
		if err != nil {
			t.Fatal(err)
		}
		if err := tab.Print(out, nil); err != nil {
			t.Fatal(err)
		}
		if rd := r.maps.NewReader(x); rd != nil {
			if err := rd.Drain(r.machine, true, func(rec mapmem.Record) {
				out.Write(append(x.AppendRecord([]byte("  "), rec.Data), '\n'))
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := r.maps.NewPrinter(r.plan.Formats).Drain(r.machine, true, func(_ int, s string) { out.WriteString("> " + s) }); err != nil {
		t.Fatal(err)
	}
	for _, q := range r.plan.Programs {
		if n, err := r.plan.endedEarly(r.maps, r.machine, q); n != 0 || err != nil {
			t.Errorf("%s was ended %d times, %v", q.Name, n, err)
		}
	}
}
