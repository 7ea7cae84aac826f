package ptrace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// dupRules are the second filter of these tests.
func dupRules() []Rule {
	return []Rule{{Names: []string{"dup"}, Class: 20}, {Names: []string{"close"}, Class: 21}, {Names: []string{"munmap"}, Class: 22}}
}

func needInjection(t *testing.T) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("injection is written for amd64 only")
	}
}

// TestInject installs a second filter at an entry and at an exit, while another
// thread works and signals come in, and looks whether all calls are seen
// afterwards, also in a child.
func TestInject(t *testing.T) {
	needInjection(t)
	victim := build(t, "victim")
	want := runPlain(t, victim, "inject")
	for _, where := range []string{"entry", "exit", "all"} {
		t.Run(where, func(t *testing.T) {
			for range 5 {
				testInject(t, victim, where, want)
			}
		})
	}
}

func testInject(t *testing.T, victim, where string, want outcome) {
	t.Helper()
	h := &tape{verdict: WantExit}
	seen := map[int]map[uint16]int{} // by pid, after the installation
	installed := false
	install := func(task *Task, c *Syscall) {
		if c.Class != 1 {
			return
		}
		before := *c
		f := task.InjectFilter
		if where == "all" {
			f = task.TraceAll
		}
		for range 2 { // the second time it is there
			if err := f(nil); err != nil {
				t.Error(err)
			}
		}
		if *c != before {
			t.Errorf("the call was changed: %+v, %+v", before, *c)
		}
		installed = true
	}
	if where == "exit" {
		h.onExit = install
	}
	h.onEnter = func(task *Task, c *Syscall) {
		if where != "exit" {
			install(task, c)
		}
		if c.Class >= 20 {
			if !installed {
				t.Error("a call of the second filter before its installation")
			}
			if seen[task.PID] == nil {
				seen[task.PID] = map[uint16]int{}
			}
			if task.TID == task.PID { // the other thread began before
				seen[task.PID][c.Class]++
			}
		}
	}
	got, res := runTraced(t, &Options{ExtraRules: dupRules()}, h, victim, "inject")
	if got != want {
		t.Errorf("%+v, untraced %+v", got, want)
	}
	h.check(t)
	if len(seen) != 2 {
		t.Fatalf("second filter seen in %d processes: %v", len(seen), seen)
	}
	for pid, n := range seen {
		if n[20] != 50 || n[21] < 50 {
			t.Errorf("process %d: %d dups and %d closes of 50", pid, n[20], n[21])
		}
	}
	if wantN := uint64(1); where != "all" && res.Injected != wantN || where == "all" && res.Injected != 0 {
		t.Errorf("%d injections", res.Injected)
	}
}

// TestInjectExplicit injects two further rule lists in one process.
func TestInjectExplicit(t *testing.T) {
	needInjection(t)
	victim := build(t, "victim")
	h := &tape{verdict: WantExit}
	classes := map[uint16]int{}
	h.onEnter = func(task *Task, c *Syscall) {
		classes[c.Class]++
		if c.Class != 1 {
			return
		}
		for _, name := range []string{"dup", "close", "dup", "close"} {
			class := uint16(len(name))
			if err := task.InjectFilter([]Rule{{Names: []string{name}, Class: class}}); err != nil {
				t.Error(err)
			}
		}
		if err := task.InjectFilter(nil); !errors.Is(err, ErrInject) {
			t.Errorf("no extra rules: %v", err)
		}
		if err := task.InjectFilter([]Rule{{Names: []string{"no such call"}}}); err == nil {
			t.Error("bad rules: no error")
		}
	}
	got, res := runTraced(t, &Options{}, h, victim, "inject", "filters")
	h.check(t)
	// The filter count is that of the kernel: ours, and one for each list.
	if base, ok := filterCount(os.Getpid()); ok && !strings.Contains(got.output, fmt.Sprintf("filters=%d\n", base+3)) {
		t.Errorf("%q", got.output)
	}
	if res.Injected != 2 || classes[3] < 100 || classes[5] < 100 {
		t.Errorf("%d injections, calls by class: %v", res.Injected, classes)
	}
}

// TestInjectForeign refuses a program whose own filter forbids what it takes, and falls
// back. What that filter forbids is not done, even where it would fail only.
func TestInjectForeign(t *testing.T) {
	needInjection(t)
	if _, ok := filterCount(os.Getpid()); !ok {
		t.Skip("the kernel does not tell how many filters a process has")
	}
	victim := build(t, "victim")
	h := &tape{verdict: WantExit}
	writes := 0
	h.onEnter = func(task *Task, c *Syscall) {
		if c.Class == 20 {
			writes++
			return
		}
		if err := task.InjectFilter(nil); !errors.Is(err, ErrInject) || !errors.Is(err, ErrConfined) {
			t.Errorf("error %v", err)
		}
		if _, err := task.Syscall(unix.SYS_GETPPID); !errors.Is(err, ErrConfined) || errors.Is(err, unix.EDOM) {
			t.Errorf("forbidden call: %v", err)
		}
		if pid, err := task.Syscall(unix.SYS_GETPID); int(pid) != task.PID || err != nil {
			t.Errorf("allowed call: %d, %v", pid, err)
		}
		if err := task.TraceAll(nil); err != nil {
			t.Error(err)
		}
	}
	got, _ := runTraced(t, &Options{ExtraRules: []Rule{{Names: []string{"write"}, Class: 20}}}, h, victim, "own_filter")
	if want := runPlain(t, victim, "own_filter"); got != want {
		t.Errorf("%+v, untraced %+v", got, want)
	}
	h.check(t)
	if writes != 1 {
		t.Errorf("%d writes seen after the fallback", writes)
	}
}

