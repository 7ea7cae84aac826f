package session

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"nvtrace/nvattach"
)

// TestKernelLines: of the thousands of kernels that a framework loads, those that were
// launched are told of, and reasons once.
func TestKernelLines(t *testing.T) {
	session := func(verbose bool, ran ...string) (*Session, *bytes.Buffer) {
		var b bytes.Buffer
		s := New(&Options{Out: &b, Verbose: verbose})
		var r nvattach.Rewritten
		for i := range 4000 {
			r.Unprobed = append(r.Unprobed, nvattach.Unprobed{Kernel: fmt.Sprintf("sass%d", i), Reason: "it is there as machine code only"})
		}
		for i := range 40 {
			r.Unprobed = append(r.Unprobed, nvattach.Unprobed{Kernel: fmt.Sprintf("odd%d", i), Reason: fmt.Sprintf("reason %d", i)})
		}
		for i := range 900 {
			r.Kernels = append(r.Kernels, nvattach.KernelReport{Name: fmt.Sprintf("ptx%d", i)})
		}
		s.note(&r, "")
		if ran != nil {
			s.LooksAtLaunches()
		}
		for _, k := range ran {
			s.Ran(k)
		}
		return s, &b
	}
	var many []string
	for i := range 900 {
		many = append(many, fmt.Sprintf("ptx%d", i), fmt.Sprintf("sass%d", i), fmt.Sprintf("odd%d", i))
	}
	for _, tt := range []struct {
		name    string
		verbose bool
		ran     []string
		lines   int
		want    []string
	}{
		{
			name: "some launched", ran: []string{"ptx7", "sass3", "sass9", "odd1", "of nobody's interest"}, lines: 5,
			want: []string{
				"probed 1 of 4 launched kernels",
				"probed ptx7 (0 sites)", "NOT probed 2 kernels: it is there as machine code only: sass3, sass9", "NOT probed odd1: reason 1",
				"not launched by the host: 4936 kernels, 899 of them with probes",
			},
		},
		{
			name: "none with probes launched by the host", ran: []string{"sass3", "sass9"}, lines: 2,
			want: []string{"NOT probed 2 kernels: it is there as machine code only: sass3, sass9", "not launched by the host: 4938 kernels, 900 of them with probes"},
		},
		{
			name: "many launched", ran: many, lines: maxProbed + 1 + maxReasons + 1 + 1 + 1,
			want: []string{
				"probed 892 more kernels (-v lists them)", "NOT probed 900 kernels: it is there as machine code only: sass0, sass1, sass2, …",
				"probed 900 of 1840 launched kernels",
				"NOT probed 37 more kernels, for 37 other reasons (-v lists them)", "not launched by the host: 3100 kernels, none of them with probes",
			},
		},
		{
			name: "launches not seen", lines: maxProbed + 1 + maxReasons + 1 + 1,
			want: []string{"probed 892 more kernels (-v lists them)", "NOT probed 4000 kernels: it is there as machine code only: sass0, sass1, sass2, …"},
		},
		{
			name: "one of an unknown name", ran: []string{"ptx7", ""}, lines: maxProbed + 1 + maxReasons + 1 + 1,
			want: []string{"probed 892 more kernels (-v lists them)"},
		},
		{name: "all", verbose: true, ran: []string{"ptx7"}, lines: 4940, want: []string{"probed ptx8 (0 sites)", "NOT probed sass3999: it is there as machine code only"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, b := session(tt.verbose, tt.ran...)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
			if len(lines) != tt.lines {
				t.Errorf("%d lines, want %d:\n%.3000s", len(lines), tt.lines, b)
			}
			for _, w := range tt.want {
				found := false
				for _, l := range lines {
					found = found || l == w
				}
				if !found {
					t.Errorf("no line %q in\n%.3000s", w, b)
				}
			}
		})
	}
}

