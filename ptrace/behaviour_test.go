package ptrace

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"nvtrace/internal/need"

	"golang.org/x/sys/unix"
)

// behaviours are all that the victim can do in a way that does not depend on
// chance. calls is how many selected calls it makes, -1 where that varies.
var behaviours = []struct {
	name, arg string
	calls     int
	tasks     int // threads and processes, 0: not checked
}{
	{"hello", "", 1, 1},
	{"status", "42", 0, 1},
	{"death", "15", 0, 1},
	{"segv", "", 0, 1},
	{"segv_handler", "", 1, 1},
	{"fork", "", 1, 2},
	{"vfork", "", 1, 2},
	{"spawn", "", 1, 2},
	{"raw_fork", "", 1, 2},
	{"threads", "", 4 * 64 * 10, 1 + 4*64},
	{"thread_exec", "", 1, 6},
	{"leader_exec", "", 1, 2},
	{"leader_exit", "", 1, 2},
	{"dead_leader_exec", "", 1, 2},
	{"exit_group", "", -1, 31},
	{"fork_in_thread", "", 4, 9},
	{"stop_cont", "", 1, 2},
	{"tstp", "", 1, 2},
	{"stop_threads", "", -1, 0},
	{"sig_queue", "", 20, 1},
	{"sig_trap", "", 1, 1},
	{"itimer", "", 5000, 1},
	{"eintr", "", 0, 1},
	{"restart", "", 0, 2},
	{"nanosleep_stop", "", 0, 2},
	{"untraced", "", 1, 2},
	{"untraced3", "", 1, 0},
	{"int80", "x", -1, 1},
	{"bad_pointer", "", 5, 1},
	{"undumpable", "", 2, 2},
	{"set_uid", "", 1, 1},
	{"orphan", "x", 1, 3},
	{"kill_self", "", -1, 5},
	{"sig_mask", "", 1, 1},
	{"many_forks", "", 100, 101},
	{"fork_tree", "", 64, 64},
	{"new_pid_ns", "", -1, 0},
	{"own_filter", "", 1, 1},
	{"inject", "", 1, 3},
}

// TestBehaviour runs every behaviour untraced and traced, in both modes, and
// with and without exits: what the program prints and how it ends must be the
// same, and the tracer must have seen all of its calls.
func TestBehaviour(t *testing.T) {
	victim := build(t, "victim")
	for _, b := range behaviours {
		t.Run(b.name, func(t *testing.T) {
			argv := []string{victim, b.name}
			if b.arg != "" {
				argv = append(argv, b.arg)
			}
			want := runPlain(t, argv...)
			for _, verdict := range []Verdict{WantExit, Skip} {
				modes(t, func(t *testing.T, mode SeccompMode) {
					h := &tape{verdict: verdict}
					got, res := runTraced(t, &Options{Seccomp: mode}, h, argv...)
					if got != want {
						t.Errorf("traced %#x %q\nuntraced %#x %q", uint32(got.status), got.output, uint32(want.status), want.output)
					}
					h.check(t)
					if b.calls >= 0 && h.enters != b.calls {
						t.Errorf("%d calls seen, %d made", h.enters, b.calls)
					}
					if b.tasks > 0 && int(res.Tasks) != b.tasks {
						t.Errorf("%d tasks seen, there were %d", res.Tasks, b.tasks)
					}
					if wantMode := map[SeccompMode]Mode{SeccompAuto: ModeSeccomp, SeccompOff: ModeSyscalls}[mode]; res.Mode != wantMode {
						t.Errorf("mode %v (%s), want %v", res.Mode, res.Reason, wantMode)
					}
					checkCalls(t, h)
				})
			}
		})
	}
}

// checkCalls checks the fields of the victim's calls.
func checkCalls(t *testing.T, h *tape) {
	t.Helper()
	for i := range h.calls {
		c := &h.calls[i]
		ret := int64(-int(unix.ENOTTY))
		if h.verdict == Skip {
			ret = 0
		}
		if c.Name() != "ioctl" || uint32(c.Args[1]) != victimRequest || c.Class != 1 || c.Ret != ret || c.Restarted ||
			c.Compat != (c.Arch != nativeArch) || c.IP == 0 || c.SP == 0 {
			t.Errorf("call %d of task %d: %+v", i, h.tids[i], *c)
			return
		}
	}
}

