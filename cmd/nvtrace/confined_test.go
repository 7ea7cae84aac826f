package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"nvtrace/internal/need"
	"nvtrace/internal/testprog"
)

// confinedProgram builds testdata/confined/confined.c, and a library for it that is called like CUDA's driver.
func confinedProgram(t *testing.T, dir string) string {
	t.Helper()
	need.Tool(t, "gcc", "")
	lib, bin := filepath.Join(dir, "libcuda.so.1"), filepath.Join(dir, "confined")
	for _, args := range [][]string{
		{"-O1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", lib, "testdata/live/libcuda.c"},
		{"-O2", "-Wall", "-o", bin, "testdata/confined/confined.c", lib, "-Wl,-rpath," + dir, "-pthread"},
	} {
		if b, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, b)
		}
	}
	return bin
}

// confinements are the ways in which a program confines itself: the arguments of confined.c but for the threads.
func confinements() (list [][]string) {
	for _, how := range []string{"prctl", "seccomp", "tsync"} {
		for _, action := range []string{"kill", "killthread", "trap", "errno", "enosys"} {
			list = append(list, []string{how, action})
		}
	}
	return append(list,
		[]string{"strict", "kill"}, []string{"thread", "kill"}, []string{"thread", "errno"}, []string{"service", "errno"}, []string{"docker", "errno"},
		[]string{"loader", "kill"}, []string{"landlock", "errno"}, []string{"notsc", "kill"})
}

// ended is how a program that is run has ended.
func ended(t *testing.T, err error) string {
	t.Helper()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return fmt.Sprint(err)
}

// TestConfined: a program that confines itself, in any way, prints the same and ends the same under nvtrace, whatever that
// does in it, and nvtrace counts exactly.
func TestConfined(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("there is no agent here")
	}
	dir := t.TempDir()
	bin, nvtrace := confinedProgram(t, dir), filepath.Join(dir, "nvtrace")
	buildNvtrace(t, nvtrace)
	probe := func(script string) []string { return []string{"-q", "-e", script} }
	const before, threads, after, callers = 220, 3 * 40, 20, 4
	for row, tt := range []struct {
		name  string
		flags []string
		want  []string // a regular expression each; %[1]d: calls of work, %[2]d: of late
	}{
		{"too short for a jump", probe("uprobe:confined:tiny { @n = count(); } uprobe:confined:late_tiny { @l = count(); }"), []string{`@n: %[1]d\b`, `@l: %[2]d\b`}},
		{"returns", probe("uprobe:confined:work { @n = count(); } uretprobe:confined:work { @r = count(); } uretprobe:confined:late { @l = count(); }"), []string{`@n: %[1]d\b`, `@r: %[1]d\b`, `@l: %[2]d\b`}},
		{"returns of short ones", probe("uprobe:confined:tiny { @n = count(); } uretprobe:confined:tiny { @r = count(); } uretprobe:confined:late_tiny { @l = count(); }"), []string{`@n: %[1]d\b`, `@r: %[1]d\b`, `@l: %[2]d\b`}},
		{"who", probe("uprobe:confined:work { @n[pid > 0, tid > 0] = count(); } uprobe:confined:late { @l[pid > 0, tid > 0, uid < 70000] = count(); }"), []string{`@n\[1, 1\]: %[1]d\b`, `@l\[1, 1, 1\]: %[2]d\b`}},
		{"name", probe("api:cuMemAlloc_v2 { @[comm] = count(); }"), []string{`@\[confined\]: %[1]d\b`}},
		{"callers", probe("uprobe:confined:late { @s[ustack] = count(); }"), []string{`late < lately\S* < main.*: 20\b`}},
		{"text", probe(`uprobe:confined:late { printf("late\n"); @l = count(); }`), []string{`@l: %[2]d\b`}},
		{"calls", []string{"--api", "--stacks=alloc", "-o", filepath.Join(dir, "run.nvt")}, []string{`%[1]d calls, most in cuMemAlloc_v2`}},
		{"flight", []string{"--api", "--flight=10s", "-o", filepath.Join(dir, "flight.nvt")}, nil},
		{"stat", []string{"stat"}, []string{`\b%[1]d +allocations`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for i, how := range confinements() {
				n, calls, lately := 0, before, after
				if how[0] == "thread" || (row+i)%2 == 0 && how[0] != "strict" { // which confines one thread alone
					n, calls, lately = callers-1, before+threads, callers*after
				}
				args := append(how, fmt.Sprint(n))
				alone, err := exec.Command(bin, args...).Output()
				status := ended(t, err)
				cmd := exec.Command(nvtrace, append(append(tt.flags, "--", bin), args...)...)
				var stderr bytes.Buffer
				cmd.Stderr = &stderr
				out, err := cmd.Output()
				// Where there is a filter of nvtrace's, the kernel refuses the strict mode.
				if got := strings.TrimPrefix(string(out), "refused\n"); got != string(alone) || ended(t, err) != status {
					t.Errorf("%v: %q, %v, alone %q, %s\n%s", args, out, err, alone, status, stderr.String())
				}
				for _, want := range tt.want {
					if want = fmt.Sprintf(want+"%[3]s", calls, lately, ""); !regexp.MustCompile(want).Match(stderr.Bytes()) {
						t.Errorf("%v: no %s in\n%s", args, want, stderr.String())
					}
				}
			}
		})
	}
}