// TestKernelTotal: the last word says of how many launches there are counts.
func TestKernelTotal(t *testing.T) {
	for _, tt := range []struct {
		launches map[string]uint64
		refused  int
		want     string
		lost     bool
	}{
		{want: "probed 1 of 3 launched kernels", launches: map[string]uint64{"in": 5, "out": 1, "half": 1}, lost: true},
		{nil, 0, "probed 1 of 3 launched kernels", false},
		{map[string]uint64{"in": 1472, "out": 2, "half": 1}, 0, "probed 1 of 3 launched kernels, 99.8% of 1,475 launches", false},
		{map[string]uint64{"in": 9999, "out": 1}, 0, "probed 1 of 3 launched kernels, 99.9% of 10,000 launches; those of 1 kernel, in graphs, were not counted", false},
		{map[string]uint64{"in": 4, "out": 3, "half": 1}, 2, "probed 1 of 3 launched kernels, 25% of 8 launches", false},
		{map[string]uint64{"in": 1, "out": 1, "half": 999998}, 0, "probed 1 of 3 launched kernels, 0.1% of 1,000,000 launches", false},
		{map[string]uint64{"in": 0, "out": 1, "half": 0}, 0, "probed 1 of 3 launched kernels, 0% of 1 launch; those of 2 kernels, in graphs, were not counted", false},
	} {
		var b bytes.Buffer
		s := New(&Options{Out: &b})
		s.LooksAtLaunches()
		s.note(&nvattach.Rewritten{
			Kernels:  []nvattach.KernelReport{{Name: "in"}, {Name: "half"}, {Name: "idle"}},
			Unprobed: []nvattach.Unprobed{{Kernel: "out", Reason: "no registers"}, {Kernel: "half", Reason: "no registers"}},
		}, "")
		for _, k := range []string{"in", "out", "half"} {
			s.Ran(k)
			if n := tt.launches[k]; n > 0 {
				s.CountLaunches(k, n)
			}
		}
		if tt.lost {
			s.CountLaunches("", 0)
		}
		for range tt.refused {
			s.RanUnprobed("in", TooManyRegisters)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), "\n"+tt.want+"\n") {
			t.Errorf("no line %q in\n%s", tt.want, &b)
		}
	}
}

// TestKernelNames: a name of a kilobyte is not a line of a kilobyte.
func TestKernelNames(t *testing.T) {
	if got := shortName(strings.Repeat("k", 1000)); len([]rune(got)) != maxName {
		t.Errorf("%d characters", len([]rune(got)))
	}
}

// TestKernelOrigins: where kernels came from is told in the order of their launches.
func TestKernelOrigins(t *testing.T) {
	for _, tt := range []struct {
		files, launches int
		want            []string
	}{
		{1, 2, nil},
		{3, 0, []string{"  lib0.so: 1 of 2 kernels", "  lib1.so: 1 of 2 kernels", "  lib2.so: 1 of 2 kernels"}},
		{3, 1, []string{"  lib2.so: 1 of 2 kernels, 62.5% of 8 launches", "  lib1.so: 1 of 2 kernels, 60% of 5 launches", "  lib0.so: 1 of 2 kernels, 50% of 2 launches"}},
		{maxOrigins + 2, 1, append(slices.Repeat([]string{""}, maxOrigins), "  2 more files: 2 of 4 kernels, 57.1% of 7 launches")},
	} {
		var b bytes.Buffer
		s := New(&Options{Out: &b})
		s.LooksAtLaunches()
		for i := range tt.files {
			in, out := fmt.Sprintf("in%d", i), fmt.Sprintf("out%d", i)
			s.note(&nvattach.Rewritten{
				Kernels:  []nvattach.KernelReport{{Name: in}, {Name: fmt.Sprintf("idle%d", i)}},
				Unprobed: []nvattach.Unprobed{{Kernel: out, Reason: "no registers"}},
			}, fmt.Sprintf("lib%d.so", i))
			s.note(&nvattach.Rewritten{Kernels: []nvattach.KernelReport{{Name: in}}}, "elsewhere.so")
			s.Ran(in)
			s.Ran(out)
			if tt.launches > 0 {
				s.CountLaunches(in, uint64(2*i+1))
				s.CountLaunches(out, uint64(i+1))
			}
		}
		got := s.origins(s.Kernels())
		same := len(got) == len(tt.want)
		for i := 0; same && i < len(got); i++ {
			same = tt.want[i] == "" || got[i] == tt.want[i]
		}
		if !same {
			t.Errorf("%d files: %q, want %q", tt.files, got, tt.want)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(b.String(), "kernels, "); tt.files > 1 && tt.launches > 0 && n < len(tt.want) {
			t.Errorf("%d lines of %d", n, len(tt.want))
		}
	}
}
