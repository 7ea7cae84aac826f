package host

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nvtrace/internal/testprog"
	"nvtrace/nvattach/object"
	"nvtrace/ptrace"
)

// short compiles testdata/short.c, and returns what it prints and its status without probes.
func short(t *testing.T, args ...string) (bin, out string, status int) {
	t.Helper()
	bin = filepath.Join(t.TempDir(), "short")
	compile(t, slices.Concat([]string{"-w", "-o", bin, "testdata/short.c"}, args)...)
	b, err := exec.Command(bin, "twice").Output()
	if err != nil {
		var ended *exec.ExitError
		if !errors.As(err, &ended) {
			t.Fatal(err)
		}
		status = ended.ExitCode()
	}
	return bin, string(b), status
}

// at has the programs of a rig run at other places.
func (r *rig) at(points ...object.HostPoint) {
	r.t.Helper()
	for i, p := range points {
		r.plan.Host[i].Point = p
	}
	var err error
	if r.tracer, err = New(&r.tracer.opts, 1); err != nil {
		r.t.Fatal(err)
	}
}

// TestVariants: a program computes the same with probes at its functions as without, whatever its compiler was
// told, and each call is counted.
func TestVariants(t *testing.T) {
	calls := map[string]uint64{"add": 23, "tiny": 23, "sub": 23, "tiny2": 20, "same": 24, "hit": 20, "sum": 20, "shared": 20, "carry": 1, "sets": 1, "back": 20, "one": 20, "*": 0}
	for _, v := range testprog.Variants {
		t.Run(v.Name, func(t *testing.T) {
			bin, want, status := short(t, v.Flags...)
			for _, kind := range []object.HostKind{object.HostEntry, object.HostReturn} {
				for name, n := range calls {
					r := newRig(t, true, "add_enter")
					p := object.HostPoint{Kind: kind, Binary: "short", Func: name}
					r.at(p)
					if rc := r.run(bin, "twice"); rc != status || r.stdout.String() != want {
						t.Errorf("%v: status %d, %q, want %d, %q", p, rc, &r.stdout, status, want)
					}
					if got := r.count(1); n > 0 && got != n {
						t.Errorf("%v: %d calls, want %d (%q, %s)", p, got, n, r.said, r.tracer.Slow())
					}
				}
			}
		})
	}
}

// TestTwice: returns of functions that return more than once are refused by name, whatever leads to them.
func TestTwice(t *testing.T) {
	bin, want, status := short(t, "-O1")
	for _, glob := range []string{"*setjmp", "*getcontext", "*vfork", "*"} {
		r := newRig(t, true, "add_enter")
		r.at(object.HostPoint{Kind: object.HostReturn, Binary: "libc", Func: glob})
		if rc := r.run(bin, "twice"); rc != status || r.stdout.String() != want {
			t.Errorf("%s: status %d, %q, want %d, %q", glob, rc, &r.stdout, status, want)
		}
		if !slices.ContainsFunc(r.said, func(s string) bool { return strings.Contains(s, "the function returns more than once") }) {
			t.Errorf("%s: said %q", glob, r.said)
		}
	}
}

// TestCaller: functions that look at who calls them do what they do without probes, and their returns are counted.
func TestCaller(t *testing.T) {
	dir := t.TempDir()
	plugins, bin := filepath.Join(dir, "plugins"), filepath.Join(dir, "loads")
	if err := os.Mkdir(plugins, 0o755); err != nil {
		t.Fatal(err)
	}
	compile(t, "-shared", "-fPIC", "-DLIBRARY", "-o", filepath.Join(plugins, "libplugin.so"), "testdata/loads.c")
	compile(t, "-shared", "-fPIC", "-O1", "-DLIBRARY", "-fno-optimize-sibling-calls", "-Wl,--enable-new-dtags,-rpath,"+plugins, "-o", filepath.Join(dir, "libloads.so"), "testdata/loads.c")
	compile(t, "-o", bin, "testdata/loads.c", "-L"+dir, "-lloads", "-Wl,-rpath,"+dir)
	const want = "next 1\nplugin 1\n"
	for name, n := range map[string]uint64{"dlsym": 1, "dlvsym": 1, "dlopen": 1, "dl*": 0} {
		r := newRig(t, true, "add_enter")
		r.at(object.HostPoint{Kind: object.HostReturn, Binary: "libc", Func: name})
		if rc := r.run(bin); rc != 0 || r.stdout.String() != want {
			t.Errorf("%s: status %d, %q, want %q", name, rc, &r.stdout, want)
		}
		if got := r.count(1); n > 0 && got != n {
			t.Errorf("%s: %d returns, want %d", name, got, n)
		}
		// Where no breakpoint may be behind the calls, they are refused.
		r = newRig(t, true, "add_enter")
		r.live = true
		r.at(object.HostPoint{Kind: object.HostReturn, Binary: "libc", Func: name})
		if rc := r.run(bin); rc != 0 || r.stdout.String() != want {
			t.Errorf("%s, outliving: status %d, %q, want %q", name, rc, &r.stdout, want)
		}
		if n > 0 && (len(r.said) != 1 || !strings.Contains(r.said[0], errMoved.Error())) {
			t.Errorf("%s, outliving: said %q", name, r.said)
		}
	}
}

