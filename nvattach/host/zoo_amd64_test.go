package host

import (
	"debug/elf"
	"encoding/binary"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"nvtrace/internal/need"
)

// zoo compiles testdata/zoo.cc.
func zoo(t *testing.T, args ...string) string {
	t.Helper()
	need.Tool(t, "g++", "")
	bin := filepath.Join(t.TempDir(), "zoo")
	args = append([]string{"-w", "-o", bin, "testdata/zoo.cc", "-lpthread"}, args...)
	if b, err := exec.Command("g++", args...).CombinedOutput(); err != nil {
		t.Fatalf("g++: %v\n%s", err, b)
	}
	return bin
}

// TestZoo: with programs at the entry and the return of its functions, a program that throws
// exceptions through them, leaves them by longjmp, in signal handlers, by the end of its
// threads, or changes its stacks, does what it does without; and all calls and returns are
// counted.
func TestZoo(t *testing.T) {
	for name, args := range map[string][]string{
		"O1": {"-O1", "-no-pie"}, "O2": {"-O2", "-no-pie"}, "static": {"-O1", "-static"}, "frames": {"-O2", "-no-pie", "-fno-omit-frame-pointer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bin := zoo(t, args...)
			want, _ := untraced(t, bin)
			r := rigOf(t, "../testdata/obj/zoo.bpf.o", true)
			if status := r.run(bin); status != 0 || r.stdout.String() != want {
				t.Errorf("exit %d, %s\nwithout probes\n%s", status, r.stdout.String(), want)
			}
			slow := r.tracer.Slow()
			if strings.Contains(slow, "call of p_jumps_to") && !strings.Contains(slow, "more functions") {
				slow = "" // it is one jump of two bytes
			}
			if lost := r.runner.Losses(); slow != "" || len(lost) > 0 || len(r.said) > 0 {
				t.Errorf("%s; lost %v; said %q", slow, lost, r.said)
			}
			entries, returns := r.byFunction(bin, "entries"), r.byFunction(bin, "returns")
			for f, n := range map[string][2]uint64{
				"p_deep": {3001, 3001}, "p_frames": {12, 12}, "p_large": {1, 1}, "p_sum": {1, 1}, "p_leaves": {100, 0},
				"p_switches": {2, 1}, "p_rethrows": {1, 0}, "p_throws": {1 + 21 + 4 + 5 + 3, 0}, "p_catches": {4, 4},
				"p_jumps_to": {1, 1}, "p_thread": {2, 0}, "p_forks": {1, 2},
			} {
				if got := [2]uint64{entries[f], returns[f]}; got != n {
					t.Errorf("%s: %d entries and returns, want %d", f, got, n)
				}
			}
			if n := entries["p_outer"]; n < 160_000 || returns["p_outer"] != n || entries["p_busy"] != returns["p_busy"] || entries["p_busy"] != n+101 || entries["p_handler"] < 200 || returns["p_handler"] != entries["p_handler"] {
				t.Errorf("p_outer %d entries, %d returns; p_busy %d, %d", n, returns["p_outer"], entries["p_busy"], returns["p_busy"])
			}
			sum := int64(0)
			for _, n := range entries {
				sum += int64(n)
			}
			if r.variable("all_entries") != sum || r.variable("wrong") != 0 {
				t.Errorf("%d entries, %d by function; %d at the wrong place", r.variable("all_entries"), sum, r.variable("wrong"))
			}
		})
	}
}

// byFunction returns what a map has counted, by the function's name in a program that is
// mapped where it says.
func (r *rig) byFunction(bin, name string) map[string]uint64 {
	r.t.Helper()
	f, err := elf.Open(bin)
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		r.t.Fatal(err)
	}
	table, err := r.maps.Read(r.mem, r.maps.Find(name))
	if err != nil {
		r.t.Fatal(err)
	}
	counts := make(map[string]uint64)
	for _, row := range table.Rows {
		for _, s := range symbols {
			if s.Value == binary.LittleEndian.Uint64(row.Key) && elf.ST_TYPE(s.Info) == elf.STT_FUNC {
				counts[s.Name] = binary.LittleEndian.Uint64(row.Value)
			}
		}
	}
	return counts
}
