package agent

import (
	"debug/elf"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"nvtrace/ptrace"
	"nvtrace/ptrace/proc"
)

// exports lists the functions of a mapped library by their run-time addresses.
func exports(t testing.TB, pid int, part string) []Target {
	maps, err := proc.Maps(pid)
	if err != nil {
		t.Fatal(err)
	}
	for i := range maps {
		m := &maps[i]
		if !strings.Contains(m.Path, part) {
			continue
		}
		base := m.Start // the first is that of offset 0
		e, err := elf.Open(m.Path)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		syms, err := e.DynamicSymbols()
		if err != nil {
			t.Fatal(err)
		}
		var list []Target
		seen := map[uint64]bool{}
		for _, s := range syms {
			if elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Section == elf.SHN_UNDEF || seen[s.Value] {
				continue
			}
			seen[s.Value] = true
			list = append(list, Target{Addr: base + s.Value, Hook: &Hook{Name: s.Name, Library: m.Path}})
		}
		return list
	}
	t.Fatal("no mapping of ", part)
	return nil
}

// TestHookLibrary hooks every function of libm. Nearly all can be, and the
// program, which passes numbers in vector registers, computes the same.
func TestHookLibrary(t *testing.T) {
	bin := compile(t, "testdata/libm.c", "-lm", "-fno-builtin")
	want, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	tr := newTracer(t)
	hooked, refused := 0, map[string]int{}
	tr.mark = func(tk *ptrace.Task, _ *ptrace.Syscall) {
		p, err := tr.a.Process(tk)
		if err != nil {
			t.Fatal(err)
		}
		list := exports(t, tk.PID, "libm.so")
		if err := p.HookAll(tk, list); err != nil {
			t.Fatal(err)
		}
		for i := range list {
			if list[i].Err == nil {
				hooked++
			} else {
				refused[list[i].Err.Error()]++
			}
		}
	}
	got := tr.run(bin, "hook")
	if got != string(want) {
		t.Errorf("printed %q, want %q", got, want)
	}
	calls, returns, un := tr.nesting()
	if calls < 1000 || returns != calls || un != 0 {
		t.Errorf("%d calls, %d returns, %d unfinished", calls, returns, un)
	}
	n := 0
	for why, k := range refused {
		t.Log(k, why)
		n += k
	}
	if n*20 > hooked {
		t.Errorf("%d functions hooked, %d refused", hooked, n)
	}
	t.Logf("%d functions hooked, %d refused; %d calls", hooked, n, calls)
}

// BenchmarkHook is the cost of a hooked call, with its return, beyond the two
// readings of the clock, and of one with Once that was seen before.
func BenchmarkHook(b *testing.B) {
	bin := compile(b, "testdata/hooks.c")
	for _, once := range []bool{false, true} {
		b.Run(fmt.Sprint("once=", once), func(b *testing.B) {
			const calls = 300000
			var mean, median, clock float64
			for b.Loop() {
				tr := newTracer(b)
				tr.count = true
				tr.hooks(&Hook{Name: "add", Once: once})
				var x, y, z float64
				if _, err := fmt.Sscan(tr.run(bin, "bench", fmt.Sprint(calls)), &x, &y, &z); err != nil {
					b.Fatal(err)
				}
				if want := 2 * calls; !once && tr.n != want || once && tr.n != 2 {
					b.Fatalf("%d records", tr.n)
				}
				mean, median, clock = mean+x, median+y, clock+z
			}
			n := float64(b.N)
			b.ReportMetric(mean/n, "ns/call")
			b.ReportMetric(median/n, "ns/call-alone")
			b.ReportMetric(clock/n, "ns/clock")
			b.ReportMetric((median-2*clock)/n, "ns/call-beyond-clock")
		})
	}
}