// TestConfinedFork: a child of a program that has confined itself gets no rings, and each of its calls stops. Of
// those nvtrace sees no return, and says so.
func TestConfinedFork(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("there is no agent here")
	}
	dir := t.TempDir()
	bin, nvtrace := confinedProgram(t, dir), filepath.Join(dir, "nvtrace")
	buildNvtrace(t, nvtrace)
	args := []string{"seccomp", "kill", "0", "fork"}
	alone, err := exec.Command(bin, args...).Output()
	status := ended(t, err)
	for _, tt := range []struct{ flags, want []string }{
		{[]string{"stat"}, []string{"220      allocations", "20      calls whose return was not recorded"}},
		{[]string{"-q", "-e", "uprobe:confined:work { @n = count(); } uretprobe:confined:tiny { @r = count(); }"}, []string{"@n: 240\n", "@r: 240\n"}},
	} {
		var stderr bytes.Buffer
		cmd := exec.Command(nvtrace, append(append(tt.flags, "--", bin), args...)...)
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if string(out) != string(alone) || ended(t, err) != status {
			t.Errorf("%q, %v, alone %q, %s", out, err, alone, status)
		}
		for _, want := range tt.want {
			if !strings.Contains(stderr.String(), want) {
				t.Errorf("no %q in\n%s", want, stderr.String())
			}
		}
	}
}

// TestConfinedExec: a child confines itself, and then becomes a program that nvtrace has to do with. Where its filter
// forbids what it takes to put code in, each call stops.
func TestConfinedExec(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("there is no agent here")
	}
	dir := t.TempDir()
	bin, nvtrace := confinedProgram(t, dir), filepath.Join(dir, "nvtrace")
	buildNvtrace(t, nvtrace)
	const all = "uprobe:confined:work { @n = count(); } uretprobe:confined:work { @r = count(); } uretprobe:confined:tiny { @t = count(); } " +
		"uprobe:confined:late { @l[pid > 0, tid > 0, uid < 70000] = count(); @s[ustack] = count(); } api:cuMemAlloc_v2 { @c[comm] = count(); }"
	for _, how := range [][]string{{"service", "errno"}, {"service", "kill"}, {"docker", "errno"}, {"loader", "kill"}, {"loader", "errno"}, {"loader", "trap"}, {"landlock", "errno"}} {
		args := append(how, "3", "exec")
		alone, err := exec.Command(bin, args...).Output()
		status := ended(t, err)
		for _, tt := range []struct{ flags, want []string }{
			{[]string{"-q", "-e", all}, []string{"@n: 340\n", "@r: 340\n", "@t: 340\n", "@l[1, 1, 1]: 80\n", ": 60\n", "@c[confined]: 340\n"}},
			{[]string{"--api", "--stacks=alloc", "-o", filepath.Join(dir, "run.nvt")}, []string{"340 calls, most in cuMemAlloc_v2"}},
			{[]string{"stat"}, []string{"340      allocations"}},
		} {
			var stderr bytes.Buffer
			cmd := exec.Command(nvtrace, append(append(tt.flags, "--", bin), args...)...)
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if string(out) != string(alone) || ended(t, err) != status {
				t.Errorf("%v %v: %q, %v, alone %q, %s", args, tt.flags, out, err, alone, status)
			}
			for _, want := range tt.want {
				if !strings.Contains(stderr.String(), want) {
					t.Errorf("%v %v: no %q in\n%s", args, tt.flags, want, stderr.String())
				}
			}
			if stops := strings.Contains(stderr.String(), "threads stop at each call of"); tt.flags[0] == "-q" && stops != (how[0] == "loader") {
				t.Errorf("%v: nvtrace says\n%s", args, stderr.String())
			}
		}
	}
}

