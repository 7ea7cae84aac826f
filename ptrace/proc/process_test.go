package proc

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"nvtrace/internal/need"
	"nvtrace/internal/testprog"
)

func TestProcess(t *testing.T) {
	t.Setenv("NVTRACE_SET_LATER", "1")
	pid := os.Getpid()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if got := Exe(pid); got != exe {
		t.Errorf("executable %q, want %q", got, exe)
	}
	if got := Cmdline(pid); !slices.Equal(got, os.Args) {
		t.Errorf("arguments %q, want %q", got, os.Args)
	}
	if got := Environ(pid); len(got) == 0 || slices.Contains(got, "NVTRACE_SET_LATER=1") {
		t.Errorf("environment %q", got)
	}
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got := FDs(pid); !slices.Contains(got, int32(f.Fd())) || !slices.IsSorted(got) {
		t.Errorf("descriptors %v, without %d", got, f.Fd())
	}
	const none = 1 << 30 // above any pid_max
	if Exe(none) != "" || Cmdline(none) != nil || FDs(none) != nil {
		t.Error("a process that does not exist has properties")
	}
}

// TestStatus: what /proc says of a thread, and of one that is not there.
func TestStatus(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pid, tid := os.Getpid(), unix.Gettid()
	if n, ok := StatusNumber(tid, "Tgid"); !ok || n != pid {
		t.Errorf("Tgid %d, %t", n, ok)
	}
	if n, ok := StatusNumber(tid, "Uid"); !ok || n != os.Getuid() {
		t.Errorf("Uid %d, %t", n, ok)
	}
	if v, ok := Status(tid, "SigBlk"); !ok || len(v) != 16 {
		t.Errorf("SigBlk %q, %t", v, ok)
	}
	if _, ok := Status(tid, "Tg"); ok {
		t.Error("a key's beginning is one")
	}
	if s := Stat(pid, tid, StatState); s != "R" {
		t.Errorf("state %q", s)
	}
	if cpu, err := strconv.Atoi(Stat(pid, tid, StatCPU)); err != nil || cpu < 0 || cpu > 1<<13 {
		t.Errorf("CPU %d, %v", cpu, err)
	}
	if Stat(pid, tid, 1) != "" || Stat(pid, tid, 1000) != "" {
		t.Error("fields that there are not")
	}
	if name := Comm(tid); name == "" || strings.ContainsAny(name, "\n") {
		t.Errorf("name %q", name)
	}
	if tids, err := Threads(pid); err != nil || !slices.Contains(tids, tid) {
		t.Errorf("threads %v, %v", tids, err)
	}
	if !slices.Contains(All(), pid) {
		t.Error("this process is not there")
	}
	const none = 1 << 30
	if _, err := Threads(none); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	if _, ok := StatusNumber(none, "Tgid"); ok || Comm(none) != "" || Stat(none, none, StatState) != "" {
		t.Error("a process that is not there says something")
	}
}

// TestStatName: what a thread calls itself is not taken for fields.
func TestStatName(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tid := unix.Gettid()
	old := Comm(tid)
	file := Path(tid, "comm")
	if err := os.WriteFile(file, []byte("a) Z 1 (b"), 0o600); err != nil {
		t.Fatal(err)
	}
	defer os.WriteFile(file, []byte(old), 0o600)
	if s := Stat(os.Getpid(), tid, StatState); s != "R" {
		t.Errorf("state %q", s)
	}
}

// TestFirstEnded: a process whose first thread has ended is told from one that lives, and from none.
func TestFirstEnded(t *testing.T) {
	need.Tool(t, "gcc", "")
	dir := t.TempDir()
	source, bin := filepath.Join(dir, "x.c"), filepath.Join(dir, "x")
	const text = `#include <pthread.h>
#include <unistd.h>
static void *rest(void *x) { char c; pthread_join(*(pthread_t *)x, 0); write(1, "x\n", 2); _exit(read(0, &c, 1)); }
int main(void) { static pthread_t self; pthread_t t; self = pthread_self(); pthread_create(&t, 0, rest, &self); pthread_exit(0); }
`
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := exec.Command("gcc", "-w", "-o", bin, source, "-lpthread").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	cmd := exec.Command(bin)
	_, out := testprog.Start(t, cmd)
	if _, err := out.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if !need.Until(t, func() bool { return FirstEnded(cmd.Process.Pid) }) {
		t.Error("its first thread has not ended")
	}
	if FirstEnded(os.Getpid()) || FirstEnded(1<<30) {
		t.Error("the test's own first thread has ended, or a process that is not there")
	}
}
