package outside

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/internal/need"
	"nvtrace/ptrace/proc"
)

const program = `
import sys, threading
def sleeper():
    print("ready", flush=True)
    sys.stdin.read()
def outer():
    sleeper()
t = threading.Thread(target=outer)
t.start()
t.join()
`

// TestThreads wants the lines of Python of each thread, and functions of those in system calls.
func TestThreads(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		need.Missing(t, "python3", err.Error())
	}
	cmd := exec.Command(python, "-c", program)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("%q: %v", line, err)
	}
	var stacks []string
	// The thread may be between its line and the system call that waits.
	for range 1000 {
		list, err := Threads(cmd.Process.Pid, false)
		if err != nil {
			t.Fatal(err)
		}
		stacks = nil
		native := 0
		for i := range list {
			var names []string
			for _, f := range list[i].Python {
				names = append(names, f.Func[strings.LastIndexByte(f.Func, '.')+1:])
			}
			stacks = append(stacks, strings.Join(names, " "))
			if slices.ContainsFunc(list[i].Native, func(f Function) bool { return f.File != "" }) {
				native++
			}
		}
		if len(list) == 2 && native == 2 && strings.HasPrefix(stacks[1], "sleeper outer run") && strings.HasSuffix(stacks[0], "join <module>") {
			return
		}
	}
	t.Errorf("stacks: %q", stacks)
}

// TestRunning wants the functions of a thread that is in no system call, which goes on as if nothing had been, a
// signal that comes meanwhile included.
func TestRunning(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("callers are followed on x86-64 only")
	}
	cc, err := exec.LookPath("gcc")
	if err != nil {
		need.Missing(t, "gcc", err.Error())
	}
	dir := t.TempDir()
	source := `
#include <signal.h>
#include <stdio.h>
volatile int stop, count;
static void seen(int sig) { if (++count == 100) stop = 1; }
__attribute__((noinline)) void spinning(void) { while (!stop) ; }
__attribute__((noinline)) void caller(void) { spinning(); __asm__ volatile(""); }
int main(void) { signal(SIGUSR1, seen); puts("ready"); fflush(stdout); caller(); printf("%d signals\n", count); return 0; }
`
	if err := os.WriteFile(dir+"/spin.c", []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-O1", "-o", dir+"/spin", dir+"/spin.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.Command(dir + "/spin")
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	out := bufio.NewReader(pipe)
	if line, err := out.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("%q: %v", line, err)
	}
	found := 0
	for i := range 100 {
		list, err := Threads(cmd.Process.Pid, true)
		if err != nil || len(list) != 1 {
			t.Fatalf("%v: %v", list, err)
		}
		if names := fmt.Sprint(list[0].Native); strings.Contains(names, "spinning") && strings.Contains(names, "caller") && strings.Contains(names, "main") {
			found++
		}
		// One after the other, as signals of one kind that wait are merged. The last ends the program.
		if err := cmd.Process.Signal(unix.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		for pending := true; pending && i < 99 && need.Limit(t).Err() == nil; {
			text, _ := proc.Status(cmd.Process.Pid, "ShdPnd")
			pending = strings.Trim(text, "0") != ""
		}
	}
	if line, err := out.ReadString('\n'); err != nil || line != "100 signals\n" {
		t.Errorf("%q: %v", line, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if found < 90 {
		t.Errorf("%d of 100 stacks have the functions", found)
	}
}

// TestKept wants what was there, and what is there now elsewhere.
func TestKept(t *testing.T) {
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	page, err := unix.Mmap(-1, 0, 2*maxKept, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(page) }()
	at := uint64(reflect.ValueOf(page).Pointer())
	page[8], page[maxKept+8] = 1, 1
	m := memory{File: mem}.keep(at + 8)
	page[0], page[8], page[maxKept+8] = 2, 2, 2
	for off, want := range map[uint64]byte{0: 2, 8: 1, 9: 0, maxKept + 8: 2} {
		var b [1]byte
		if n, err := m.ReadMem(at+off, b[:]); n != 1 || err != nil || b[0] != want {
			t.Errorf("at %d: %d bytes, %d, %v; want %d", off, n, b[0], err, want)
		}
	}
	var b [16]byte // some of it was kept
	if n, err := m.ReadMem(at+maxKept, b[:]); n != len(b) || err != nil || b[8] != 2 {
		t.Errorf("across the end: %d bytes, %v, %v", n, b, err)
	}
}

// TestNoProcess wants an error.
func TestNoProcess(t *testing.T) {
	if _, err := Threads(1<<30, true); err == nil {
		t.Error("a process that there isn't has threads")
	}
}
