package host

import (
	"debug/elf"
	"path/filepath"
	"testing"
)

// TestStacks: who has called a function, though returns are watched; and a map that keeps
// what was used of late.
func TestStacks(t *testing.T) {
	both(t, func(t *testing.T, inside bool) {
		bin := filepath.Join(t.TempDir(), "stacks")
		compile(t, "-O1", "-fno-omit-frame-pointer", "-w", "-no-pie", "-o", bin, "testdata/stacks.c")
		want, _ := untraced(t, bin)
		r := rigOf(t, "../testdata/obj/stacks.bpf.o", inside)
		if status := r.run(bin); status != 0 || r.stdout.String() != want {
			t.Errorf("exit %d, %q, want %q", status, r.stdout.String(), want)
		}
		f, err := elf.Open(bin)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		symbols, err := f.Symbols()
		if err != nil {
			t.Fatal(err)
		}
		in := func(variable, function string) {
			t.Helper()
			for _, s := range symbols {
				if at := uint64(r.variable(variable)); s.Name == function && at-s.Value < s.Size {
					return
				}
			}
			t.Errorf("%s is %#x, not in %s", variable, r.variable(variable), function)
		}
		in("first", "inner")
		in("second", "outer")
		in("third", "main")
		in("skipped", "main")
		in("returned_first", "outer")
		if n := r.variable("size"); n < 3*8 || n > 8*8 || n%8 != 0 {
			t.Errorf("%d bytes of stack", n)
		}
		by, err := r.maps.Read(r.mem, r.maps.Find("by_stack"))
		if err != nil {
			t.Fatal(err)
		}
		counts := map[byte]int{}
		for _, row := range by.Rows {
			counts[row.Value[0]]++
			stack, err := r.maps.Lookup(r.mem, r.maps.Find("stacks"), row.Key)
			if err != nil || len(stack) != 16*8 || stack[0] == 0 && stack[1] == 0 {
				t.Errorf("stack % x is % x, %v", row.Key, stack, err)
			}
		}
		if len(by.Rows) != 2 || counts[5] != 1 || counts[3] != 1 {
			t.Errorf("stacks %v", counts)
		}
		if table, err := r.maps.Read(r.mem, r.maps.Find("stacks")); err != nil || len(table.Rows) != 2 {
			t.Errorf("%d stacks, %v", len(table.Rows), err)
		}
		recent, err := r.maps.Read(r.mem, r.maps.Find("recent"))
		if err != nil || len(recent.Rows) > 100 || len(recent.Rows) < 90 {
			t.Errorf("%d entries, %v", len(recent.Rows), err)
		}
		for variable, n := range map[string]int64{"numbers": 2000, "refused": 0, "found": 2000, "highest": 10 + 10} {
			if got := r.variable(variable); got != n {
				t.Errorf("%s is %d, want %d", variable, got, n)
			}
		}
		if lost := r.runner.Losses(); len(lost) > 0 || inside != (r.agent != nil && r.agent.Stats().Probes > 2) {
			t.Errorf("lost %v; %s", lost, r.tracer.Slow())
		}
	})
}
