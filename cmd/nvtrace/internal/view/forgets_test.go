package view

import (
	"testing"

	"nvtrace/cmd/nvtrace/internal/observe"
	"nvtrace/nvattach/script"
	"nvtrace/traces"
)

// TestScriptForgets: what a program knows of threads and processes goes with them, as their ids do,
// and is bounded where ends are not seen.
func TestScriptForgets(t *testing.T) {
	p, err := script.Compile("-e", "apiret:cuInit { @[comm, rank] = count(); }")
	if err != nil {
		t.Fatal(err)
	}
	h := newHostScript(p, nil, func(string) {})
	add := func(ev *traces.Event) { h.Observe(&observe.Event{Event: ev}) }
	const pid, tid, child = 1<<22 + 1, 1<<22 + 2, 1<<22 + 3 // no process has so high an id
	check := func(when string, programs, ranks, stacks int) {
		t.Helper()
		if len(h.programs) != programs || len(h.ranks) != ranks || len(h.stacks) != stacks {
			t.Errorf("%s: %d programs, %d ranks and %d stacks are known, want %d, %d and %d", when, len(h.programs), len(h.ranks), len(h.stacks), programs, ranks, stacks)
		}
	}
	add(&traces.Event{Kind: traces.KindExec, PID: pid, TID: pid, Path: "/bin/app"})
	add(&traces.Event{Kind: traces.KindFork, PID: pid, TID: pid, Child: tid, Flags: traces.FlagThread})
	add(&traces.Event{Kind: traces.KindStack, PID: pid, TID: pid, Name: "cuInit"})
	add(&traces.Event{Kind: traces.KindStack, PID: pid, TID: tid, Name: "cuInit"})
	check("a process of two threads", 1, 1, 2)
	add(&traces.Event{Kind: traces.KindExit, PID: pid, TID: tid, Flags: traces.FlagThread})
	check("a thread has ended", 1, 1, 1)
	add(&traces.Event{Kind: traces.KindExit, PID: pid, TID: pid})
	check("the process has ended", 0, 0, 0)
	h.ranks[child], h.stacks[child] = 3, calledFrom{}
	add(&traces.Event{Kind: traces.KindExec, PID: pid, TID: pid, Path: "/bin/app"})
	add(&traces.Event{Kind: traces.KindFork, PID: pid, TID: pid, Child: child})
	if _, stale := h.ranks[child]; stale || len(h.stacks) != 0 || h.programs[child] != "app" {
		t.Errorf("a new process has an earlier one's rank or stack, or not its parent's program: %v, %v, %v", h.ranks, h.stacks, h.programs)
	}
	for i := range int32(maxKept + 10) {
		add(&traces.Event{Kind: traces.KindExec, PID: pid + i, TID: pid + i, Path: "/bin/app"})
		add(&traces.Event{Kind: traces.KindStack, PID: pid + i, TID: pid + i})
	}
	check("no ends are seen", maxKept, maxKept, maxKept)
}