// TestExitStatus passes every exit status and death on.
func TestExitStatus(t *testing.T) {
	victim := build(t, "victim")
	modes(t, func(t *testing.T, mode SeccompMode) {
		for code := range 256 {
			got, _ := runTraced(t, &Options{Seccomp: mode}, &tape{}, victim, "status", fmt.Sprint(code))
			if !got.status.Exited() || got.status.ExitStatus() != code {
				t.Errorf("exit status %d became %#x", code, uint32(got.status))
			}
		}
		for sig := syscall.Signal(1); sig < 65; sig++ {
			switch sig {
			case unix.SIGCHLD, unix.SIGCONT, unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGURG, unix.SIGWINCH:
				continue // don't kill
			case 32, 33:
				continue // belong to libc
			}
			want := runPlain(t, victim, "death", fmt.Sprint(int(sig)))
			got, _ := runTraced(t, &Options{Seccomp: mode}, &tape{}, victim, "death", fmt.Sprint(int(sig)))
			if got != want || got.status.Signal() != sig {
				t.Errorf("death by %v: %#x, untraced %#x", sig, uint32(got.status), uint32(want.status))
			}
		}
	})
}

// TestHammer compares with what 8 threads say about their 1000 calls each.
func TestHammer(t *testing.T) {
	victim := build(t, "victim")
	modes(t, func(t *testing.T, mode SeccompMode) {
		h := &tape{verdict: WantExit}
		got, _ := runTraced(t, &Options{Seccomp: mode}, h, victim, "hammer")
		h.check(t)
		checkCalls(t, h)
		sums, n := map[int]uint64{}, map[int]int{}
		for i, c := range h.calls {
			sums[h.tids[i]] += c.Args[2]
			n[h.tids[i]]++
		}
		lines := 0
		for line := range strings.Lines(got.output) {
			var tid, calls, bad int
			var sum uint64
			if _, err := fmt.Sscanf(line, "tid %d calls %d sum %d bad %d", &tid, &calls, &sum, &bad); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			if bad != 0 || n[tid] != calls || sums[tid] != sum {
				t.Errorf("%s: saw %d calls, sum %d", strings.TrimSpace(line), n[tid], sums[tid])
			}
			lines++
		}
		if lines != 8 || len(n) != 8 {
			t.Errorf("%d threads spoke, %d were seen", lines, len(n))
		}
	})
}

// TestStatic traces a program without dynamic linker.
func TestStatic(t *testing.T) {
	victim := build(t, "victim", "-static")
	modes(t, func(t *testing.T, mode SeccompMode) {
		for _, name := range []string{"hello", "fork", "thread_exec"} {
			h := &tape{verdict: WantExit}
			got, _ := runTraced(t, &Options{Seccomp: mode}, h, victim, name)
			if want := runPlain(t, victim, name); got != want || h.enters != 1 {
				t.Errorf("%s: %+v, untraced %+v; %d calls", name, got, want, h.enters)
			}
			h.check(t)
		}
	})
}

// TestTraceMe: the one thing that a traced program can't do.
func TestTraceMe(t *testing.T) {
	got, _ := runTraced(t, &Options{}, &tape{}, build(t, "victim"), "trace_me")
	if want := fmt.Sprintf("traceme=-1 errno=%d\n", unix.EPERM); got.output != want {
		t.Errorf("%q, want %q", got.output, want)
	}
}

// TestEnvironment: limits, ignored and blocked signals and descriptors are those
// that the program would have untraced. The shell sets them up; the test binary
// is what stands between it and the program.
func TestEnvironment(t *testing.T) {
	victim := build(t, "victim")
	// Go's runtime takes other ignored signals away before anybody can see them.
	setup := `ulimit -Sn 123; trap '' HUP INT TSTP TTIN TTOU; exec 7</dev/null; exec "$@"`
	want := runPlain(t, "bash", "-c", setup, "sh", victim, "blocked", victim, "environment")
	if !strings.Contains(want.output, "nofile=123 ") || !strings.Contains(want.output, "ignored=1 ") || !strings.Contains(want.output, "blocked=17 ") || !strings.Contains(want.output, "blocked=34 ") {
		t.Fatalf("no such environment: %q", want.output)
	}
	t.Setenv("PTRACE_HELPER", "run")
	got := runPlain(t, "bash", "-c", setup, "sh", victim, "blocked", os.Args[0], victim, "environment")
	if got != want {
		t.Errorf("traced %q\nuntraced %q", got.output, want.output)
	}
}

// TestNamespaceInit: the first process of a pid namespace dies of its own faults as it does
// untraced.
func TestNamespaceInit(t *testing.T) {
	victim := build(t, "victim")
	if out := runPlain(t, victim, "new_pid_ns"); strings.Contains(out.output, "no namespace") {
		need.Missing(t, "root", "needs the right to make a pid namespace")
	}
	modes(t, func(t *testing.T, mode SeccompMode) {
		for _, how := range []string{"segv", "abort", "trap", "ill", "blocked", "sys", "thread", "sent", "handled"} {
			want := runPlain(t, victim, "new_pid_ns", how)
			h := &tape{verdict: WantExit}
			got, _ := runTraced(t, &Options{Seccomp: mode}, h, victim, "new_pid_ns", how)
			if got != want {
				t.Errorf("%s: %+v, untraced %+v", how, got, want)
			}
			h.check(t)
		}
	})
}
