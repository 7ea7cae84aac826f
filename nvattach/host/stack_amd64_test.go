package host

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"nvtrace/nvattach/mapmem"
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
		stacks, err := r.maps.Read(r.mem, r.maps.Find("stacks"))
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		print := &mapmem.PrintOptions{Place: func(addr uint64, returned bool) string {
			at := r.tracer.NameAnywhere(addr, returned)
			return fmt.Sprintf("%s+%#x (%s)", at.Func, at.Into, filepath.Base(at.File))
		}}
		if err := stacks.Print(&text, print); err != nil {
			t.Error(err)
		}
		whole := fmt.Sprintf(`    %#x inner\+0x0 \(stacks\)\n +0x[0-9a-f]+ outer\+0x[1-9a-f][0-9a-f]* \(stacks\)\n +0x[0-9a-f]+ main\+0x`, r.variable("first"))
		if !regexp.MustCompile(whole).MatchString(text.String()) {
			t.Errorf("no %s in\n%s", whole, text.String())
		}
		if s := string(stacks.AppendJSON(nil, nil)); !strings.Contains(s, fmt.Sprintf(`"value": ["%#x", "0x`, r.variable("first"))) || strings.Contains(s, "places") {
			t.Error(s)
		}
		whole = fmt.Sprintf(`"value": \["%#x", "0x[^]]*\], "places": \["inner\+0x0 \(stacks\)", "outer\+0x[1-9a-f][0-9a-f]* \(stacks\)", "main\+0x`, r.variable("first"))
		if s := string(stacks.AppendJSON(nil, print)); !regexp.MustCompile(whole).MatchString(s) {
			t.Errorf("no %s in\n%s", whole, s)
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

// ours reports whether an address is the agent's: libgcc finds it in between where returns are watched.
func ours(word string) bool { return strings.HasPrefix(word, "7000") && len(word) == 8 }

// TestUnwound: stacks of programs without frame pointers, through signal handlers, functions of
// libraries and functions whose return is watched, are those that libgcc finds in the program.
func TestUnwound(t *testing.T) {
	both(t, func(t *testing.T, inside bool) {
		for _, args := range [][]string{{"-O2", "-fomit-frame-pointer"}, {"-O0"}, {"-O2", "-static"}} {
			bin := filepath.Join(t.TempDir(), "callers")
			compile(t, slices.Concat(args, []string{"-w", "-rdynamic", "-o", bin, "testdata/callers.c"})...)
			r := rigOf(t, "../testdata/obj/callers.bpf.o", inside)
			if status := r.run(bin); status != 0 {
				t.Fatalf("%v: exit %d, %v", args, status, r.said)
			}
			var got, want [4][]string
			for _, rec := range r.records {
				b := []byte(strings.TrimPrefix(rec, "lists "))
				word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
				list := ""
				for i := range int(word(1)) / 8 {
					list += fmt.Sprintf(" %x", word(2+i))
				}
				got[word(0)] = append(got[word(0)], list)
			}
			for line := range strings.Lines(r.stdout.String()) {
				where, list, _ := strings.Cut(strings.TrimSpace(line), " ")
				words := slices.DeleteFunc(strings.Fields(list), ours)
				want[where[0]-'0'] = append(want[where[0]-'0'], strings.Join(words, " "))
			}
			for where, skip := range []int{1: 1, 2: 0, 3: 2} {
				if len(got[where]) != len(want[where]) || where > 0 && len(want[where]) < 9 {
					t.Fatalf("%v: %d lists of %d at place %d; %v", args, len(got[where]), len(want[where]), where, r.said)
				}
				for i, list := range got[where] {
					words := strings.Fields(list)
					if len(words) < skip || strings.Join(words[skip:], " ") != want[where][i] {
						t.Errorf("%v: place %d, stack %d: %s, want %s (%d left out)", args, where, i, list, want[where][i], skip)
					}
				}
			}
			if inside && (r.agent == nil || r.tracer.Slow() != "") {
				t.Errorf("%v: %s", args, r.tracer.Slow())
			}
		}
	})
}