// TestConfinedAttach attaches to a program that has confined itself: what can't be done in it is said, and it
// prints the same and ends the same. Where the filter allows it all, calls are counted.
func TestConfinedAttach(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("there is no agent here")
	}
	dir := t.TempDir()
	bin, nvtrace := confinedProgram(t, dir), filepath.Join(dir, "nvtrace")
	buildNvtrace(t, nvtrace)
	type way struct {
		args []string // of the program
		told bool     // that something can't be done
	}
	var ways []way
	for _, how := range append(confinements(), []string{"none", "kill"}, []string{"service", "kill"}) {
		forbids := !slices.Contains([]string{"none", "landlock", "notsc", "service", "docker"}, how[0])
		if os.Geteuid() != 0 && slices.Contains([]string{"service", "docker"}, how[0]) {
			forbids = true // filters of others can be read with CAP_SYS_ADMIN only
		}
		for _, n := range []string{"0", "3"} {
			if how[0] == "strict" && n != "0" || how[0] == "thread" && n == "0" {
				continue
			}
			if how[0] != "thread" { // which never is
				ways = append(ways, way{append(how, n, "early"), false})
			}
			ways = append(ways, way{append(how, n, "wait"), forbids})
		}
	}
	for _, w := range ways {
		alone, status := confinedAlone(t, bin, w.args)
		for _, flags := range [][]string{{"-q", "-e", "uprobe:confined:late { @l = count(); }"}, {"--api"}} {
			app := exec.Command(bin, w.args...)
			in, out := testprog.Start(t, app)
			if line, err := out.ReadString('\n'); line != "ready\n" {
				t.Fatalf("%v: %q, %v", w.args, line, err)
			}
			cmd := exec.Command(nvtrace, append(flags, "-p", fmt.Sprint(app.Process.Pid))...)
			stderr, err := cmd.StderrPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			stop := context.AfterFunc(need.Limit(t), func() { _ = cmd.Process.Kill() })
			lines, said := bufio.NewReader(stderr), ""
			for err == nil && !strings.Contains(said, "attached to process") {
				var line string
				line, err = lines.ReadString('\n')
				said += line
			}
			fmt.Fprintln(in)
			rest, _ := io.ReadAll(out)
			if got := ended(t, app.Wait()); string(rest) != alone && string(rest) != "refused\n"+alone || got != status {
				t.Errorf("%v %v: %q, %s, alone %q, %s", w.args, flags, rest, got, alone, status)
			}
			more, _ := io.ReadAll(lines)
			said += string(more)
			_ = cmd.Wait()
			stop()
			told := strings.Contains(said, "seccomp filter does not allow")
			if counts := strings.Contains(said, "@l: 20") || strings.Contains(said, "@l: 80"); flags[0] == "-q" && counts == told || w.told != told {
				t.Errorf("%v %v: nvtrace says\n%s", w.args, flags, said)
			}
		}
	}
}

// confinedAlone is what a program that waits prints behind its first line, and how it ends.
func confinedAlone(t *testing.T, bin string, args []string) (out, status string) {
	t.Helper()
	cmd := exec.Command(bin, args...)
	cmd.Stdin = strings.NewReader("\n")
	b, err := cmd.Output()
	rest, ready := strings.CutPrefix(string(b), "ready\n")
	if !ready {
		t.Fatalf("%v: %q, %v", args, b, err)
	}
	return rest, ended(t, err)
}