// TestInjectThread injects into a new thread and a new process before their first
// instruction.
func TestInjectNew(t *testing.T) {
	needInjection(t)
	victim := build(t, "victim")
	for name, want := range map[string]uint64{"fork": 3, "fork_in_thread": 10, "threads": 2, "vfork": 4} {
		h := &tape{verdict: WantExit}
		n := 0
		h.onTask = func(task *Task, e *TaskEvent) {
			if e.Kind == TaskNew && e.Parent != nil {
				if err := task.InjectFilter(nil); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				n++
			}
			if e.Kind == TaskExec {
				if err := task.InjectFilter(dupRules()); err != nil {
					t.Errorf("%s: injection at an exec: %v", name, err)
				}
			}
		}
		got, res := runTraced(t, &Options{ExtraRules: []Rule{{Names: []string{"getppid"}}}}, h, victim, name)
		if plain := runPlain(t, victim, name); got != plain {
			t.Errorf("%s: %+v, untraced %+v", name, got, plain)
		}
		h.check(t)
		if n == 0 || res.Injected == 0 || res.Injected > want {
			t.Errorf("%s: %d injections for %d new tasks", name, res.Injected, n)
		}
	}
}

// TestInjectStopped: job control stops a process during injections, again and
// again.
func TestInjectStopped(t *testing.T) {
	needInjection(t)
	victim := build(t, "victim")
	stops := 0
	h := &tape{verdict: WantExit}
	h.onTask = func(task *Task, e *TaskEvent) {
		if e.Kind == TaskStop {
			stops++
			unix.Kill(task.PID, unix.SIGCONT)
		}
	}
	class := uint16(100)
	h.onExit = func(task *Task, c *Syscall) {
		if h.enters%7 == 0 && stops < 100 {
			unix.Kill(task.PID, unix.SIGSTOP)
		}
		if class < 160 { // a new list every time
			class++
			if err := task.InjectFilter([]Rule{{Names: []string{"getppid"}, Class: class}}); err != nil {
				t.Error(err)
			}
		}
	}
	got, _ := runTraced(t, &Options{}, h, victim, "itimer")
	if stops < 5 {
		t.Errorf("only %d stops", stops)
	}
	if got.output != "bad=0 signals=1\n" || got.status != 0 {
		t.Errorf("%+v", got)
	}
	h.check(t)
	if class != 160 {
		t.Errorf("%d injections", class-100)
	}
}

// TestInjectKilled: the program is killed during injections.
func TestInjectKilled(t *testing.T) {
	needInjection(t)
	victim := build(t, "victim")
	for i := range 20 {
		h := &tape{verdict: WantExit}
		class := uint16(100)
		h.onEnter = func(task *Task, c *Syscall) {
			class++
			err := task.InjectFilter([]Rule{{Names: []string{"getppid"}, Class: class}})
			if err != nil && !errors.Is(err, ErrGone) && !errors.Is(err, unix.ENOMEM) { // too many filters
				t.Error(err)
			}
		}
		o := &Options{Argv: []string{victim, "calls", "1000000000"}, Rules: victimRules(), Started: func(pid int) {
			time.AfterFunc(time.Duration(5+i)*time.Millisecond, func() { unix.Kill(pid, unix.SIGKILL) })
		}}
		res, err := Run(context.Background(), o, h)
		if err != nil || !res.Status.Signaled() {
			t.Errorf("%+v, %v", res, err)
		}
		h.check(t)
	}
}

// TestGoVictim traces a Go program, whose stacks are small and whose runtime
// signals itself, and injects into it.
func TestGoVictim(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "govictim")
	if out, err := runGo("build", "-o", bin, "./testdata/govictim"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want := runPlain(t, bin)
	modes(t, func(t *testing.T, mode SeccompMode) {
		h := &tape{verdict: WantExit}
		calls := 0
		h.onEnter = func(task *Task, c *Syscall) {
			if c.Class == 1 {
				calls++
				if err := task.InjectFilter(nil); err != nil && runtime.GOARCH == "amd64" {
					t.Error(err)
				}
			}
		}
		got, _ := runTraced(t, &Options{Seccomp: mode, ExtraRules: dupRules()}, h, bin)
		if got != want {
			t.Errorf("%+v, untraced %+v", got, want)
		}
		h.check(t)
		if calls != 8*200 {
			t.Errorf("%d calls seen", calls)
		}
	})
}