// TestNone: of a file that can't have probes one thing is said.
func TestNone(t *testing.T) {
	r := newRig(t, true, "add_enter")
	r.at(object.HostPoint{Kind: object.HostEntry, Binary: "short", Func: "add"})
	if u := r.tracer.Unmatched(); len(u) != 0 {
		t.Errorf("without a program: %q", u)
	}
	r.tracer.track(new(ptrace.Task), &ptrace.TaskEvent{Kind: ptrace.TaskSignal})
	if u := r.tracer.Unmatched(); len(u) != 1 {
		t.Errorf("before it is mapped: %q", u)
	}
	r.tracer.none("/bin/short", errors.New("no 64-bit ELF"))
	if u := r.tracer.Unmatched(); len(u) != 0 || len(r.said) != 1 {
		t.Errorf("%q, said %q", u, r.said)
	}
}

// TestInside: probes within the first bytes of a function that has another one, and in the middle of an
// instruction.
func TestInside(t *testing.T) {
	bin, want, status := short(t, "-O0", "-fcf-protection=none")
	both(t, func(t *testing.T, inside bool) {
		for off, err := range map[uint64]string{1: "", 4: "", 2: "in the middle of an instruction: it is one of 3 bytes that begins 1 before", 5: "in the middle"} {
			for _, first := range []bool{true, false} {
				r := newRig(t, inside, "add_enter", "tiny_enter")
				points := []object.HostPoint{{Kind: object.HostEntry, Binary: "short", Func: "add"}, {Kind: object.HostEntry, Binary: "short", Func: "add", Offset: off}}
				counted := []uint32{1, 5}
				if !first {
					slices.Reverse(points)
					slices.Reverse(counted)
				}
				r.at(points...)
				if rc := r.run(bin, "twice"); rc != status || r.stdout.String() != want {
					t.Errorf("+%d: status %d, %q, want %d, %q", off, rc, &r.stdout, status, want)
				}
				inner := uint64(23)
				if err != "" {
					inner = 0
				}
				r.counts(map[uint32]uint64{counted[0]: 23, counted[1]: inner})
				if said := strings.Join(r.said, "\n"); !strings.Contains(said, err) || err == "" && said != "" {
					t.Errorf("+%d: said %q, want %q", off, said, err)
				}
			}
		}
	})
}

// TestAddress: a number is an offset in the file, or an address as nm shows it; else it is refused.
func TestAddress(t *testing.T) {
	bin, _, _ := short(t, "-O1", "-no-pie")
	nm, err := exec.Command("nm", bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	var addr uint64
	for line := range strings.Lines(string(nm)) {
		if f := strings.Fields(line); len(f) == 3 && f[2] == "add" {
			if _, err := fmt.Sscanf(f[0], "%x", &addr); err != nil {
				t.Fatal(err)
			}
		}
	}
	for at, n := range map[uint64]uint64{addr: 23, addr - 0x400000: 23, 0x9000000: 0} {
		r := newRig(t, true, "add_enter")
		r.at(object.HostPoint{Kind: object.HostEntry, Binary: "short", Offset: at})
		r.run(bin)
		r.counts(map[uint32]uint64{1: n})
		if n == 0 != (len(r.said) == 1) {
			t.Errorf("%#x: said %q", at, r.said)
		}
	}
}

// TestAgain: a loop that begins where its function does is no call, where that can be told, and otherwise is said.
func TestAgain(t *testing.T) {
	for _, v := range []struct {
		flag   string
		counts uint64
	}{{"-DLANDING", 20}, {"-ULANDING", 210}} {
		bin, want, status := short(t, "-O1", "-fcf-protection=none", v.flag)
		r := newRig(t, true, "add_enter")
		r.at(object.HostPoint{Kind: object.HostEntry, Binary: "short", Func: "again"})
		if rc := r.run(bin, "twice"); rc != status || r.stdout.String() != want {
			t.Errorf("%s: status %d, %q, want %d, %q", v.flag, rc, &r.stdout, status, want)
		}
		r.counts(map[uint32]uint64{1: v.counts})
		if said := strings.Contains(strings.Join(r.said, "\n"), "branches to its first instruction"); said != (v.counts != 20) {
			t.Errorf("%s: said %q", v.flag, r.said)
		}
	}
}
