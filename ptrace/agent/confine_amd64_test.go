package agent

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/internal/need"
)

// TestOwnCalls: the agent's code makes no system calls but those that are known beforehand: sys_own those of the list,
// and sys_in and sys_out the program's.
func TestOwnCalls(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(blobSource, "*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var source strings.Builder
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		source.Write(b)
	}
	text := source.String()
	numbers := map[string]uint64{}
	for _, m := range regexp.MustCompile(`(?m)^#define (NR_\w+) (\d+)u$`).FindAllStringSubmatch(text, -1) {
		numbers[m[1]], _ = strconv.ParseUint(m[2], 10, 64)
	}
	found := map[uint64]bool{unix.SYS_CLOCK_GETTIME: true} // the vdso's
	for _, m := range regexp.MustCompile(`\bsys_own\(&\w+, (\w+)\)`).FindAllStringSubmatch(text, -1) {
		nr, known := numbers[m[1]]
		if !known || !slices.ContainsFunc(ownCalls, func(c ownCall) bool { return c.nr == nr }) {
			t.Errorf("sys_own makes %s, which is not in ownCalls", m[1])
		}
		found[nr] = true
	}
	for _, c := range ownCalls {
		if !found[c.nr] {
			t.Errorf("call %d is in ownCalls, and is never made", c.nr)
		}
	}
	if n := strings.Count(text, "sys_own(&"); n < len(ownCalls)-1 {
		t.Errorf("%d calls of sys_own found", n)
	}
	for _, m := range regexp.MustCompile(`\bsys_(?:in|out)\((\S+), `).FindAllStringSubmatch(text, -1) {
		if !slices.Contains([]string{"g", "r", "const"}, m[1]) { // the registers of the program's call; or the declaration
			t.Errorf("%s: that is not the program's call", m[0])
		}
	}
}

// TestOwnCallsMade: what the agent and the helpers really ask the kernel in a program is in the list, with the first
// argument that it says, and but for two all that is in the list is made. A filter that was there before nvtrace has
// each call from their page reported.
func TestOwnCallsMade(t *testing.T) {
	dir := t.TempDir()
	nvtrace, lib, bin := filepath.Join(dir, "nvtrace"), filepath.Join(dir, "libcuda.so.1"), filepath.Join(dir, "victim")
	need.Tool(t, "gcc", "")
	for _, c := range [][]string{
		{"go", "build", "-o", nvtrace, "nvtrace/cmd/nvtrace"},
		{"gcc", "-O1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", lib, "../../cmd/nvtrace/testdata/live/libcuda.c"},
		{"gcc", "-O1", "-Wall", "-o", bin, "testdata/own.c", lib, "-Wl,-rpath," + dir, "-pthread"},
	} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", c, err, out)
		}
	}
	const script = "uprobe:victim:work { @[tid, pid, uid] = count(); } uretprobe:victim:work { @r = count(); }"
	cmd := exec.Command(bin, "record", nvtrace, "-q", "--api", "-o", filepath.Join(dir, "run.nvt"),
		"--attach", "../../nvattach/testdata/obj/host.bpf.o", "-e", script, "--", bin, "work")
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 120 {
		t.Skip("no listener for system calls here")
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	if !strings.Contains(stderr.String(), "@r: 100000\n") {
		t.Errorf("nvtrace says\n%s", stderr.String())
	}
	made := map[uint64]bool{
		unix.SYS_SCHED_YIELD:   true, // where another thread has something locked for long
		unix.SYS_CLOCK_GETTIME: true, // where the vdso can't do without
	}
	// Since glibc 2.41 its opens share a system call instruction with all that can be cancelled: they stop instead.
	libc, minor := exec.Command("getconf", "GNU_LIBC_VERSION"), 0
	if out, err := libc.Output(); err == nil {
		_, _ = fmt.Sscanf(string(out), "glibc 2.%d", &minor)
	}
	made[unix.SYS_NEWFSTATAT] = minor >= 41
	ours := blobSymbols["own_insn"] + syscallLen
	for line := range strings.Lines(stdout.String()) {
		var ip, nr, arg uint64
		if _, err := fmt.Sscanf(line, "%v %v %v", &ip, &nr, &arg); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if ip != ours {
			continue // a call of the program's
		}
		made[nr] = true
		if !slices.ContainsFunc(ownCalls, func(c ownCall) bool { return c.nr == nr && (len(c.args) == 0 || uint32(c.args[0]) == uint32(arg)) }) {
			t.Errorf("call %d (%#x) is made, and is not in ownCalls", nr, arg)
		}
	}
	for _, c := range ownCalls {
		if !made[c.nr] {
			t.Errorf("call %d is in ownCalls, and was not made", c.nr)
		}
	}
}

// TestManners: what the agent does where a filter forbids something of it.
func TestManners(t *testing.T) {
	only := func(nrs ...uint64) allows {
		return func(nr uint64, args ...uint64) bool { return slices.Contains(nrs, nr) }
	}
	var all []uint64
	for _, c := range ownCalls {
		all = append(all, c.nr)
	}
	if !only(all...).own() {
		t.Error("all are allowed")
	}
	for i := range all {
		if only(slices.Delete(slices.Clone(all), i, i+1)...).own() {
			t.Errorf("call %d is not allowed", all[i])
		}
	}
	for _, nr := range bells {
		if only(all...).bell(nr) != slices.Contains(all, nr) {
			t.Errorf("bell %d", nr)
		}
	}
}
